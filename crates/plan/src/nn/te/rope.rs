//! `FusedRoPEFunc` (`attention/rope.py`): queries or keys turned by one kernel that takes any strides. Saves the fp32 angles,
//! which are the same for all layers.

use crate::torch::Tensor;
use crate::torch::autograd::record;
use smallvec::smallvec;

/// `x` of `[s, b, heads, width]` turned by `angles` of `[s, width]`.
pub(crate) fn fused_rope(x: &Tensor, angles: &Tensor) -> Tensor {
    let torch = x.torch();
    let turn = |op, x: &Tensor| {
        let torch = x.torch();
        torch.launch(op);
        torch.reads(&[x]);
        torch.empty(x.layout().packed(), x.dtype())
    };
    let turned = turn("fused_rope_forward", x);
    torch.reads(&[angles]);
    let angles = angles.save();
    record(turned, &[x], move |grad| {
        let _angles = angles.unpack();
        smallvec![Some(turn("fused_rope_backward", grad))]
    })
}
