//! What a search tries of a step where nothing else is asked for: the values that people choose among before they rent.

use crate::combinations::Value;
use crate::step_args::StepArgs;
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

/// What is not said of a step yet, and may differ: of many GPUs how they share it out; what is computed again; the
/// micro-batch; what waits on the host.
pub(crate) fn usual_values(
    step: &StepArgs,
    options: &Options,
    model: &Architecture,
    sequences: u64,
) -> Vec<Usual> {
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
    let mut sharding = Vec::new();
    if ranks > 1 {
        sharding.extend([("none", ""), ("zero 1", "--zero 1")]);
    }
    if ranks > 1 && !megatron {
        sharding.extend([
            ("zero 2", "--zero 2"),
            ("zero 3", "--zero 3"),
            ("full_shard", "--fsdp full_shard"),
        ]);
        // its shards lie within a node: on one alone it is full_shard
        if gpus > options.parallel.gpus_per_node {
            sharding.push(("hybrid_shard", "--fsdp hybrid_shard"));
        }
    }
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
        sizes("pp", &["pp"], gpus.min(shape.num_hidden_layers).min(MOST_STAGES)),
        sizes("cp", &["cp"], if megatron { within_a_node } else { 1 }),
        sizes("ep", &["ep"], ranks.min(experts)),
        words("sharding", &["zero", "fsdp"], &sharding),
        words("recompute", &["recompute"], &recompute),
        Usual {
            name: "batch",
            sets: &["micro-batch-size"],
            values: batches.map(|size| (size.to_string(), format!("--micro-batch-size {size}"))).collect(),
        },
        words("offload", &["offload"], if megatron { &[] } else { &offload }),
    ];
    all.into_iter().filter(|usual| usual.values.len() > 1 && !step.says(usual.sets)).collect()
}

/// 1, 2, 4, … up to that.
fn powers(most: u64) -> impl Iterator<Item = u64> {
    (0..u64::BITS).filter_map(|power| 1_u64.checked_shl(power)).take_while(move |size| *size <= most)
}
