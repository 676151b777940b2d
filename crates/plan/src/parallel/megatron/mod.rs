//! What Megatron-Core wraps around a model: `DistributedDataParallel` with its contiguous gradients, and the optimizers that step
//! what lies in them, with what ranks send each other for both. What it does not do is refused in [`check`].

mod buffer;
mod check;
mod names;
mod notes;
mod reduce;

pub(crate) use buffer::Buffer;
pub(crate) use check::check;
pub(crate) use names::Names;
pub(crate) use notes::{NOT_COUNTED, assumptions};
pub(crate) use reduce::{finalize_model_grads, gather_parameters, groups};
