//! Reductions and softmax.

use super::pointwise::{like, to};
use super::view::reshape;
use super::{one, output};
use crate::torch::autocast::raised;
use crate::torch::autograd::{record, recorded};
use crate::torch::{Dtype, Layout, Tensor, kernel};
use smallvec::SmallVec;
use std::borrow::Borrow;

/// `a.mean(-1, keepdim=True)`. Saves nothing; backward expands the gradient and divides it.
pub(crate) fn mean_last(a: impl Borrow<Tensor>) -> Tensor {
    let a = a.borrow();
    let mean = like("mean.dim", a, last_one(a.layout()));
    let sizes = a.layout().packed();
    record(mean, &[a], move |grad| {
        let expanded = grad.layout().expand(sizes.sizes());
        one(like("div.Scalar", grad, expanded.preserved()))
    })
}

/// `a.sum(dim, keepdim)`, in fp32 under autocast. Saves nothing; backward expands the gradient.
pub(crate) fn sum(a: impl Borrow<Tensor>, dim: usize, keepdim: bool) -> Tensor {
    let a = a.borrow();
    let dtype = if a.torch().autocast_dtype().is_some() { Dtype::F32 } else { a.dtype() };
    let full = a.layout().packed();
    let mut kept: SmallVec<[u64; 5]> = SmallVec::from_slice(a.sizes());
    if let Some(size) = kept.get_mut(dim) {
        *size = 1;
    }
    let mut sizes = kept.clone();
    if !keepdim && dim < sizes.len() {
        sizes.remove(dim);
    }
    let sum = output(a.torch(), "sum.dim_IntList", Layout::contiguous(&sizes), dtype);
    a.torch().reads(&[a]);
    record(sum, &[a], move |grad| {
        let grad = reshape(grad, &kept);
        one(grad.alias(grad.layout().expand(full.sizes())))
    })
}

fn last_one(layout: &Layout) -> Layout {
    layout.packed().narrow_last(1).packed()
}

/// A gradient summed down to the sizes of what was broadcast (`at::sum_to`).
pub(crate) fn sum_to(a: Tensor, sizes: &[u64]) -> Tensor {
    let ahead = a.sizes().len().saturating_sub(sizes.len());
    let kept: SmallVec<[u64; 5]> =
        (0..a.sizes().len()).map(|dim| if dim < ahead { 1 } else { size_at(sizes, dim - ahead) }).collect();
    let sum = like("sum.dim_IntList", &a, Layout::contiguous(&kept));
    drop(a);
    sum.alias(Layout::contiguous(sizes))
}

fn size_at(sizes: &[u64], dim: usize) -> u64 {
    sizes.get(dim).copied().unwrap_or(1)
}

/// `F.softmax(a, dim=-1, dtype=torch.float32)`. Saves its result. On CUDA a fp16 input goes straight into the kernel
/// (`aten/src/ATen/native/SoftMax.cpp`), any other one is cast first.
pub(crate) fn softmax_fp32(a: impl Borrow<Tensor>) -> Tensor {
    let a = a.borrow();
    let converts = a.dtype() == Dtype::F16;
    let input = if converts { a.clone() } else { to(a, Dtype::F32) };
    softmax_as("_softmax", &input, Dtype::F32)
}

/// `F.softmax(a, dim=-1)` in the type of `a`; in fp32 under autocast. Saves its result.
pub(crate) fn softmax(a: &Tensor) -> Tensor {
    let a = raised(a);
    softmax_as("_softmax", &a, a.dtype())
}

/// `at::_safe_softmax(a, -1)`. Saves its result.
pub(super) fn safe_softmax(a: &Tensor) -> Tensor {
    softmax_as("_safe_softmax", a, a.dtype())
}

fn softmax_as(op: &'static str, a: &Tensor, dtype: Dtype) -> Tensor {
    let result = output(a.torch(), op, a.layout().packed(), dtype);
    a.torch().reads(&[a]);
    if !recorded(a.torch(), &[a]) {
        return result;
    }
    let saved = result.save();
    let from = a.dtype();
    record(result, &[a], move |grad| {
        let result = saved.unpack();
        let for_a = output(grad.torch(), "_softmax_backward_data", result.layout().packed(), from);
        grad.torch().reads(&[grad, &result]);
        let _scratch = kernel::softmax_backward(grad, &result);
        one(for_a)
    })
}
