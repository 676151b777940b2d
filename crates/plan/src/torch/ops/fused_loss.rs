//! Head and loss as one op: Liger's `LigerFusedLinearCrossEntropyFunction`
//! (`liger_kernel/ops/fused_linear_cross_entropy.py`, 0.8.5).

use super::matmul::gemm;
use super::output;
use crate::torch::autocast::lowered;
use crate::torch::autograd::{record, recorded};
use crate::torch::cost::product_flops;
use crate::torch::{Dtype, Layout, Tensor};
use smallvec::smallvec;

/// The loss of `[rows, width]` hidden states through a head of `[vocabulary, width]`. Logits are made for so few rows at a
/// time that they take about as much as the hidden states; their gradients are brought through the head at once, so what is
/// kept for backward are the gradients of the hidden states and of the head.
///
/// `adds_half_into_fp32` says whether the card adds products of halves into a sum in fp32 (sm80 or later).
pub(crate) fn fused_linear_cross_entropy(
    hidden_states: &Tensor,
    weight: &Tensor,
    target: &Tensor,
    adds_half_into_fp32: bool,
) -> Tensor {
    let torch = hidden_states.torch().clone();
    let [rows, width, vocabulary] = [hidden_states.size(0), hidden_states.size(1), weight.size(0)];
    let make = |op, sizes: &[u64], dtype| output(&torch, op, Layout::contiguous(sizes), dtype);
    let times = vocabulary.div_ceil(width.max(1)).max(1);
    let piece = rows.div_ceil(times).next_power_of_two().min(rows).max(1);

    let for_hidden = make("zeros_like", &[rows, width], hidden_states.dtype());
    let for_weight = weight.requires_grad().then(|| make("zeros_like", &[vocabulary, width], weight.dtype()));
    let losses = make("zeros", &[rows], Dtype::F32);
    let mask = make("ne.Scalar", &[target.layout().numel()], Dtype::Bool);
    drop(make("sum", &[], Dtype::Int64));

    // `_can_use_mm_out`: products go into one buffer where autocast would not cast
    let dtype = torch.autocast_dtype().unwrap_or(hidden_states.dtype());
    let in_place = hidden_states.dtype() == weight.dtype() && dtype == hidden_states.dtype();
    let buffer = in_place.then(|| make("empty.memory_format", &[piece, vocabulary], dtype));
    let head = weight.detach();
    let mut start = 0;
    while start < rows {
        let rows = piece.min(rows - start);
        start += rows;
        let input = hidden_states.detach().alias(Layout::contiguous(&[rows, width]));
        // `weight.t()` is a view, which autocast's cache does not take
        let logits = if in_place {
            into("mm.out", [&input, weight], [rows, vocabulary, width]);
            None
        } else {
            Some(product([&lowered(&input), &lowered(&head)], [rows, vocabulary, width]))
        };
        torch.launch("liger_cross_entropy_kernel");
        let gradient = logits.as_ref().or(buffer.as_ref()).unwrap_or(&input);
        torch.reads(&[gradient, gradient]);
        if in_place {
            into("mm.out", [gradient, weight], [rows, width, vocabulary]);
        } else {
            drop(product([gradient, &lowered(weight)], [rows, width, vocabulary]));
        }
        match &for_weight {
            None => {}
            Some(grad)
                if adds_half_into_fp32 && dtype.is_half() && [dtype, Dtype::F32].contains(&grad.dtype()) =>
            {
                let input = super::to(&input, dtype);
                into("addmm.out", [gradient, &input], [vocabulary, width, rows]);
            }
            Some(_) => {
                let product = product([gradient, &lowered(&input)], [vocabulary, width, rows]);
                drop(super::to(&product, Dtype::F32));
            }
        }
    }
    drop(buffer);
    let loss = make("sum", &[], Dtype::F32);
    drop((losses, mask));

    let inputs = [hidden_states, weight];
    if !recorded(&torch, &inputs) {
        return loss;
    }
    let saved = (for_hidden.save(), for_weight.as_ref().map(Tensor::save));
    drop((for_hidden, for_weight));
    record(loss, &inputs, move |grad| {
        drop(output(grad.torch(), "lift_fresh", Layout::contiguous(&[]), Dtype::F32)); // is it 1?
        smallvec![Some(saved.0.unpack()), saved.1.as_ref().map(|saved| saved.unpack())]
    })
}

/// A product of `m × k` and `k × n` that is written into a tensor that is there.
fn into(op: &'static str, factors: [&Tensor; 2], [m, n, k]: [u64; 3]) {
    let [first, _] = factors;
    let (torch, dtype) = (first.torch(), first.dtype());
    torch.launch(op);
    torch.cublas();
    let elements = m.saturating_mul(n);
    torch.multiplies(product_flops(elements, k), dtype);
    torch.reads(&factors);
    torch.moves(elements.saturating_mul(dtype.width()));
}

/// The same into a new tensor.
fn product(factors: [&Tensor; 2], [m, n, k]: [u64; 3]) -> Tensor {
    gemm("mm", factors, Layout::contiguous(&[m, n]), k)
}
