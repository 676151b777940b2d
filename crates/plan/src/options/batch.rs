//! The sequences of a step, which are shared out over ranks and micro-batches, and steps that train alike.

use super::{Options, refused};
use peakledger_input::Problem;

impl Options {
    /// Sequences of a step, those of all ranks together.
    ///
    /// # Errors
    /// Says which sizes make no world.
    pub fn sequences(&self) -> Result<u64, Problem> {
        let of_a_rank = self.micro_batch_size.saturating_mul(u64::from(self.gradient_accumulation_steps));
        Ok(of_a_rank.saturating_mul(u64::from(self.mesh()?.dp)))
    }

    /// These options with as many micro-batches as make up a step of so many sequences.
    ///
    /// # Errors
    /// Says which sizes make no world, or that the sequences cannot be dealt out evenly.
    pub fn of_sequences(self, sequences: u64) -> Result<Options, Problem> {
        let dp = u64::from(self.mesh()?.dp);
        let at_once = self.micro_batch_size.saturating_mul(dp);
        let steps = sequences.checked_div(at_once);
        let steps = steps.filter(|steps| *steps > 0 && steps.saturating_mul(at_once) == sequences);
        match steps.and_then(|steps| u32::try_from(steps).ok()) {
            Some(gradient_accumulation_steps) => Ok(Options { gradient_accumulation_steps, ..self }),
            None => {
                let micro_batch = self.micro_batch_size;
                let are = if sequences == 1 { "sequence in a step is" } else { "sequences in a step are" };
                let cause = format!(
                    "{sequences} {are} no multiple of micro-batch {micro_batch} × dp {dp} = {at_once}"
                );
                refused("--micro-batch-size", cause, "use another micro-batch or batch")
            }
        }
    }

    /// Whether it trains as the other does, on as many sequences with the same arithmetic: what differs is when and where
    /// things are computed and kept.
    pub fn trains_as(&self, other: &Options) -> bool {
        let sequences = |o: &Options| o.sequences().ok();
        let types = |o: &Options| (o.weights(), o.compute(), o.parallel.data.reduce_dtype);
        let (mine, theirs) = (self, other);
        let alike = Options {
            micro_batch_size: theirs.micro_batch_size,
            gradient_accumulation_steps: theirs.gradient_accumulation_steps,
            optimizer_impl: theirs.optimizer_impl,
            attention: theirs.attention,
            expand_kv: theirs.expand_kv,
            recompute: theirs.recompute,
            loss_in_model: theirs.loss_in_model,
            fused_loss: theirs.fused_loss,
            offload: theirs.offload,
            offload_layers: theirs.offload_layers,
            offload_prefetch: theirs.offload_prefetch,
            hold_outputs: theirs.hold_outputs,
            parallel: theirs.parallel.clone(),
            ..mine.clone()
        };
        alike == *theirs && sequences(mine) == sequences(theirs) && types(mine) == types(theirs)
    }
}
