//! How much a plan may be: the tokens of a micro-batch, the layers of a step, the runs of experts.

use super::{Options, refused};
use peakledger_input::Problem;

/// Tokens of a micro-batch beyond any in use; keeps their product with a width far from 64 bits.
pub(crate) const MOST_TOKENS: u64 = 1 << 32;
/// Layers × micro-batches: those that are alike are run a few times, and written down for what asks for every storage, some
/// 200 of 56 B for each.
const MOST_BLOCKS: u64 = 1 << 16;
/// The same for all stages of a pipeline, each of which is planned.
const MOST_BLOCKS_OF_STAGES: u64 = 1 << 18;

/// Experts × layers × micro-batches that run one after the other: a plan records some 60 storages for each.
const MOST_EXPERT_RUNS: u64 = 1 << 16;

impl Options {
    /// Checks that a step has tokens, and not too many at once.
    pub(super) fn check_batch(&self, seq_len: u64) -> Result<(), Problem> {
        self.check_not_empty()?;
        if seq_len == 0 {
            return refused("--seq-len", "a sequence of 0 tokens", "use 1 or more");
        }
        if self.micro_batch_size.saturating_mul(seq_len) > MOST_TOKENS {
            let cause = format!("{} × {seq_len} tokens are more than 2^32", self.micro_batch_size);
            return refused("--micro-batch-size", cause, "check it and --seq-len");
        }
        Ok(())
    }

    /// Checks that a step has any sequences.
    pub(crate) fn check_not_empty(&self) -> Result<(), Problem> {
        if self.micro_batch_size == 0 {
            return refused("--micro-batch-size", "a micro-batch of 0 sequences", "use 1 or more");
        }
        if self.gradient_accumulation_steps == 0 {
            return refused("--gradient-accumulation-steps", "a step of 0 micro-batches", "use 1 or more");
        }
        Ok(())
    }

    /// Checks that what is planned stays within bounds, of a stage and of all stages. Says how many layers a stage runs, one
    /// micro-batch after the other.
    pub(super) fn check_blocks(&self, layers: u32) -> Result<u64, Problem> {
        let parallel = &self.parallel;
        let (stages, steps) = (parallel.pp.max(1), self.gradient_accumulation_steps);
        let own = [parallel.first_stage_layers, parallel.last_stage_layers].into_iter().flatten();
        let of_stage = own.fold(layers.div_ceil(stages), u32::max).min(layers);
        let each = match stages {
            1 => format!("{layers} layers"),
            _ => format!("{of_stage} layers of a stage and its ends"),
        };
        // beside its layers a stage runs what it receives and what it sends
        let run = u64::from(of_stage) + u64::from(stages > 1);
        let blocks = run.saturating_mul(u64::from(steps));
        if blocks > MOST_BLOCKS {
            let cause = format!("{each} × {steps} micro-batches are more than {MOST_BLOCKS} blocks");
            let mend = "use fewer: from the second on, micro-batches are alike";
            return refused("--gradient-accumulation-steps", cause, mend);
        }
        if blocks.saturating_mul(u64::from(stages)) > MOST_BLOCKS_OF_STAGES {
            let cause = format!(
                "{stages} stages × {each} × {steps} micro-batches are more than {MOST_BLOCKS_OF_STAGES} blocks"
            );
            return refused("--pp", cause, "use fewer stages or micro-batches");
        }
        Ok(blocks)
    }
}

/// Checks that so many experts can run one after the other, in each of so many layers of micro-batches.
pub(super) fn within_expert_runs(experts: u64, blocks: u64) -> Result<(), Problem> {
    if blocks.saturating_mul(experts) > MOST_EXPERT_RUNS {
        let cause =
            format!("{experts} experts in {blocks} blocks are more than {MOST_EXPERT_RUNS} runs of one");
        return refused("--experts", cause, "use grouped_mm, or fewer micro-batches");
    }
    Ok(())
}
