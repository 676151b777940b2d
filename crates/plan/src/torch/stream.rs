//! The CUDA streams that training frameworks allocate on. Torch's allocator gives a block out again on its stream alone, so
//! what is allocated elsewhere than the computation decides what is reserved, not what is allocated.
//!
//! A block that another stream uses and that nothing holds is told to the allocator by `record_stream`, and waits for that
//! stream when it is given back. How long is not known from a plan: it is taken to be free at once.

use super::Torch;

/// The stream that a storage is allocated on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stream {
    /// The one that the model runs on, and all that names no other.
    #[default]
    Compute,
    /// Transformer Engine's, beside which a context parallel rank attends: one for all layers
    /// (`TEDotProductAttention.cp_stream`, `megatron/core/extensions/transformer_engine.py`).
    ContextParallel,
    /// Where parameters are gathered: FSDP2's `all_gather_copy_in_stream`
    /// (`torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`), ZeRO 3's `__allgather_stream`
    /// (`deepspeed/runtime/zero/parameter_offload.py`).
    AllGather,
    /// Where gradients are reduced: FSDP2's `reduce_scatter_stream`, DeepSpeed's `reduction_stream`
    /// (`deepspeed/runtime/zero/stage_1_and_2.py`) and `reduce_and_partition_stream` (`stage3.py`).
    Reduce,
    /// Where FSDP2 sums what several sets of ranks have reduced: `all_reduce_stream`.
    AllReduce,
    /// Where saved tensors come back from the host ahead of their use: `OffloadActivations.s1`
    /// (`trl/models/activation_offloading.py`).
    Copy,
}

impl Stream {
    /// A number of its own; the compute stream has 0.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl Torch {
    /// Runs `body` with its tensors allocated on that stream (`torch.cuda.stream`).
    pub(crate) fn on_stream<T>(&self, stream: Stream, body: impl FnOnce() -> T) -> T {
        let outer = self.stream.replace(stream);
        let result = body();
        self.stream.set(outer);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torch::{Dtype, Layout};

    #[test]
    fn tensors_lie_on_the_stream_that_they_are_made_on() {
        let torch = Torch::new(0, None);
        torch.launch("empty");
        let make = || torch.empty(Layout::contiguous(&[1]), Dtype::F32);
        let outside = make();
        let inside =
            torch.on_stream(Stream::Copy, || (make(), torch.on_stream(Stream::Reduce, make), make()));
        let after = (make(), outside.alias(Layout::contiguous(&[1])));
        let streams: Vec<Stream> = torch.tape.borrow().stored.iter().map(|stored| stored.stream).collect();
        let [compute, copy, reduce] = [Stream::Compute, Stream::Copy, Stream::Reduce];
        assert_eq!(streams, [compute, copy, reduce, copy, compute]);
        drop((outside, inside, after));
    }
}
