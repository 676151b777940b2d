//! Attention over latents with experts whose router has a bias, as Megatron's arguments spell them out: the keys of a
//! deepseek_v3 config.json.

use super::super::reading::Reading;
use peakledger_input::{Problem, quoted};
use serde_json::{Value, json};

/// Switches of the network that are read here where attention is over latents.
pub(super) const READ: &[&str] =
    &["multi-latent-attention", "moe-shared-expert-intermediate-size", "moe-layer-freq"];

/// What cannot change memory, or is read where there is a model to spell out.
pub(super) const PASSES: &[&str] = &[
    "q-lora-rank",
    "kv-lora-rank",
    "qk-head-dim",
    "qk-pos-emb-head-dim",
    "v-head-dim",
    "rope-type",
    "rotary-scaling-factor",
    "original-max-position-embeddings",
    "mscale",
    "mscale-all-dim",
    "beta-fast",
    "beta-slow",
];

/// Keys of config.json with their values.
type Keys = Vec<(&'static str, Value)>;

/// The keys of config.json that these arguments are, for so many layers whose experts are so wide; or why no family is built so.
pub(super) fn keys(
    reading: &mut Reading<'_>,
    [layers, of_expert]: [u64; 2],
) -> Result<Result<Keys, String>, Problem> {
    let mut keys = vec![("q_lora_rank", json!(reading.number("q-lora-rank")?))];
    // the defaults are Megatron's (`_add_mla_args`)
    for (argument, key, usual) in [
        ("kv-lora-rank", "kv_lora_rank", 32),
        ("qk-head-dim", "qk_nope_head_dim", 128),
        ("qk-pos-emb-head-dim", "qk_rope_head_dim", 64),
        ("v-head-dim", "v_head_dim", 128),
    ] {
        keys.push((key, json!(reading.number(argument)?.unwrap_or(usual))));
    }
    let shared = reading.number("moe-shared-expert-intermediate-size")?.unwrap_or(0);
    match shared.checked_div(of_expert) {
        Some(n) if n > 0 && n.checked_mul(of_expert) == Some(shared) => {
            keys.push(("n_shared_experts", json!(n)));
        }
        _ => {
            return Ok(Err(format!(
                "shared experts of {shared} are none of {of_expert}, as a deepseek_v3 has them"
            )));
        }
    }
    let frequency = reading.text("moe-layer-freq")?.unwrap_or("1");
    match dense_layers(frequency, layers) {
        Some(dense) => keys.push(("first_k_dense_replace", json!(dense))),
        None => {
            let cause =
                format!("of {layers} layers `--moe-layer-freq` {} are not the last ones", quoted(frequency));
            return Ok(Err(cause));
        }
    }
    let by_sigmoid = reading.text("moe-router-score-function")? == Some("sigmoid");
    if !by_sigmoid || !reading.is("moe-router-enable-expert-bias")? {
        let cause = "beside latents a router is planned with `--moe-router-score-function sigmoid` and \
                     `--moe-router-enable-expert-bias` alone";
        return Ok(Err(cause.to_owned()));
    }
    keys.push(("n_group", json!(reading.number("moe-router-num-groups")?.unwrap_or(1))));
    keys.push(("topk_group", json!(reading.number("moe-router-group-topk")?.unwrap_or(1))));
    if reading.text("rope-type")? == Some("rope") {
        reading
            .not_planned("rope-type", "rotary positions by plain ops: planned as YaRN's, in a fused kernel");
    }
    reading.not_planned_if_set("no-rope-fusion", "rotary positions by plain ops: planned in a fused kernel");
    Ok(Ok(keys))
}

/// How many layers come before those with experts, of `[0]*3+[1]*58` or `1`.
fn dense_layers(frequency: &str, layers: u64) -> Option<u64> {
    let is_wanted = |c: &char| !c.is_whitespace() && !['(', ')', '"', '\''].contains(c);
    let text: String = frequency.chars().filter(is_wanted).collect();
    if text == "1" {
        return Some(0);
    }
    let times = |text: &str, what: &str| text.strip_prefix(what)?.strip_prefix('*')?.parse::<u64>().ok();
    let (dense, sparse) = match text.split_once('+') {
        Some((dense, sparse)) => (times(dense, "[0]")?, times(sparse, "[1]")?),
        None => (0, times(&text, "[1]")?),
    };
    (dense.checked_add(sparse)? == layers).then_some(dense)
}

#[cfg(test)]
mod tests {
    use super::dense_layers;

    #[test]
    fn dense_layers_come_first() {
        assert_eq!(dense_layers("([0]*3+[1]*58)", 61), Some(3));
        assert_eq!(dense_layers("'[0] * 3 + [1] * 58'", 61), Some(3));
        assert_eq!((dense_layers("[1]*4", 4), dense_layers("1", 4)), (Some(0), Some(0)));
        for other in ["[0]*3+[1]*58", "2", "[1]*3+[0]*1", "([0]*1+[1]*1)*2", "[0]*18446744073709551615+[1]*5"]
        {
            assert_eq!(dense_layers(other, 4), None, "{other}");
        }
    }
}
