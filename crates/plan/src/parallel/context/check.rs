//! What context parallel ranks cannot do, and what of it is not planned.

use super::LOG_SUMS;
use crate::config::Architecture;
use crate::model::Attend;
use crate::options::{Attention, Objective, Options, refused};
use crate::parallel::{CpComm, Mesh, RotateMethod, Stack};
use crate::torch::ops::SdpaKernel;
use peakledger_input::Problem;

impl Options {
    /// Refuses what does not go together, whatever the model.
    pub(crate) fn check_context_parallel(&self, mesh: &Mesh) -> Result<(), Problem> {
        let parallel = &self.parallel;
        if self.stack == Stack::Transformers && parallel.cp_comm != CpComm::default() {
            let cause = "it is of Transformer Engine's attention; torch goes round, or gathers";
            return refused("--cp-comm-type", cause, "use --cp-rotate-method, or add `--stack megatron`");
        }
        let shared = mesh.cp > 1 && self.stack == Stack::Transformers;
        let told = [
            ("--cp-rotate-method", parallel.cp_rotate != RotateMethod::default()),
            ("--cp-load-balance", parallel.cp_load_balance.is_some()),
        ];
        if let Some((option, _)) = told.iter().find(|(_, given)| *given && !shared) {
            let mend = match self.stack {
                Stack::Transformers => "leave it out, or add `--cp 2`",
                Stack::Megatron => "leave it out: Megatron's is --cp-comm-type",
            };
            return refused(option, "nothing of this step reads it", mend);
        }
        if !shared {
            return Ok(());
        }
        if parallel.pp > 1 {
            let cause = "accelerate has no pipeline, and torch's is not planned over a shared sequence";
            return refused("--cp", cause, "leave out one of --cp and --pp, or add `--stack megatron`");
        }
        if parallel.sharding.is_zero() {
            let cause = "accelerate's context parallel runs with FSDP2, not with DeepSpeed";
            return refused("--cp", cause, "use --fsdp full_shard in place of --zero");
        }
        if mesh.ep > 1 {
            let cause = "transformers spreads experts by a mesh that has no context parallel ranks";
            return refused("--cp", cause, "leave out one of --cp and --ep");
        }
        if parallel.sp {
            let cause = "norms split by sequence are torchtitan's own, not planned over a shared sequence";
            return refused("--cp", cause, "leave out one of --cp and --sp");
        }
        if self.objective != Objective::NextToken {
            let cause = "post-training over a shared sequence is not planned";
            return refused("--cp", cause, "leave it out");
        }
        if self.attention == Attention::Eager {
            let cause = "ranks share a sequence through sdpa alone, as `Trainer` checks";
            return refused("--attention", cause, "use sdpa, or leave out --cp");
        }
        if self.padded {
            let cause = "attention over a shared sequence takes no mask, so padding would be attended to";
            return refused("--attention-mask", cause, "use none with packed sequences, or leave out --cp");
        }
        Ok(())
    }
}

/// Refuses what a model, or a length, cannot do on ranks that share a sequence.
pub(crate) fn check(arch: &Architecture, options: &Options) -> Result<(), Problem> {
    let (shape, family) = (&arch.shape, arch.family.model_type);
    let length = options.length(shape);
    let Some(ring) = options.ring(length) else { return Ok(()) };
    if ["gpt2", "gpt_neox"].contains(&family) {
        let cause = format!(
            "accelerate drops the masks of modules called self_attn, those of {family} have another name, and \
             attention over a shared sequence takes no mask"
        );
        return refused("--cp", cause, "leave it out for this model");
    }
    if shape.eager_only {
        let cause =
            "its scores are capped, which sdpa does not, and ranks share a sequence through sdpa alone";
        return refused("--cp", cause, "leave it out for this model");
    }
    if shape.window.is_some() {
        let cause = "accelerate refuses layers that look through a window, for it drops their masks";
        return refused("--cp", cause, "leave it out, or set `sliding_window` to null in config.json");
    }
    let ranks = u64::from(ring.group.ranks);
    if !length.is_multiple_of(ranks) {
        let cause = format!("{length} tokens / cp {ranks} = {} and {} over", length / ranks, length % ranks);
        return refused("--cp", cause, "use a --seq-len that --cp divides");
    }
    let parts = if ring.is_balanced { 2 * ranks } else { ranks };
    if !length.is_multiple_of(parts) {
        let cause = format!(
            "a rank has two parts, and {length} tokens / (2 × cp {ranks}) leave {} over",
            length % parts
        );
        return refused("--cp-load-balance", cause, "use a --seq-len that 2 × --cp divides, or leave it out");
    }
    match Attend::choose(shape, options) {
        Attend::Sdpa { kernel: SdpaKernel::Math, .. } => {
            let cause = "no fused kernel takes grouped heads in this type, and torch goes round with fused kernels alone";
            refused("--cp", cause, "use a half type on sm80 or later, or --expand-kv")
        }
        Attend::Sdpa { kernel: SdpaKernel::MemoryEfficient, .. }
            if !(length / parts).is_multiple_of(LOG_SUMS) =>
        {
            let cause = format!(
                "the memory-efficient kernel pads log-sums to a multiple of {LOG_SUMS}, and {length} / {parts} = {} is none, so torch \
                 could not merge them",
                length / parts
            );
            refused("--cp", cause, format!("use a --seq-len that {} divides", LOG_SUMS * parts))
        }
        _ => Ok(()),
    }
}
