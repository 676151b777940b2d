//! `SwiGLUFunction` (`megatron/core/fusions/fused_bias_swiglu.py`): `silu(gate) * up` of both side by side, in one compiled
//! kernel. Saves its input and computes the rest again in backward. That of experts is weighed by what the router gave each row
//! (`WeightedSwiGLUFunction`).

use super::with_last;
use crate::torch::autograd::record;
use crate::torch::{Layout, Tensor};
use smallvec::smallvec;

/// `[…, 2 f]` to `[…, f]`.
pub(crate) fn swiglu(x: &Tensor) -> Tensor {
    let torch = x.torch();
    torch.launch("swiglu");
    torch.reads(&[x]);
    let output = torch.empty(Layout::contiguous(&with_last(x, x.size(-1) / 2)), x.dtype());
    let saved = x.save();
    record(output, &[x], move |grad| {
        let x = saved.unpack();
        grad.torch().launch("swiglu_back");
        grad.torch().reads(&[grad, &x]);
        smallvec![Some(grad.torch().empty(x.layout().packed(), x.dtype()))]
    })
}

/// The same, each row of `[rows, 2 f]` times its weight; saves the weights too.
pub(crate) fn weighted_swiglu(x: &Tensor, weights: &Tensor) -> Tensor {
    let torch = x.torch();
    torch.launch("weighted_swiglu");
    torch.reads(&[x, weights]);
    let output = torch.empty(Layout::contiguous(&with_last(x, x.size(-1) / 2)), x.dtype());
    let saved = [x.save(), weights.save()];
    record(output, &[x, weights], move |grad| {
        let [x, weights] = saved.each_ref().map(|saved| saved.unpack());
        let torch = grad.torch();
        torch.launch("weighted_swiglu_back");
        torch.reads(&[grad, &x, &weights]);
        let for_x = torch.empty(x.layout().packed(), x.dtype());
        smallvec![Some(for_x), Some(torch.empty(weights.layout().packed(), weights.dtype()))]
    })
}
