//! `CrossEntropyFunction` (`cross_entropy.py`, `triton/cross_entropy.py`): the loss of each token from logits that are split by
//! vocabulary. The kernel writes the gradient over the logits, so that no other tensor of their size is made.

use super::Shared;
use crate::torch::autograd::record;
use crate::torch::network::Collective;
use crate::torch::{Dtype, Layout, Tensor};
use smallvec::smallvec;

/// The losses `[s, b]` of logits `[s, b, vocabulary / tp]`.
pub(crate) fn parallel_cross_entropy(logits: &Tensor, shared: &Shared) -> Tensor {
    let torch = shared.torch();
    let [length, batch] = [logits.size(0), logits.size(1)];
    let rows = length.saturating_mul(batch);
    let zeros = |elements: u64| {
        torch.launch("zeros");
        torch.empty(Layout::contiguous(&[elements]), Dtype::F32)
    };
    let losses = zeros(rows);
    let statistics = zeros(rows.saturating_mul(3)); // maximum, sum and the target's logit
    torch.launch("online_softmax_kernel");
    torch.reads(&[logits]);
    let gathered = (shared.tp > 1).then(|| {
        let gathered = zeros(rows.saturating_mul(3).saturating_mul(u64::from(shared.tp)));
        torch.launch("all_gather_into_tensor");
        torch.communicates(Collective::AllGather, gathered.bytes(), shared.tp_peers);
        gathered
    });
    torch.launch("cross_entropy_kernel");
    torch.reads(&[logits, logits]); // and writes them
    drop((statistics, gathered));
    let losses = losses.alias(Layout::contiguous(&[length, batch]));
    let saved = logits.save();
    record(losses, &[logits], move |grad| {
        let gradient = saved.unpack();
        grad.torch().launch("element_mul_kernel");
        grad.torch().reads(&[&gradient, &gradient]);
        smallvec![Some(gradient)]
    })
}
