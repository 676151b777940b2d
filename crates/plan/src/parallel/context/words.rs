//! What ranks that share a sequence are taken to do, in words, and what their buffers are for.

use crate::parallel::Sharding;
use crate::plan::Plan;
use crate::torch::ops::{AROUND, GRADIENTS_AROUND, RotateMethod};

const SOURCE: &str = "torch/distributed/tensor/experimental/_context_parallel/_attention.py";

impl Plan {
    /// How ranks share a sequence, where they do.
    pub(crate) fn context_parallel(&self) -> Option<String> {
        let ring = self.options.ring(self.seq_len)?;
        let (ranks, rank) = (ring.group.ranks, ring.group.rank);
        let tokens = self.seq_len / u64::from(ranks);
        let rotates = match ring.rotate {
            RotateMethod::AllGather => "gathered from all ranks at once",
            RotateMethod::AllToAll => "passed from rank to rank",
        };
        let parts = match (ring.is_balanced, ring.has_a_gap()) {
            (false, _) => "tokens in a row, whose first ranks have less to attend to",
            (true, true) => {
                "tokens from the front and the back of the sequence; as no attention mask is passed, transformers takes the two \
                 parts for packed sequences and makes a mask of tokens × tokens that nothing uses (the last rank's parts meet, so \
                 it makes none)"
            }
            (true, false) => {
                "tokens from the front and the back of the sequence, which meet, so no mask is made"
            }
        };
        let by = match self.options.parallel.sharding {
            Sharding::Replicated => "torch's context_parallel beside DistributedDataParallel",
            _ => {
                "torch's context_parallel as accelerate and Trainer run it, parameters sharded over the same ranks too"
            }
        };
        Some(format!(
            "{ranks} ranks share a sequence, rank {rank} planned with {tokens} {parts}; {by}; keys and values {rotates}, what is \
             found merged in fp32; labels shifted before the inputs are cut, positions given for every row"
        ))
    }
}

/// What a buffer of that name is for, and where that was read.
pub(crate) fn rule(name: &str) -> Option<(&'static str, &'static str)> {
    Some(match name {
        AROUND => {
            ("keys and values side by side, the rank's own as they are sent and those that came", SOURCE)
        }
        GRADIENTS_AROUND => (
            "gradients of keys and values in fp32, on their way round to the rank that the keys are of",
            SOURCE,
        ),
        _ => return None,
    })
}
