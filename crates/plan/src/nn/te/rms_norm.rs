//! `RMSNorm` (`ops/basic/rmsnorm.py`) by the kernels of `csrc/extensions/normalization.cpp`. Saves its input and the fp32
//! factor of each row.

use crate::nn::Builder;
use crate::torch::autograd::{record, recorded};
use crate::torch::{Dtype, Layout, ModuleId, Tensor, ops};
use smallvec::smallvec;

/// A norm over the last dimension.
pub(crate) struct RmsNorm {
    module: ModuleId,
    weight: Tensor,
}

impl RmsNorm {
    pub(crate) fn new(build: &mut Builder, parent: ModuleId, name: &'static str, width: u64) -> RmsNorm {
        let module = build.module(parent, name);
        RmsNorm { module, weight: build.parameter(module, "weight", &[width]) }
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        x.torch().inside(self.module, || {
            let x = ops::contiguous(x);
            let (output, rsigma) = normed(&x, &self.weight);
            let inputs = [&x, &self.weight];
            if !recorded(x.torch(), &inputs) {
                return output;
            }
            let (saved, weight) = ([x.save(), rsigma.save()], self.weight.clone());
            record(output, &inputs, move |grad| {
                let [x, rsigma] = saved.each_ref().map(|saved| saved.unpack());
                let (for_x, for_weight) = normed_backward(&ops::contiguous(grad), &x, &rsigma, &weight);
                smallvec![Some(for_x), Some(for_weight)]
            })
        })
    }
}

/// `rmsnorm_fwd`: the normed rows and the factor of each.
pub(super) fn normed(x: &Tensor, weight: &Tensor) -> (Tensor, Tensor) {
    let torch = x.torch();
    torch.launch("rmsnorm_fwd");
    torch.reads(&[x, weight]);
    let rows = x.layout().numel() / x.size(-1).max(1);
    let rsigma = torch.empty(Layout::contiguous(&[rows]), Dtype::F32);
    let output = torch.empty(x.layout().packed(), x.dtype());
    (output, rsigma)
}

/// `rmsnorm_bwd`: the gradients of input and weight.
pub(super) fn normed_backward(
    grad: &Tensor,
    x: &Tensor,
    rsigma: &Tensor,
    weight: &Tensor,
) -> (Tensor, Tensor) {
    let torch = x.torch();
    torch.launch("rmsnorm_bwd");
    torch.reads(&[grad, x, rsigma, weight]);
    let for_x = torch.empty(x.layout().packed(), x.dtype());
    (for_x, torch.empty(weight.layout().clone(), weight.dtype()))
}
