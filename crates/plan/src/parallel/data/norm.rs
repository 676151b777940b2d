//! What DeepSpeed does with gradients before it steps them: a look for what is not finite, a norm of each in fp64, and of these
//! the norm of all, by which they are scaled. All of it are scalars of a block each, but for the gradient in fp64.

use crate::torch::{Dtype, Layout, Tensor, Torch};
use peakledger_core::Category;
use std::rc::Rc;

/// A gradient that is looked at: how many numbers, and whether it is counted in the norm (padding is not).
pub(super) struct Looked {
    pub(super) numbers: u64,
    pub(super) dtype: Dtype,
    pub(super) is_counted: bool,
}

fn make(torch: &Rc<Torch>, op: &'static str, sizes: &[u64], dtype: Dtype) -> Tensor {
    torch.launch(op);
    torch.empty(Layout::contiguous(sizes), dtype)
}

/// A scalar.
fn scalar(torch: &Rc<Torch>, op: &'static str, dtype: Dtype) -> Tensor {
    make(torch, op, &[], dtype)
}

/// `torch.isfinite`: `(x == x) * (x.abs() != inf)`.
fn is_finite(torch: &Rc<Torch>, sizes: &[u64], dtype: Dtype) -> Tensor {
    let _magnitude = make(torch, "abs", sizes, dtype);
    let _is_bounded = make(torch, "ne.Scalar", sizes, Dtype::Bool);
    let _is_number = make(torch, "eq.Tensor", sizes, Dtype::Bool);
    make(torch, "mul.Tensor", sizes, Dtype::Bool)
}

/// Whether anything is not finite, and all ranks' say on it (`has_overflow_partitioned_grads_serial`,
/// `deepspeed/runtime/zero/stage_1_and_2.py`; `has_inf_or_nan`, `deepspeed/runtime/utils.py`).
pub(super) fn check_overflow(torch: &Rc<Torch>, gradients: &[Looked]) {
    let count = make(torch, "zeros", &[1], Dtype::F32);
    for Looked { numbers, dtype, .. } in gradients {
        let extreme_is_finite = |op| {
            let _extreme = scalar(torch, op, *dtype);
            torch.moves(numbers.saturating_mul(dtype.width()));
            is_finite(torch, &[], *dtype)
        };
        let [largest, smallest] = ["amax", "amin"].map(extreme_is_finite);
        let both = scalar(torch, "logical_and", Dtype::Bool);
        drop((largest, smallest));
        let _is_not = scalar(torch, "logical_not", Dtype::Bool);
        drop(both);
        torch.launch("add_.Tensor");
    }
    let _found = make(torch, "_to_copy", &[1], Dtype::Bool);
    drop(count);
    let _as_byte = make(torch, "_to_copy", &[1], Dtype::Byte);
    torch.launch("allreduce_");
}

/// The norm of a gradient, taken in fp64 (`get_norm_dtype`, `deepspeed/runtime/zero/utils.py`).
pub(super) fn norm_of(torch: &Rc<Torch>, gradient: &Layout, dtype: Dtype) -> Tensor {
    torch.launch("_to_copy");
    torch.moves(gradient.numel().saturating_mul(dtype.width()));
    let _in_fp64 = torch.empty(gradient.clone(), Dtype::F64);
    scalar(torch, "linalg_vector_norm", Dtype::F64)
}

/// The norm of those over all ranks (`get_grad_norm_direct` of stages 1 and 2).
pub(super) fn norm_over_ranks(torch: &Rc<Torch>, gradients: &[Looked]) -> Tensor {
    let sum = sum_of_squares(torch, gradients);
    let summed = scalar(torch, "_to_copy", Dtype::F32);
    drop(sum);
    torch.launch("allreduce_");
    let total = scalar(torch, "pow.Tensor_Scalar", Dtype::F32);
    drop(summed);
    mask_not_finite(torch);
    total
}

/// The same in stage 3, which stays in fp64 (`stage3.py`).
pub(super) fn norm_in_fp64(torch: &Rc<Torch>, gradients: &[Looked]) -> Tensor {
    let sum = sum_of_squares(torch, gradients);
    torch.launch("allreduce_");
    let _total = scalar(torch, "pow.Tensor_Scalar", Dtype::F64);
    drop(sum);
    let _mask = not_finite(torch, Dtype::F64);
    let _instead = scalar(torch, "lift_fresh", Dtype::F32);
    scalar(torch, "where.self", Dtype::F64)
}

fn sum_of_squares(torch: &Rc<Torch>, gradients: &[Looked]) -> Tensor {
    let counted = gradients.iter().filter(|gradient| gradient.is_counted);
    let norm = |of: &Looked| norm_of(torch, &Layout::contiguous(&[of.numbers]), of.dtype);
    let norms: Vec<Tensor> = counted.map(norm).collect();
    let sizes = [u64::try_from(norms.len()).unwrap_or(u64::MAX)];
    let stacked = make(torch, "stack", &sizes, Dtype::F64);
    let _squared = make(torch, "pow.Tensor_Scalar", &sizes, Dtype::F64);
    drop(stacked);
    scalar(torch, "sum", Dtype::F64)
}

/// `mask_nan_or_inf_with_val_inplace`.
fn mask_not_finite(torch: &Rc<Torch>) {
    let _mask = not_finite(torch, Dtype::F32);
    let _instead = scalar(torch, "lift_fresh", Dtype::F32);
    torch.launch("masked_fill_.Tensor");
}

/// `x.isnan().logical_or(x.isinf())`, with all of it there until the caller is done.
fn not_finite(torch: &Rc<Torch>, dtype: Dtype) -> [Tensor; 3] {
    let magnitude = scalar(torch, "abs", dtype);
    let is_infinite = scalar(torch, "eq.Scalar", Dtype::Bool);
    drop(magnitude);
    let is_no_number = scalar(torch, "ne.Tensor", Dtype::Bool);
    [is_infinite, is_no_number, scalar(torch, "logical_or", Dtype::Bool)]
}

/// The norm of the groups' norms (`combine_grad_norm_groups`, `deepspeed/runtime/utils.py`).
pub(super) fn combined(torch: &Rc<Torch>, of_groups: &[Tensor]) -> Tensor {
    let dtype = of_groups.first().map_or(Dtype::F32, Tensor::dtype);
    let sizes = [u64::try_from(of_groups.len()).unwrap_or(u64::MAX)];
    let _stacked = make(torch, "stack", &sizes, dtype);
    let _is_invalid = is_invalid(torch, &sizes, dtype);
    let _combined = scalar(torch, "linalg_vector_norm", dtype);
    let _infinite = scalar(torch, "full_like", dtype);
    scalar(torch, "where.self", dtype)
}

/// Whether one of some norms is none: `(~isfinite(norm) | (norm < 0)).any()`.
fn is_invalid(torch: &Rc<Torch>, sizes: &[u64], dtype: Dtype) -> Tensor {
    let is_finite = is_finite(torch, sizes, dtype);
    let is_not = make(torch, "bitwise_not", sizes, Dtype::Bool);
    drop(is_finite);
    let is_negative = make(torch, "lt.Scalar", sizes, Dtype::Bool);
    let _either = make(torch, "bitwise_or.Tensor", sizes, Dtype::Bool);
    drop((is_not, is_negative));
    scalar(torch, "any", Dtype::Bool)
}

/// The norm without the loss scale, which the engine is asked for after the step (`get_global_grad_norm`).
pub(super) fn unscaled(torch: &Rc<Torch>, scaled: &Tensor) -> Tensor {
    drop(is_invalid(torch, &[], scaled.dtype()));
    let norm = scalar(torch, "div.Tensor", scaled.dtype());
    label(&norm);
    norm
}

/// It stays until the next step's has come: the engine and its optimizer both have it.
pub(super) fn kept(torch: &Rc<Torch>, norm: Option<Tensor>) -> Option<Tensor> {
    norm.map(|norm| {
        let dtype = norm.dtype();
        drop(norm);
        torch.once(|| {
            let kept = scalar(torch, "alias", dtype);
            label(&kept);
            kept
        })
    })
}

fn label(norm: &Tensor) {
    norm.rename(Category::Gradient, "norm of all gradients");
}

/// Scales a gradient by the norm of all, where it is clipped (`unscale_and_clip_grads`).
pub(super) fn clip(torch: &Rc<Torch>, scaled: &Tensor, gradient: &Tensor) {
    let make = |op| scalar(torch, op, scaled.dtype());
    let unscaled = make("div.Tensor");
    let shifted = make("add.Tensor");
    drop(unscaled);
    let ratio = make("div.Tensor");
    drop(shifted);
    let _clamped = make("clamp");
    drop(ratio);
    let _combined = make("mul.Tensor");
    let inverse = make("reciprocal");
    let _factor = make("mul.Tensor");
    drop(inverse);
    torch.launch("mul_.Tensor");
    torch.reads(&[gradient, gradient]); // and writes it
}

/// Stages 1 and 2 look once more whether the norm is one before they clip by it.
pub(super) fn check(torch: &Rc<Torch>, scaled: &Tensor) {
    drop(is_invalid(torch, &[], scaled.dtype()));
}

/// Ranks sum the norms of gradients on the host by way of the card (`complete_grad_norm_calculation_for_cpu_offload`).
pub(super) fn summed_for_host(torch: &Rc<Torch>) {
    let _total = make(torch, "lift_fresh", &[1], Dtype::F32);
    torch.launch("allreduce_");
}

/// The same in stage 3, where the squares are tensors of the card too.
pub(super) fn summed_on_card(torch: &Rc<Torch>, gradients: usize) {
    let mut sum = None;
    for _ in 0..gradients {
        let _squared = scalar(torch, "pow.Tensor_Scalar", Dtype::F64);
        sum = Some(scalar(torch, "add.Tensor", Dtype::F64));
    }
    let _over_ranks = make(torch, "lift_fresh", &[1], Dtype::F32);
    torch.launch("allreduce_");
    let _total = scalar(torch, "pow.Tensor_Scalar", Dtype::F32);
    drop(sum);
    mask_not_finite(torch);
}
