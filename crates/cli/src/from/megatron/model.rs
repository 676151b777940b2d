//! The model that Megatron's arguments spell out, as the config.json of the family that is built the same.

use super::super::found::ModelAsked;
use super::super::reading::Reading;
use super::latent;
use peakledger_input::{Problem, Source, quoted};
use serde_json::{Map, Value, json};

/// Switches of the network that no family here has.
const FOREIGN: &[&str] = &[
    "multi-latent-attention",
    "squared-relu",
    "quick-geglu",
    "openai-gelu",
    "apply-layernorm-1p",
    "apply-residual-connection-post-layernorm",
    "window-size",
    "softmax-type",
    "moe-shared-expert-intermediate-size",
    "moe-layer-freq",
    "no-position-embedding",
    "heterogeneous-layers-config-path",
    "spec",
    "is-hybrid-model",
];

/// Names of arguments that this file reads where there is no model to spell out.
const SHAPES: &[&str] = &[
    "num-layers",
    "hidden-size",
    "ffn-hidden-size",
    "num-attention-heads",
    "group-query-attention",
    "num-query-groups",
    "kv-channels",
    "max-position-embeddings",
    "vocab-size",
    "padded-vocab-size",
    "make-vocab-size-divisible-by",
    "num-experts",
    "moe-ffn-hidden-size",
    "moe-router-topk",
    "moe-router-score-function",
    "moe-router-enable-expert-bias",
    "moe-router-num-groups",
    "moe-router-group-topk",
    "moe-shared-expert-intermediate-size",
    "moe-layer-freq",
];

/// Arguments of the network that spell the model out beside its shapes.
const NETWORK: &[&str] = &[
    "swiglu",
    "normalization",
    "position-embedding-type",
    "use-rotary-position-embeddings",
    "disable-bias-linear",
    "add-qkv-bias",
    "qk-layernorm",
    "multi-latent-attention",
    "untie-embeddings-and-output-weights",
    "hidden-dropout",
    "attention-dropout",
];

/// Whether an argument is of the model that is spelled out.
pub(super) fn reads(name: &str) -> bool {
    SHAPES.contains(&name) || NETWORK.contains(&name)
}

/// Whether linear modules, norms and positions are a family's.
struct Network<'a> {
    swiglu: bool,
    rms_norm: bool,
    positions: &'a str,
    bias: bool,
    qkv_bias: bool,
    qk_norm: bool,
    experts: Option<u64>,
    /// Whether attention is over latents.
    latent: bool,
}

impl Network<'_> {
    /// The family of transformers that is built so.
    fn family(&self) -> Option<&'static str> {
        let is_llama_like = self.swiglu && self.rms_norm && self.positions == "rope" && !self.bias;
        if self.latent {
            let is_built_so = is_llama_like && self.qk_norm && !self.qkv_bias && self.experts.is_some();
            return is_built_so.then_some("deepseek_v3");
        }
        match (is_llama_like, self.qk_norm, self.qkv_bias, self.experts.is_some()) {
            (true, false, false, false) => Some("llama"),
            (true, false, true, false) => Some("qwen2"),
            (true, true, false, false) => Some("qwen3"),
            (true, false, false, true) => Some("mixtral"),
            (true, true, false, true) => Some("qwen3_moe"),
            (false, false, false, false)
                if !self.swiglu && !self.rms_norm && self.positions == "learned_absolute" && self.bias =>
            {
                Some("gpt2")
            }
            _ => None,
        }
    }
}

pub(super) fn read(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let key = "num-layers";
    let all = [reading.has(key), reading.has("hidden-size"), reading.has("num-attention-heads")];
    let positions = match reading.text("position-embedding-type")? {
        Some(positions) => positions,
        None if reading.is("use-rotary-position-embeddings")? => "rope",
        None => "learned_absolute",
    };
    let network = Network {
        swiglu: reading.is("swiglu")?,
        rms_norm: reading.text("normalization")? == Some("RMSNorm"),
        positions,
        bias: !reading.is("disable-bias-linear")?,
        qkv_bias: reading.is("add-qkv-bias")?,
        qk_norm: reading.is("qk-layernorm")?,
        experts: reading.number("num-experts")?.filter(|experts| *experts > 1),
        latent: reading.is("multi-latent-attention")?,
    };
    let tied = !reading.is("untie-embeddings-and-output-weights")?;
    let hidden_dropout = reading.amount("hidden-dropout")?.unwrap_or(0.1);
    let attention_dropout = reading.amount("attention-dropout")?.unwrap_or(0.1);
    reading.pass(&["rotary-percent", "rotary-interleaved"]);
    if positions == "rope" {
        reading.pass(&["no-position-embedding"]);
    }
    if all != [true; 3] {
        reading.pass(SHAPES);
        return Ok(());
    }
    // beside rotary positions it says what is so anyway
    let is_read = |key: &&str| {
        network.latent && latent::READ.contains(key) || positions == "rope" && *key == "no-position-embedding"
    };
    let foreign: Vec<&str> =
        FOREIGN.iter().copied().filter(|key| reading.has(key) && !is_read(key)).collect();
    for key in &foreign {
        reading.value(key);
    }
    let (family, vocabulary) = (network.family(), vocabulary(reading)?);
    let origin = reading.origin(key);
    let cause = match (family, foreign.first(), vocabulary) {
        (_, Some(foreign), _) => format!("no family of models that is planned has `--{foreign}`"),
        (None, None, _) => {
            format!("no family of models that is planned has these modules: {}", described(&network))
        }
        (_, _, None) => "the size of the vocabulary, `--vocab-size`, is not among the arguments".to_owned(),
        (Some(family), None, Some(vocabulary)) => {
            match config(reading, &network, family, vocabulary, tied, attention_dropout, hidden_dropout)? {
                Ok(config) => {
                    let source = Source::from_text(reading.file(), format!("{:#}", Value::Object(config)));
                    reading.found.model = Some((ModelAsked::Config(source), origin));
                    return Ok(());
                }
                Err(cause) => cause,
            }
        }
    };
    reading.pass(SHAPES);
    reading.ask("MODEL", key, &cause);
    Ok(())
}

fn described(network: &Network<'_>) -> String {
    let Network { swiglu, rms_norm, positions, bias, latent, qk_norm, experts, .. } = network;
    let activation = if *swiglu { "SwiGLU" } else { "GELU" };
    let norm = if *rms_norm { "RMSNorm" } else { "LayerNorm" };
    let bias = if *bias { "biases" } else { "no biases" };
    let latent = match (latent, qk_norm, experts) {
        (false, ..) => "",
        (true, false, _) => ", latents that are not normed",
        (true, true, None) => ", latents without experts",
        (true, true, Some(_)) => ", latents",
    };
    format!("{activation}, {norm}, {} positions, {bias}{latent}", quoted(positions))
}

/// Rows of the embedding: a multiple of what it is padded to and of the tensor parallel ranks
/// (`_vocab_size_with_padding` in `training/tokenizer/tokenizer.py`).
fn vocabulary(reading: &mut Reading<'_>) -> Result<Option<u64>, Problem> {
    let padded = reading.number("padded-vocab-size")?;
    let multiple = reading.number("make-vocab-size-divisible-by")?.unwrap_or(128);
    let tp = reading.said("--tp").and_then(|tp| tp.parse().ok()).unwrap_or(1);
    // NullTokenizer has an end of its own
    let extra = u64::from(reading.peek("tokenizer-type").and_then(Value::as_str) == Some("NullTokenizer"));
    let Some(size) = reading.number("vocab-size")? else { return Ok(padded) };
    let padding =
        |size: u64| size.checked_add(extra)?.checked_next_multiple_of(multiple.checked_mul(tp)?.max(1));
    let rows = padded.or_else(|| padding(size));
    let key = if padded.is_some() { "padded-vocab-size" } else { "make-vocab-size-divisible-by" };
    let planned = 128_u64.saturating_mul(tp).max(1);
    if rows.is_some_and(|rows| rows % planned != 0) {
        reading.note(
            key,
            "rows of the embedding that are padded to another multiple: planned to one of 128 of each rank",
        );
    }
    Ok(rows)
}

fn config(
    reading: &mut Reading<'_>,
    network: &Network<'_>,
    family: &'static str,
    vocabulary: u64,
    tied: bool,
    attention_dropout: f64,
    hidden_dropout: f64,
) -> Result<Result<Map<String, Value>, String>, Problem> {
    let hidden = reading.number("hidden-size")?.unwrap_or(0);
    let heads = reading.number("num-attention-heads")?.unwrap_or(0);
    let layers = reading.number("num-layers")?.unwrap_or(0);
    let grouped = reading.is("group-query-attention")?;
    let groups = reading.number("num-query-groups")?.filter(|_| grouped).unwrap_or(heads);
    // of gated units Megatron takes two thirds, in multiples of 64 (`validate_args`)
    let usual =
        if network.swiglu { hidden.saturating_mul(8) / 3 / 64 * 64 } else { hidden.saturating_mul(4) };
    let inner = reading.number("ffn-hidden-size")?.unwrap_or(usual);
    let positions = reading.number("max-position-embeddings")?;
    let positions = positions.or(reading.number("seq-length")?).unwrap_or(2048);
    let mut config = Map::new();
    let mut put = |key: &str, value: Value| drop(config.insert(key.to_owned(), value));
    put("model_type", json!(family));
    put("vocab_size", json!(vocabulary));
    put("tie_word_embeddings", json!(tied));
    if family == "gpt2" {
        put("n_embd", json!(hidden));
        put("n_head", json!(heads));
        put("n_layer", json!(layers));
        put("n_positions", json!(positions));
        put("n_inner", json!(inner));
        put("activation_function", json!("gelu"));
        put("attn_pdrop", json!(attention_dropout));
        put("resid_pdrop", json!(hidden_dropout));
        put("embd_pdrop", json!(hidden_dropout));
        if groups != heads {
            reading.not_planned("num-query-groups", "grouped heads: gpt2 has none");
        }
    } else {
        put("hidden_size", json!(hidden));
        put("num_attention_heads", json!(heads));
        put("num_key_value_heads", json!(groups));
        put("num_hidden_layers", json!(layers));
        put("max_position_embeddings", json!(positions));
        put("intermediate_size", json!(inner));
        put("hidden_act", json!("silu"));
        put("attention_dropout", json!(attention_dropout));
        if let Some(width) = reading.number("kv-channels")?.filter(|_| !network.latent) {
            put("head_dim", json!(width));
        }
        if hidden_dropout > 0.0 {
            let key = if reading.has("hidden-dropout") { "hidden-dropout" } else { "num-layers" };
            reading.not_planned(
                key,
                "dropout of hidden states (`--hidden-dropout` is 0.1 where it is left out)",
            );
        }
    }
    if let Some(experts) = network.experts {
        let of_expert = reading.number("moe-ffn-hidden-size")?.unwrap_or(inner);
        let chosen = reading.number("moe-router-topk")?.unwrap_or(2);
        put("num_experts_per_tok", json!(chosen));
        match family {
            "mixtral" => {
                put("num_local_experts", json!(experts));
                put("intermediate_size", json!(of_expert));
            }
            "deepseek_v3" => {
                put("n_routed_experts", json!(experts));
                put("moe_intermediate_size", json!(of_expert));
                match latent::keys(reading, [layers, of_expert])? {
                    Ok(keys) => keys.into_iter().for_each(|(key, value)| put(key, value)),
                    Err(cause) => return Ok(Err(cause)),
                }
            }
            _ => {
                put("num_experts", json!(experts));
                put("moe_intermediate_size", json!(of_expert));
            }
        }
    }
    reading.pass(SHAPES);
    Ok(Ok(config))
}
