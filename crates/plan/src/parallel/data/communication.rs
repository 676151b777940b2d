//! What ranks talk through: buffers of their own, and what they send.

use crate::torch::network::{Collective, Peers};
use crate::torch::{Dtype, Layout, Tensor, Torch};
use peakledger_core::Category;
use std::rc::Rc;

/// A buffer of that many numbers, which the running op makes.
pub(super) fn buffer(torch: &Rc<Torch>, numbers: u64, dtype: Dtype, name: &'static str) -> Tensor {
    let buffer = torch.empty(Layout::contiguous(&[numbers]), dtype);
    buffer.rename(Category::CommunicationBuffer, name);
    buffer
}

/// Ranks sum that many bytes, all in the place where they are.
pub(super) fn all_reduce(torch: &Torch, bytes: u64, peers: Peers) {
    torch.launch("allreduce_");
    torch.communicates(Collective::AllReduce, bytes, peers);
}
