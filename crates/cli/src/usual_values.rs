//! What a search tries of a step where nothing else is asked for: the values that people choose among before they rent.

use crate::among::{SHARDING, SHARDING_HEAD};
use crate::combinations::Value;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::Options;
use peakledger_plan::parallel::Stack;

/// An option and what it may be: each value in a word, and as options.
pub(crate) struct Usual {
    pub(crate) name: &'static str,
    /// The options that its values set.
    pub(crate) sets: &'static [&'static str],
    pub(crate) values: Vec<Value>,
}

/// Stages of a pipeline beyond this are left to who asks for them.
const MOST_STAGES: u32 = 16;
/// So are larger micro-batches.
const MOST_SEQUENCES: u64 = 8;

/// What may differ of a step: of many GPUs how they share it out; what is computed again; the micro-batch; what waits on the
/// host.
pub(crate) fn usual_values(options: &Options, model: &Architecture, sequences: u64) -> Vec<Usual> {
    let gpus = options.parallel.gpus.unwrap_or(1);
    let ranks = options.mesh().map_or(1, |mesh| mesh.world);
    let (shape, megatron) = (&model.shape, options.stack == Stack::Megatron);
    let sizes = |name, sets, most: u32| {
        let option = format!("--{name}");
        let value =
            |size: u32| (size.to_string(), if size > 1 { format!("{option} {size}") } else { String::new() });
        Usual {
            name,
            sets,
            values: powers(u64::from(most)).map(|size| value(u32::try_from(size).unwrap_or(1))).collect(),
        }
    };
    let words = |name, sets, values: &[(&str, &str)]| Usual {
        name,
        sets,
        values: values.iter().map(|(value, options)| ((*value).to_owned(), (*options).to_owned())).collect(),
    };
    let within_a_node = gpus.min(options.parallel.gpus_per_node);
    let experts = u32::try_from(shape.num_experts).unwrap_or(u32::MAX);
    let is_usual = |way: &str| match way {
        _ if ranks <= 1 => false,
        "none" | "zero 1" => true,
        "zero 2" | "zero 3" | "full_shard" => !megatron,
        // its shards lie within a node: on one alone it is full_shard
        "hybrid_shard" => !megatron && gpus > options.parallel.gpus_per_node,
        _ => false,
    };
    let sharding: Vec<(&str, &str)> =
        SHARDING.iter().filter(|way| is_usual(way.name)).map(|way| (way.name, way.options)).collect();
    let recompute = [("none", ""), ("selective", "--recompute selective"), ("full", "--recompute full")];
    let offload = [
        ("none", ""),
        ("activations", "--offload activations"),
        ("optimizer", "--offload optimizer"),
        ("parameters", "--offload parameters"),
    ];
    let batches = powers(MOST_SEQUENCES.min(sequences));
    let all = [
        sizes("tp", &["tp"], within_a_node),
        words("sp", &["sp"], if megatron && gpus > 1 { &[("off", ""), ("on", "--sp")] } else { &[] }),
        Usual {
            name: "pp",
            sets: &["pp", "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"],
            values: powers(u64::from(gpus.min(shape.num_hidden_layers).min(MOST_STAGES)))
                .map(|stages| stages_of(u32::try_from(stages).unwrap_or(1), shape.num_hidden_layers))
                .collect(),
        },
        sizes("cp", &["cp"], if megatron { within_a_node } else { 1 }),
        sizes("ep", &["ep"], ranks.min(experts)),
        words(SHARDING_HEAD, &["zero", "fsdp"], &sharding),
        words("recompute", &["recompute"], &recompute),
        Usual {
            name: "batch",
            sets: &["micro-batch-size"],
            values: batches.map(|size| (size.to_string(), format!("--micro-batch-size {size}"))).collect(),
        },
        words("offload", &["offload"], if megatron { &[] } else { &offload }),
    ];
    all.into_iter().filter(|usual| usual.values.len() > 1).collect()
}

/// Stages of as many layers each; where those do not come out even, the first and the last have what is left, mostly fewer.
fn stages_of(stages: u32, layers: u32) -> Value {
    let options = match stages {
        1 => String::new(),
        stages if layers.is_multiple_of(stages) => format!("--pp {stages}"),
        stages => {
            let left_by = |each: u32| layers.saturating_sub(each.saturating_mul(stages.saturating_sub(2)));
            let left = match left_by(layers.div_ceil(stages)) {
                0 | 1 => left_by(layers / stages),
                left => left,
            };
            let (first, last) = (left.div_ceil(2), left / 2);
            format!(
                "--pp {stages} --decoder-first-pipeline-num-layers {first} --decoder-last-pipeline-num-layers {last}"
            )
        }
    };
    (stages.to_string(), options)
}

/// 1, 2, 4, … up to that.
fn powers(most: u64) -> impl Iterator<Item = u64> {
    (0..u64::BITS).filter_map(|power| 1_u64.checked_shl(power)).take_while(move |size| *size <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_that_do_not_come_out_even_have_less_at_their_ends() {
        let of = |stages, layers| stages_of(stages, layers).1;
        assert_eq!((of(1, 126), of(2, 126)), (String::new(), "--pp 2".to_owned()));
        let ends = |stages, first, last| {
            format!(
                "--pp {stages} --decoder-first-pipeline-num-layers {first} --decoder-last-pipeline-num-layers {last}"
            )
        };
        assert_eq!(of(2, 61), ends(2, 31, 30));
        assert_eq!((of(4, 126), of(16, 126)), (ends(4, 31, 31), ends(16, 7, 7)));
        assert_eq!(of(16, 17), ends(16, 2, 1));
        assert_eq!((of(4, 61), of(16, 61)), (ends(4, 15, 14), ends(16, 3, 2)));
    }
}
