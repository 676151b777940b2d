//! The ops: each allocates its outputs under torch's own name for it, saves what `derivatives.yaml` says, and knows what
//! its backward formula allocates, in order.
//!
//! An argument given by value is let go of when the op returns, as Python lets go of a temporary; one given by reference
//! stays. A new op is one function here.

mod attention;
mod collectives;
mod fused_loss;
mod indexing;
mod log_probs;
mod loss;
mod loss_parallel;
mod matmul;
mod norm;
mod packed;
mod pointwise;
mod reduce;
mod ring;
mod routing;
mod view;

pub(crate) use attention::{SdpaKernel, attention_flops, scaled_dot_product_attention};
pub(crate) use collectives::{
    Group, all_gather, all_gather_for_parts, all_reduce, all_reduce_in_place, all_reduced_gradient,
    all_to_all, chunk, from_local, gradient_reduced_in_place, part_like, reduce_in_place, reduce_scatter,
};
pub(crate) use fused_loss::fused_linear_cross_entropy;
pub(crate) use indexing::{
    additive_mask, arange, causal_mask, constant_pad_last, embedding, vocabulary_parallel_embedding,
};
pub(crate) use log_probs::{all_but_last, chunked_log_probs};
pub(crate) use loss::{log_softmax, nll_loss};
pub(crate) use loss_parallel::{log_softmax_parallel, nll_loss_parallel};
pub(crate) use matmul::{addmm, grouped_mm, linear, linear_of_parts, matmul, matmul_4bit, matmul_8bit};
pub(crate) use norm::layer_norm;
pub(crate) use packed::{packed_mask, packed_sequences};
pub(crate) use pointwise::{
    add, add_scalar, bitwise_not, cos, div, div_in_place, div_scalar, dropout, gelu, gelu_fast, gelu_new,
    masked_fill, masked_fill_in_place, mul, mul_scalar, neg, ones_like, pow2, relu, rsqrt, sigmoid, silu,
    sin, sub, tanh, to, to_copy,
};
pub(crate) use reduce::{mean_last, softmax, softmax_fp32, sum, sum_to};
pub use ring::RotateMethod;
pub(crate) use ring::{AROUND, GRADIENTS_AROUND, Ring};
pub(crate) use routing::{
    at_least, cumsum, equal, exchange_counts, floor_divide, gather, greater, histc, index,
    index_add_in_place, inverse_permutation, nonzero, one_hot, ones_column, put_rows, received_ids,
    scatter_in_place, select, sort, sum_of_rows, topk, zeros_like,
};
pub(crate) use view::{
    cat_last, clone, contiguous, copied_side_by_side, every_other_last, expand, expand_heads, grown, reshape,
    slice_last, split_last, transpose, unsqueeze,
};

use super::autograd::Grads;
use super::{Dtype, Layout, Tensor, Torch};
use smallvec::smallvec;
use std::rc::Rc;

/// What an op puts out.
fn output(torch: &Rc<Torch>, op: &'static str, layout: Layout, dtype: Dtype) -> Tensor {
    torch.launch(op);
    torch.empty(layout, dtype)
}

/// The gradients of an op with one input.
fn one(grad: Tensor) -> Grads {
    smallvec![Some(grad)]
}
