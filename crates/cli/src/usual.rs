//! What people usually change of a step that does not fit: each a name and options, as a candidate has them.

use peakledger_plan::Dtype;
use peakledger_plan::options::{Offload, OptimizerImpl, OptimizerKind, Options, Recompute};
use peakledger_plan::parallel::{Mesh, Parallel, Sharding, Stack};

/// A change of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) name: String,
    pub(crate) options: String,
}

/// The change that recomputes all layers: its name and options.
pub(crate) const RECOMPUTE: (&str, &str) = ("recompute", "--recompute full");

/// The change that loads the weights in the type that they were saved in.
const HALF_WEIGHTS: &str = "half-weights";

/// What goes with it where a step is far from fitting: adapters over a frozen model, mostly.
pub(crate) const OF_SAVED: &[&str] = &[RECOMPUTE.0, HALF_WEIGHTS];

/// What is worth trying together, by name, where no change alone is enough: of the second level what has nothing of the first in
/// it that is. What shares a step out over GPUs is all in the first, so that whoever has them is told how to train the whole
/// model on them.
pub(crate) const TOGETHER: [&[&[&str]]; 2] = [
    &[
        &["fsdp", "recompute"],
        &["zero-2", "recompute"],
        &["zero-3", "recompute"],
        &["tp", "recompute"],
        &["tp", "fsdp"],
        &["sync-each-batch", "recompute"],
        &["fsdp", "recompute", "fused"],
        &["fsdp", "recompute", "offload-parameters"],
        &["zero-3", "recompute", "offload-optimizer"],
        &["zero-3", "recompute", "offload-parameters"],
        &["tp", "fsdp", "recompute"],
        &["tp", "fsdp", "recompute", "fused"],
        &["recompute", "fused"],
        &["recompute", "fused-loss"],
        &["recompute", "offload"],
        &["recompute", "offload-optimizer"],
        &["fused-loss", "offload-optimizer"],
        &["recompute", "accumulate"],
        &["recompute", "LoRA"],
        &["recompute", "QLoRA"],
        OF_SAVED,
        &[HALF_WEIGHTS, "LoRA"],
        &["recompute", "bf16"],
        &["recompute", "adamw-8bit"],
        &["recompute", "adafactor"],
        &["LoRA", "bf16"],
        &["QLoRA", "bf16"],
        &["bf16", "fused"],
        &["bf16", "adamw-8bit"],
        &["bf16", "adafactor"],
    ],
    &[
        &["recompute", HALF_WEIGHTS, "LoRA"],
        &["recompute", HALF_WEIGHTS, "QLoRA"],
        &["recompute", "LoRA", "bf16"],
        &["recompute", "QLoRA", "bf16"],
        &["recompute", "bf16", "fused"],
        &["recompute", "bf16", "adamw-8bit"],
        &["recompute", "bf16", "adafactor"],
    ],
];

/// The changes that a step has not made already. Where its weights are in fp32 and the model's config has a half type, that is
/// one of them.
pub(crate) fn changes(options: &Options, saved_in: Option<Dtype>) -> Vec<Change> {
    let adafactor = options.optimizer == OptimizerKind::Adafactor;
    let weights = options.weights_dtype.unwrap_or(options.precision.weights());
    let bf16 = match options.weights_dtype {
        None => "--precision bf16",
        Some(_) => "--precision bf16 --weights-dtype bf16",
    };
    let adamw = options.optimizer == OptimizerKind::AdamW;
    let fused = options.optimizer_impl == Some(OptimizerImpl::Fused);
    let can_be_fused = adamw || options.optimizer == OptimizerKind::Sgd;
    let on_host = !matches!(options.optimizer, OptimizerKind::AdamW8bit | OptimizerKind::AdamW32bit); // their kernels are the card's
    let list = [
        (options.recompute == Recompute::None).then(|| (RECOMPUTE.0, RECOMPUTE.1.to_owned())),
        (can_be_fused && !fused).then(|| ("fused", "--optimizer-impl fused".to_owned())),
        accumulated(options).map(|options| ("accumulate", options)),
        (!options.offload.activations).then(|| ("offload", offload(options, "activations"))),
        (on_host && !options.offload.has_optimizer())
            .then(|| ("offload-optimizer", offload(options, "optimizer"))),
        (on_host && !options.offload.parameters)
            .then(|| ("offload-parameters", offload(options, "parameters"))),
        (!options.fused_loss).then(|| ("fused-loss", "--fused-loss".to_owned())),
        options.lora.is_none().then(|| ("LoRA", "--lora r=16,targets=all-linear".to_owned())),
        packed(options).map(|options| ("QLoRA", options.to_owned())),
        saved_in.map(|dtype| (HALF_WEIGHTS, format!("--weights-dtype {}", dtype.as_str()))),
        (weights == Dtype::F32).then(|| ("bf16", bf16.to_owned())),
        // it has one implementation, and a change can take none back
        (adamw && options.optimizer_impl.is_none())
            .then(|| ("adamw-8bit", "--optimizer adamw-8bit".to_owned())),
        (!adafactor).then(|| ("adafactor", to_adafactor(options))),
    ];
    let change = |(name, options): (&str, String)| Change { name: name.to_owned(), options };
    list.into_iter().flatten().chain(spread(options)).map(change).collect()
}

/// How data parallel ranks that each have everything may share it out instead.
fn spread(options: &Options) -> Vec<(&'static str, String)> {
    let Parallel { sharding, tp, pp, dp, .. } = options.parallel;
    let replicas = Mesh::of(&options.parallel).map_or(1, |mesh| mesh.dp);
    if options.stack != Stack::Transformers || replicas == 1 {
        return Vec::new();
    }
    let strategies = [("fsdp", "--fsdp full_shard"), ("zero-2", "--zero 2"), ("zero-3", "--zero 3")];
    let replicated = sharding == Sharding::Replicated;
    let mut list: Vec<(&'static str, String)> =
        strategies.into_iter().filter(|_| replicated).map(|(name, text)| (name, text.to_owned())).collect();
    // between micro-batches, whole gradients wait for the last, in a pipeline whatever is asked for
    let holds_whole = sharding.is_fsdp() && options.gradient_accumulation_steps > 1 && pp == 1;
    if holds_whole && !options.parallel.data.sync_each_batch {
        list.push(("sync-each-batch", "--sync-each-batch".to_owned()));
    }
    // the largest number of ranks within a node
    let most = options.parallel.gpus_per_node.min(8);
    let ranks = (2..=most).rev().find(|ranks| ranks.is_power_of_two() && replicas.is_multiple_of(*ranks));
    if let Some(ranks) = ranks.filter(|_| tp == 1) {
        // fewer ranks take batches, so each takes more of them
        let steps = options.gradient_accumulation_steps.saturating_mul(ranks);
        let dp = dp.map(|dp| format!(" --dp {}", dp / ranks)).unwrap_or_default();
        list.push(("tp", format!("--tp {ranks}{dp} --gradient-accumulation-steps {steps}")));
    }
    list
}

/// Several changes at once; nothing where one of them is not among those that can be made.
pub(crate) fn together(names: &[&str], changes: &[Change]) -> Option<Change> {
    let find = |name: &&str| changes.iter().find(|change| change.name == *name);
    let found: Vec<&Change> = names.iter().map(find).collect::<Option<_>>()?;
    let options: Vec<&str> = found.iter().map(|change| change.options.as_str()).collect();
    Some(Change { name: names.join(" + "), options: options.join(" ") })
}

/// Half the micro-batch twice as often, or a third of it three times: the same sequences in a step.
fn accumulated(options: &Options) -> Option<String> {
    let batch = options.micro_batch_size;
    let part = (2..).take_while(|part| part * part <= batch).find(|part| batch.is_multiple_of(*part));
    let parts = part.unwrap_or(batch);
    let steps = u64::from(options.gradient_accumulation_steps).saturating_mul(parts);
    (parts > 1).then(|| format!("--micro-batch-size {} --gradient-accumulation-steps {steps}", batch / parts))
}

/// What is offloaded already, and this.
fn offload(options: &Options, what: &str) -> String {
    let Offload { activations, optimizer, parameters } = options.offload;
    let there = [(activations, "activations"), (optimizer, "optimizer"), (parameters, "parameters")];
    let mut all: Vec<&str> = there.into_iter().filter(|(there, _)| *there).map(|(_, what)| what).collect();
    all.push(what);
    format!("--offload {}", all.join(","))
}

/// Frozen weights in four bits, with adapters.
fn packed(options: &Options) -> Option<&'static str> {
    match (&options.quantize, &options.lora) {
        (Some(_), _) => None,
        (None, Some(_)) => Some("--quantize nf4"),
        (None, None) => Some("--lora r=16,targets=all-linear --quantize nf4"),
    }
}

/// Adafactor, without what it cannot have of the optimizer before.
fn to_adafactor(options: &Options) -> String {
    let mut text = "--optimizer adafactor".to_owned();
    if options.optimizer_impl.is_some_and(|kind| kind != OptimizerImpl::ForLoop) {
        text.push_str(" --optimizer-impl forloop");
    }
    if options.momentum {
        text.push_str(" --momentum 0");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_parted_without_a_rest() {
        let accumulated = |micro_batch_size, gradient_accumulation_steps| {
            accumulated(&Options { micro_batch_size, gradient_accumulation_steps, ..Options::default() })
        };
        assert_eq!(accumulated(0, 1), None);
        assert_eq!(accumulated(1, 4), None);
        for (batch, steps, parts, times) in
            [(2, 1, 1, 2), (6, 4, 3, 8), (9, 1, 3, 3), (7, 2, 1, 14), (1 << 32, 1, 1_u64 << 31, 2)]
        {
            let wanted = format!("--micro-batch-size {parts} --gradient-accumulation-steps {times}");
            assert_eq!(accumulated(batch, steps), Some(wanted), "{batch} × {steps}");
        }
    }

    #[test]
    fn ranks_that_share_nothing_out_may() {
        let spread = |parallel: Parallel| {
            let all = spread(&Options { parallel, ..Options::default() });
            all.into_iter().map(|(_, options)| options).collect::<Vec<_>>().join(", ")
        };
        let (gpus, default) = (Some(16), Parallel::default());
        assert_eq!(spread(default.clone()), "");
        let all = "--fsdp full_shard, --zero 2, --zero 3, --tp 8 --gradient-accumulation-steps 8";
        assert_eq!(spread(Parallel { gpus, ..default.clone() }), all);
        let asked = Parallel { dp: Some(12), ..default.clone() };
        assert_eq!(
            spread(asked),
            "--fsdp full_shard, --zero 2, --zero 3, --tp 4 --dp 3 --gradient-accumulation-steps 4"
        );
        let sharding = Sharding::FullShard;
        let several = Options { gradient_accumulation_steps: 4, ..Options::default() };
        let several = Options { parallel: Parallel { gpus, sharding, ..default.clone() }, ..several };
        assert_eq!(
            super::spread(&several).first(),
            Some(&("sync-each-batch", "--sync-each-batch".to_owned()))
        );
        let within_tp = Parallel { gpus, tp: 8, ..default.clone() };
        assert_eq!(spread(within_tp), "--fsdp full_shard, --zero 2, --zero 3");
        assert_eq!(
            spread(Parallel { gpus, sharding: Sharding::FullShard, ..default }),
            "--tp 8 --gradient-accumulation-steps 8"
        );
    }

    #[test]
    fn what_is_tried_together_is_tried_alone_too() {
        let parallel = Parallel { gpus: Some(16), ..Parallel::default() };
        let options = Options { micro_batch_size: 2, parallel, ..Options::default() };
        let all = changes(&options, Some(Dtype::Bf16));
        let mut sharded = Options { gradient_accumulation_steps: 4, ..options };
        sharded.parallel.sharding = Sharding::FullShard;
        let sharded = changes(&sharded, None);
        for names in TOGETHER.concat() {
            let is_tried = [&all, &sharded].into_iter().any(|changes| together(names, changes).is_some());
            assert!(is_tried, "{names:?}");
        }
        assert_eq!(together(&["recompute", "nothing"], &all), None);
    }
}
