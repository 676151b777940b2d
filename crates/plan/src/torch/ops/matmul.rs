//! Matrix products.

use super::output;
use super::pointwise::to;
use super::view::{contiguous, reshape};
use crate::torch::autocast::lowered;
use crate::torch::autograd::{Leaf, record, recorded};
use crate::torch::cost::product_flops;
use crate::torch::{Dtype, Layout, Tensor, Torch, kernel};
use smallvec::{SmallVec, smallvec};
use std::borrow::Borrow;
use std::rc::Rc;

/// A product by cuBLAS, each element of which is a sum over `inner`, in the type of the first factor.
pub(super) fn gemm(op: &'static str, factors: [&Tensor; 2], layout: Layout, inner: u64) -> Tensor {
    let [first, _] = factors;
    let (torch, dtype) = (first.torch(), first.dtype());
    torch.launch(op);
    let flops = product_flops(layout.numel(), inner);
    let product = multiplied(factors, layout, flops, dtype);
    torch.cublas();
    product
}

/// What the running product puts out.
fn multiplied(factors: [&Tensor; 2], layout: Layout, flops: u128, dtype: Dtype) -> Tensor {
    let [first, _] = factors;
    let torch = first.torch();
    torch.multiplies(flops, dtype);
    torch.reads(&factors);
    torch.empty(layout, dtype)
}

/// A product that a selective checkpoint keeps.
fn selected(torch: &Torch, product: impl FnOnce() -> Tensor) -> Tensor {
    let [product] = torch.selected(|| [product()]);
    product
}

/// `F.linear(x, weight, bias)` over the last dimension of `x`: one `mm` (or `addmm`) of the rows. Saves the input for the
/// weight's gradient and the weight for the input's. `weight` is `[out, in]`.
pub(crate) fn linear(x: impl Borrow<Tensor>, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    linear_with(x, weight, bias, false)
}

/// The same of DTensors whose result is a sum over ranks, to which each adds its part of a bias that all have
/// (`Replicate` to `Partial`).
pub(crate) fn linear_of_parts(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Tensor {
    linear_with(x, weight, Some(bias), true)
}

fn linear_with(
    x: impl Borrow<Tensor>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    adds_part_of_bias: bool,
) -> Tensor {
    let bias = bias.map(lowered);
    let weight = lowered(weight);
    let x = lowered(x.borrow());
    let mut sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(x.sizes());
    if let Some(last) = sizes.last_mut() {
        *last = weight.size(0);
    }
    // with a bias torch flattens the input before it transposes the weight, and in backward the weight's gradient arrives
    // before the input's; without one it is the other way round (`aten/src/ATen/native/Linear.cpp`)
    let (op, x) = match &bias {
        Some(_) => ("addmm", reshape(&x, &[x.layout().numel() / x.size(-1).max(1), x.size(-1)])),
        None => ("mm", x),
    };
    let product = || {
        let part = |bias: &Tensor| bias.torch().without_grad(|| super::div_scalar(bias));
        let _part = bias.as_ref().filter(|_| adds_part_of_bias).map(part);
        selected(x.torch(), || gemm(op, [&x, &weight], Layout::contiguous(&sizes), x.size(-1)))
    };
    let inputs: SmallVec<[&Tensor; 3]> = [&x, &weight].into_iter().chain(&bias).collect();
    if !recorded(x.torch(), &inputs) {
        return product();
    }
    let saved_weight = x.requires_grad().then(|| weight.save());
    let saved_x = weight.requires_grad().then(|| x.save());
    let (x_layout, weight_layout) = (x.layout().packed(), weight.layout().packed());
    let has_bias = bias.is_some();
    let bias_needs = bias.as_ref().is_some_and(Tensor::requires_grad);
    let parameter = parameter_behind(&weight);
    record(product(), &inputs, move |grad| {
        let x = saved_x.as_ref().map(|s| s.unpack());
        let weight = saved_weight.as_ref().map(|s| s.unpack());
        let rows = contiguous(grad);
        let wide = rows.size(-1);
        let summed = rows.layout().numel() / wide.max(1);
        let for_weight = || {
            let product = weight_product("mm", &rows, x.as_ref()?, &weight_layout, summed);
            rows.torch().weight_grad(parameter.as_ref(), product)
        };
        let for_x = || weight.as_ref().map(|weight| gemm("mm", [&rows, weight], x_layout.clone(), wide));
        match has_bias {
            false => {
                let for_weight = for_weight();
                smallvec![for_x(), for_weight]
            }
            // the bias' gradient is the gradient itself, which the engine sums over the rows
            true => smallvec![for_x(), for_weight(), bias_needs.then(|| rows.clone())],
        }
    })
}

/// The parameter that a factor is, or is a copy of.
fn parameter_behind(weight: &Tensor) -> Option<(Rc<Leaf>, Dtype)> {
    weight.edge()?.parameter(weight.dtype())
}

/// The product that is a weight's gradient, to be made now or later: it holds both factors.
fn weight_product(
    op: &'static str,
    rows: &Tensor,
    x: &Tensor,
    layout: &Layout,
    summed: u64,
) -> impl FnOnce() -> Tensor + 'static {
    let (rows, x, layout) = (rows.clone(), x.clone(), layout.clone());
    move || gemm(op, [&rows, &x], layout, summed)
}

/// `torch.addmm(bias, x.view(-1, in), weight).view(…)` with a weight of `[in, out]`, as `Conv1D` calls it.
pub(crate) fn addmm(bias: &Tensor, x: &Tensor, weight: &Tensor) -> Tensor {
    let rows = reshape(x, &[x.layout().numel() / x.size(-1).max(1), x.size(-1)]);
    let (weight, rows, bias) = (lowered(weight), lowered(&rows), lowered(bias));
    let mut sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(x.sizes());
    if let Some(last) = sizes.last_mut() {
        *last = weight.size(1);
    }
    let flat = [rows.size(0), weight.size(1)];
    let product = || {
        selected(rows.torch(), || gemm("addmm", [&rows, &weight], Layout::contiguous(&flat), rows.size(1)))
    };
    let inputs = [&bias, &rows, &weight];
    if !recorded(x.torch(), &inputs) {
        return reshape(product(), &sizes);
    }
    let saved_weight = rows.requires_grad().then(|| weight.save());
    let saved_rows = weight.requires_grad().then(|| rows.save());
    let (row_layout, weight_layout) = (rows.layout().packed(), weight.layout().packed());
    let bias_needs = bias.requires_grad();
    let parameter = parameter_behind(&weight);
    let product = record(product(), &inputs, move |grad| {
        let rows = saved_rows.as_ref().map(|s| s.unpack());
        let weight = saved_weight.as_ref().map(|s| s.unpack());
        let for_rows =
            weight.as_ref().map(|weight| gemm("mm", [grad, weight], row_layout.clone(), grad.size(1)));
        let for_weight = rows.as_ref().and_then(|rows| {
            let product = weight_product("mm", grad, rows, &weight_layout, grad.size(0));
            grad.torch().weight_grad(parameter.as_ref(), product)
        });
        smallvec![bias_needs.then(|| grad.clone()), for_rows, for_weight]
    });
    reshape(product, &sizes)
}

/// `torch.matmul(a, b)` of `[b, h, n, k]` and `[b, h, k, m]`: both are flattened (and copied where their layout does not
/// allow it), then one `bmm`. Saves both.
pub(crate) fn matmul(a: impl Borrow<Tensor>, b: impl Borrow<Tensor>) -> Tensor {
    let (b, a) = (lowered(b.borrow()), lowered(a.borrow()));
    product(&a, &b)
}

/// The same without autocast.
pub(super) fn product(a: impl Borrow<Tensor>, b: impl Borrow<Tensor>) -> Tensor {
    let (a, b) = (a.borrow(), b.borrow());
    let (batch, heads) = (a.size(0), a.size(1));
    let sizes = [batch, heads, a.size(2), b.size(3)];
    let folded = batch.saturating_mul(heads);
    let flat_a = reshape(a, &[folded, a.size(2), a.size(3)]);
    let flat_b = reshape(b, &[folded, b.size(2), b.size(3)]);
    reshape(bmm(flat_a, flat_b), &sizes)
}

fn bmm(a: Tensor, b: Tensor) -> Tensor {
    let layout = Layout::contiguous(&[a.size(0), a.size(1), b.size(2)]);
    let inner = a.size(2);
    if !recorded(a.torch(), &[&a, &b]) {
        return gemm("bmm", [&a, &b], layout, inner);
    }
    let saved_b = a.requires_grad().then(|| b.save());
    let saved_a = b.requires_grad().then(|| a.save());
    let (a_layout, b_layout) = (a.layout().packed(), b.layout().packed());
    record(gemm("bmm", [&a, &b], layout, inner), &[&a, &b], move |grad| {
        let (a, b) = (saved_a.as_ref().map(|s| s.unpack()), saved_b.as_ref().map(|s| s.unpack()));
        let product = |other, layout: &Layout, inner| gemm("bmm", [grad, other], layout.clone(), inner);
        let for_b = a.as_ref().map(|a| product(a, &b_layout, grad.size(1)));
        let for_a = b.as_ref().map(|b| product(b, &a_layout, grad.size(2)));
        smallvec![for_a, for_b]
    })
}

/// `torch.nn.functional.grouped_mm(x.to(weight.dtype), weight.transpose(-2, -1), offs=offs)`: each run of rows times the
/// matrix of its group, weights `[groups, out, in]`. No op of autocast's lists. Saves as `mm` does, and the offsets.
pub(crate) fn grouped_mm(x: &Tensor, weight: &Tensor, offsets: &Tensor) -> Tensor {
    let x = &to(x, weight.dtype());
    let layout = Layout::contiguous(&[x.size(0), weight.size(1)]);
    // every row meets one matrix
    let flops = product_flops(layout.numel(), x.size(1));
    let product = move |factors: [&Tensor; 2], layout: &Layout| {
        let [first, _] = factors;
        first.torch().launch("_grouped_mm");
        multiplied(factors, layout.clone(), flops, first.dtype())
    };
    let forward = || selected(x.torch(), || product([x, weight], &layout));
    let inputs = [x, weight];
    if !recorded(x.torch(), &inputs) {
        return forward();
    }
    let saved_weight = x.requires_grad().then(|| weight.save());
    let saved_x = weight.requires_grad().then(|| x.save());
    let offsets = offsets.save();
    let (x_layout, weight_layout) = (x.layout().packed(), weight.layout().packed());
    let parameter = parameter_behind(weight);
    record(forward(), &inputs, move |grad| {
        let x = saved_x.as_ref().map(|s| s.unpack());
        let weight = saved_weight.as_ref().map(|s| s.unpack());
        let offsets = offsets.unpack();
        let for_weight = x.as_ref().and_then(|x| {
            let (grad, x, offsets) = (grad.clone(), x.clone(), offsets.clone());
            let layout = weight_layout.clone();
            let torch = grad.torch().clone();
            torch.weight_grad(parameter.as_ref(), move || {
                let _offsets = offsets;
                product([&grad, &x], &layout)
            })
        });
        let for_x = weight.as_ref().map(|weight| product([grad, weight], &x_layout));
        smallvec![for_x, for_weight]
    })
}

/// `bitsandbytes.matmul_4bit(x, packed.t(), bias)` (`MatMul4Bit`): the weight of `[out, in]` is made whole in the type of `x`
/// for the product, and again for the gradient of `x`; none of it is saved.
pub(crate) fn matmul_4bit(
    x: &Tensor,
    packed: &Tensor,
    sizes: [u64; 2],
    packed_scales: Option<u64>,
    bias: Option<&Tensor>,
) -> Tensor {
    let torch = x.torch();
    let weight = dequantized(packed, sizes, packed_scales, x.dtype());
    let product = torch.without_grad(|| linear(x, &weight, bias));
    drop(weight);
    let (packed, layout) = (packed.clone(), x.layout().packed());
    record(product, &[x], move |grad| {
        let weight = dequantized(&packed, sizes, packed_scales, grad.dtype());
        let rows = contiguous(grad);
        let for_x = gemm("mm", [&rows, &weight], layout.clone(), rows.size(-1));
        drop(weight);
        smallvec![Some(for_x)]
    })
}

/// `bitsandbytes.matmul(x, packed, bias)` (`MatMul8bitLt`): `x` is packed too, row by row, and what it was stays in the
/// context of the function, where no hook of a checkpoint or an offload sees it. Backward makes the weight of `[out, in]` whole
/// in the type of `x`.
pub(crate) fn matmul_8bit(x: &Tensor, packed: &Tensor, row_scales: &Tensor, sizes: [u64; 2]) -> Tensor {
    let torch = x.torch();
    let [outputs, inputs] = sizes;
    let mut result_sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(x.sizes());
    if let Some(last) = result_sizes.last_mut() {
        *last = outputs;
    }
    let tokens = x.layout().numel() / inputs.max(1);
    let rows = torch.without_grad(|| reshape(x, &[tokens, inputs]));
    let half = torch.without_grad(|| to(&rows, Dtype::F16));
    let quantized =
        output(torch, "int8_vectorwise_quant", Layout::contiguous(&[tokens, inputs]), Dtype::Byte);
    torch.reads(&[&half]);
    let row_stats = torch.empty(Layout::contiguous(&[tokens]), Dtype::F32);
    drop((kernel::int8_quantization(&half), half));
    torch.launch("int8_mixed_scaled_mm");
    let layout = Layout::contiguous(&result_sizes);
    // cards do more products of int8 in a second than of fp16, but not all of them
    torch.multiplies(product_flops(layout.numel(), inputs), Dtype::F16);
    torch.reads(&[&quantized, packed]);
    let result = torch.empty(layout, x.dtype());
    drop(kernel::int8_product(&result));
    drop((quantized, row_stats));
    if !recorded(torch, &[x]) {
        return result;
    }
    torch.contexts.borrow_mut().push(rows.kept());
    let (held, layout, dtype) = ((packed.clone(), row_scales.clone()), x.layout().packed(), x.dtype());
    record(result, &[x], move |grad| {
        let torch = grad.torch();
        let rows = contiguous(grad);
        let whole = output(torch, "_to_copy", Layout::contiguous(&sizes), dtype);
        torch.reads(&[&held.0]);
        let scales = output(torch, "mul.Tensor", Layout::contiguous(&[outputs, 1]), Dtype::F32);
        torch.launch("mul_.Tensor");
        drop(scales);
        let rows = to(&rows, dtype);
        let for_x = gemm("mm", [&rows, &whole], layout.clone(), outputs);
        drop(whole);
        smallvec![Some(for_x)]
    })
}

/// `dequantize_4bit`; packed scales are made whole before.
fn dequantized(packed: &Tensor, sizes: [u64; 2], packed_scales: Option<u64>, dtype: Dtype) -> Tensor {
    let torch = packed.torch();
    let whole = |scales| output(torch, "dequantize_blockwise", Layout::contiguous(&[scales]), Dtype::F32);
    let _scales = packed_scales.map(whole);
    let weight = output(torch, "dequantize_4bit", Layout::contiguous(&sizes), dtype);
    torch.reads(&[packed]);
    weight
}
