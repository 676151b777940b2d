//! `torch.nn.utils.clip_grad_norm_` (`torch/nn/utils/clip_grad.py`): a norm for each gradient, the norm of those, and the
//! factor; gradients are scaled in place. As torch's tracker runs it, a gradient at a time; a card takes `_foreach_norm`,
//! which allocates the same.

use super::{by_dtype, has_whole_gradient, passes, redistributed};
use crate::nn::{Parameter, Spread};
use crate::torch::{Dtype, Layout, Tensor, Torch};
use std::rc::Rc;

/// Clips groups of parameters as lists of tensors can take them. Of several the norms are joined, each group's own
/// (`Trainer._mixed_mesh_grad_norm`, transformers). `shards` are the ranks that a spread parameter's part is shared out over.
pub(crate) fn clip_grad_norm(groups: &[Vec<Parameter>], shards: impl Fn(Spread) -> u32) {
    let dimensions: Vec<usize> = groups.iter().map(|group| dimensions(group, &shards)).collect();
    match (groups, &*dimensions) {
        ([], _) => {}
        ([together], [0]) => clip_together(together),
        (groups, dimensions) => clip_by_mesh(groups, dimensions),
    }
}

/// Over how many dimensions of its mesh a group's squares are summed: those with more than one rank.
fn dimensions(group: &[Parameter], shards: impl Fn(Spread) -> u32) -> usize {
    let spread = group.first().map_or(Spread::None, |parameter| parameter.spread);
    usize::from(spread != Spread::None) + usize::from(shards(spread) > 1)
}

/// A small tensor of the clipping.
fn make(torch: &Rc<Torch>, op: &'static str, sizes: &[u64], dtype: Dtype) -> Tensor {
    torch.launch(op);
    torch.empty(Layout::contiguous(sizes), dtype)
}

fn clip_by_mesh(groups: &[Vec<Parameter>], dimensions: &[usize]) {
    let Some(first) = groups.iter().flatten().next() else { return };
    let torch = first.tensor.torch();
    let dtypes = groups.iter().flatten().map(|p| p.tensor.dtype());
    let dtype = dtypes.fold(first.tensor.dtype(), Dtype::promote);
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let norm = |(group, dimensions): (&Vec<Parameter>, &usize)| total_norm(torch, group, *dimensions, dtype);
    let norms: Vec<Tensor> = groups.iter().zip(dimensions).map(norm).collect();
    let _total = (norms.len() > 1).then(|| {
        let _stacked = make(torch, "stack", &[count(norms.len())], dtype);
        make(torch, "linalg_vector_norm", &[], dtype)
    });
    for group in groups {
        let shifted = make(torch, "add.Tensor", &[], dtype);
        let inverse = make(torch, "reciprocal", &[], dtype);
        let _coefficient = make(torch, "mul.Tensor", &[], dtype);
        drop((shifted, inverse));
        let _clamped = make(torch, "clamp", &[], dtype);
        torch.launch("_foreach_mul_.Tensor");
        passes(torch, group, 2);
    }
}

/// `get_total_norm`; of DTensors each rank knows its part's, and squares are summed over the ranks of one dimension of the mesh
/// after the other (`full_tensor`; `_NormPartial`, `torch/distributed/tensor/_ops/_math_ops.py`).
fn total_norm(torch: &Rc<Torch>, group: &[Parameter], dimensions: usize, dtype: Dtype) -> Tensor {
    let sizes = [u64::try_from(group.len()).unwrap_or(u64::MAX)];
    let scalar = Layout::contiguous(&[]);
    passes(torch, group, 1);
    if dimensions == 0 {
        let norm = |p: &Parameter| make(torch, "linalg_vector_norm", &[], p.tensor.dtype());
        let _norms: Vec<Tensor> = group.iter().map(norm).collect();
        let _stacked = make(torch, "stack", &sizes, dtype);
        return make(torch, "linalg_vector_norm", &[], dtype);
    }
    let with_parts = group.iter().filter(|p| p.parts_of_gradient.is_some());
    let sums = redistributed(with_parts);
    torch.launch("_foreach_norm.Scalar");
    let _norms: Vec<Tensor> = group.iter().map(|p| torch.empty(scalar.clone(), p.tensor.dtype())).collect();
    // what every rank knows whole becomes a part of the sum
    drop(sums);
    let whole = group.iter().filter(|p| p.is_replicated || has_whole_gradient(p));
    let parts: Vec<Tensor> = whole.map(|_| make(torch, "div.Tensor", &[], dtype)).collect();
    let _stacked = make(torch, "stack", &sizes, dtype);
    drop(parts);
    let mut _roots = None;
    for _ in 0..dimensions {
        let squared = make(torch, "pow.Tensor_Scalar", &sizes, dtype);
        let summed = make(torch, "_c10d_functional.all_reduce", &sizes, dtype);
        let roots = make(torch, "pow.Tensor_Scalar", &sizes, dtype);
        drop((squared, summed));
        _roots = Some(roots);
    }
    make(torch, "linalg_vector_norm", &[], dtype)
}

fn clip_together(parameters: &[Parameter]) {
    let Some(first) = parameters.first() else { return };
    let torch = first.tensor.torch();
    let make = |op, sizes: &[u64], dtype: Dtype| make(torch, op, sizes, dtype);
    let norm = |p: &Parameter| make("linalg_vector_norm", &[], p.tensor.dtype());
    let norms: Vec<Tensor> = by_dtype(parameters).into_iter().flatten().map(norm).collect();
    passes(torch, parameters, 1);
    let dtypes = parameters.iter().map(|p| p.tensor.dtype());
    let dtype = dtypes.fold(first.tensor.dtype(), Dtype::promote);
    let stacked = make("stack", &[u64::try_from(norms.len()).unwrap_or(u64::MAX)], dtype);
    let _total = make("linalg_vector_norm", &[], dtype);
    drop((norms, stacked));
    let shifted = make("add.Tensor", &[], dtype);
    let inverse = make("reciprocal", &[], dtype);
    let _coefficient = make("mul.Tensor", &[], dtype);
    drop((shifted, inverse));
    let _clamped = make("clamp", &[], dtype);
    torch.launch("mul_.Tensor");
    passes(torch, parameters, 2);
}
