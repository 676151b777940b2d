//! Elementwise ops.

use super::{one, output};
use crate::torch::autocast::raised;
use crate::torch::autograd::{Grads, record, recorded};
use crate::torch::{Dtype, Layout, Tensor};
use smallvec::smallvec;
use std::borrow::Borrow;

fn binary(op: &'static str, a: &Tensor, b: &Tensor) -> Tensor {
    let result = output(a.torch(), op, a.layout().broadcast(b.layout()), a.dtype().promote(b.dtype()));
    a.torch().reads(&[a, b]);
    result
}

fn unary(op: &'static str, a: &Tensor) -> Tensor {
    like(op, a, a.layout().preserved())
}

/// `a + b`. Saves nothing.
pub(crate) fn add(a: impl Borrow<Tensor>, b: impl Borrow<Tensor>) -> Tensor {
    let (a, b) = (a.borrow(), b.borrow());
    record(binary("add.Tensor", a, b), &[a, b], |grad| smallvec![Some(grad.clone()), Some(grad.clone())])
}

/// `a - b`. Saves nothing.
pub(crate) fn sub(a: impl Borrow<Tensor>, b: impl Borrow<Tensor>) -> Tensor {
    let (a, b) = (a.borrow(), b.borrow());
    record(binary("sub.Tensor", a, b), &[a, b], |grad| smallvec![Some(grad.clone()), Some(neg(grad))])
}

/// `a + 1e-6`. Saves nothing.
pub(crate) fn add_scalar(a: impl Borrow<Tensor>) -> Tensor {
    let a = a.borrow();
    record(unary("add.Tensor", a), &[a], |grad| one(grad.clone()))
}

/// `a * b`. Saves each factor that the other one's gradient needs.
pub(crate) fn mul(a: impl Borrow<Tensor>, b: impl Borrow<Tensor>) -> Tensor {
    let (a, b) = (a.borrow(), b.borrow());
    if !recorded(a.torch(), &[a, b]) {
        return binary("mul.Tensor", a, b);
    }
    let other = a.requires_grad().then(|| b.save());
    let this = b.requires_grad().then(|| a.save());
    record(binary("mul.Tensor", a, b), &[a, b], move |grad| {
        let (this, other) = (this.as_ref().map(|s| s.unpack()), other.as_ref().map(|s| s.unpack()));
        let times = |factor: &Option<Tensor>| factor.as_ref().map(|factor| mul(grad, factor));
        smallvec![times(&other), times(&this)]
    })
}

/// `a * 0.125`. Saves nothing.
pub(crate) fn mul_scalar(a: impl Borrow<Tensor>) -> Tensor {
    scaled("mul.Tensor", a.borrow())
}

/// `a * 0.125` as C++ calls it. Saves nothing.
pub(super) fn scale(a: impl Borrow<Tensor>) -> Tensor {
    scaled("mul.Scalar", a.borrow())
}

/// `a / 4`. Saves nothing.
pub(crate) fn div_scalar(a: impl Borrow<Tensor>) -> Tensor {
    scaled("div.Tensor", a.borrow())
}

/// `a / b`. Saves both.
pub(crate) fn div(a: &Tensor, b: &Tensor) -> Tensor {
    let ratio = binary("div.Tensor", a, b);
    if !recorded(a.torch(), &[a, b]) {
        return ratio;
    }
    let (numerator, denominator) = (a.save(), b.save());
    record(ratio, &[a, b], move |grad| div_backward(grad, &numerator.unpack(), &denominator.unpack()))
}

/// `a /= b` where `a` is no leaf. Saves `b`, and `a` as it was: a copy.
pub(crate) fn div_in_place(a: Tensor, b: Tensor) -> Tensor {
    let torch = a.torch().clone();
    if !recorded(&torch, &[&a, &b]) {
        torch.launch("div_.Tensor");
        torch.reads(&[&a, &a, &b]);
        return a;
    }
    let (numerator, denominator) = (unary("clone", &a).save(), b.save());
    torch.launch("div_.Tensor");
    torch.reads(&[&a, &a, &b]); // and writes it
    record(a.detach(), &[&a, &b], move |grad| div_backward(grad, &numerator.unpack(), &denominator.unpack()))
}

fn div_backward(grad: &Tensor, numerator: &Tensor, denominator: &Tensor) -> Grads {
    let for_denominator = {
        let ratio = binary("div.Tensor", numerator, denominator);
        let slope = binary("div.Tensor", &ratio, denominator);
        mul(neg(grad), &slope)
    };
    smallvec![Some(binary("div.Tensor", grad, denominator)), Some(for_denominator)]
}

fn scaled(op: &'static str, a: &Tensor) -> Tensor {
    record(unary(op, a), &[a], move |grad| one(unary(op, grad)))
}

/// `-a`. Saves nothing.
pub(crate) fn neg(a: impl Borrow<Tensor>) -> Tensor {
    let a = a.borrow();
    record(unary("neg", a), &[a], |grad| one(neg(grad)))
}

/// `a.pow(2)`.
pub(crate) fn pow2(a: impl Borrow<Tensor>) -> Tensor {
    power(a.borrow())
}

/// `a.pow(n)`, in fp32 under autocast. Saves `a`; backward is `grad * (n * a.pow(n - 1))`.
fn power(a: &Tensor) -> Tensor {
    let a = &raised(a);
    if !recorded(a.torch(), &[a]) {
        return unary("pow.Tensor_Scalar", a);
    }
    let saved = a.save();
    record(unary("pow.Tensor_Scalar", a), &[a], move |grad| {
        let a = saved.unpack();
        let power = unary("pow.Tensor_Scalar", &a);
        let slope = unary("mul.Scalar", &power);
        one(mul(grad, &slope))
    })
}

/// `torch.rsqrt(a)`. Saves its result; backward is `-0.5 * grad * result.pow(3)`.
pub(crate) fn rsqrt(a: impl Borrow<Tensor>) -> Tensor {
    let a = a.borrow();
    let root = unary("rsqrt", a);
    if !recorded(a.torch(), &[a]) {
        return root;
    }
    let saved = root.save();
    record(root, &[a], move |grad| {
        let root = saved.unpack();
        let cubed = unary("pow.Tensor_Scalar", &root);
        let half = unary("mul.Scalar", grad);
        one(mul(&half, &cubed))
    })
}

/// An activation function that saves its input and has a backward kernel of its own.
fn activation(op: &'static str, backward: &'static str, a: &Tensor) -> Tensor {
    if !recorded(a.torch(), &[a]) {
        return unary(op, a);
    }
    let saved = a.save();
    record(unary(op, a), &[a], move |grad| {
        let a = saved.unpack();
        let for_a = output(grad.torch(), backward, grad.layout().broadcast(a.layout()), a.dtype());
        grad.torch().reads(&[grad, &a]);
        one(for_a)
    })
}

/// `F.silu(a)`.
pub(crate) fn silu(a: impl Borrow<Tensor>) -> Tensor {
    activation("silu", "silu_backward", a.borrow())
}

/// `F.gelu(a)`.
pub(crate) fn gelu(a: impl Borrow<Tensor>) -> Tensor {
    activation("gelu", "gelu_backward", a.borrow())
}

/// `NewGELUActivation`: `0.5 * a * (1 + tanh(k * (a + c * a.pow(3))))`.
pub(crate) fn gelu_new(a: impl Borrow<Tensor>) -> Tensor {
    let a = a.borrow();
    let half = mul_scalar(a);
    mul(half, add_scalar(tanh(mul_scalar(add(a, mul_scalar(power(a)))))))
}

/// `FastGELUActivation`: `0.5 * a * (1 + tanh(a * k * (1 + c * a * a)))`.
pub(crate) fn gelu_fast(a: impl Borrow<Tensor>) -> Tensor {
    let a = a.borrow();
    let half = mul_scalar(a);
    let scaled = mul_scalar(a);
    mul(half, add_scalar(tanh(mul(scaled, add_scalar(mul(mul_scalar(a), a))))))
}

/// `torch.tanh(a)`. Saves its result.
pub(crate) fn tanh(a: impl Borrow<Tensor>) -> Tensor {
    from_result("tanh", "tanh_backward", a.borrow())
}

/// `F.relu(a)`. Saves its result.
pub(crate) fn relu(a: impl Borrow<Tensor>) -> Tensor {
    from_result("relu", "threshold_backward", a.borrow())
}

/// `a.sigmoid()`. Saves its result.
pub(crate) fn sigmoid(a: impl Borrow<Tensor>) -> Tensor {
    from_result("sigmoid", "sigmoid_backward", a.borrow())
}

/// `~a`, of booleans.
pub(crate) fn bitwise_not(a: Tensor) -> Tensor {
    unary("bitwise_not", &a)
}

/// `a.masked_fill(mask, value)`. Saves the mask; backward fills zeros into the gradient.
pub(crate) fn masked_fill(a: &Tensor, mask: &Tensor) -> Tensor {
    if !recorded(a.torch(), &[a]) {
        return unary("masked_fill.Scalar", a);
    }
    let mask = mask.save();
    record(unary("masked_fill.Scalar", a), &[a], move |grad| {
        let _mask = mask.unpack();
        one(unary("masked_fill.Scalar", grad))
    })
}

/// `a.masked_fill_(mask, value)`. Saves the mask; backward fills zeros into a copy of the gradient.
pub(crate) fn masked_fill_in_place(a: &Tensor, mask: &Tensor) -> Tensor {
    let torch = a.torch();
    let saved = recorded(torch, &[a]).then(|| mask.save());
    torch.launch("masked_fill_.Scalar");
    torch.reads(&[a, mask]);
    let Some(saved) = saved else { return a.clone() };
    record(a.detach(), &[a], move |grad| {
        let _mask = saved.unpack();
        one(unary("masked_fill.Scalar", grad))
    })
}

/// A function whose backward kernel needs its result.
fn from_result(op: &'static str, backward: &'static str, a: &Tensor) -> Tensor {
    let result = unary(op, a);
    if !recorded(a.torch(), &[a]) {
        return result;
    }
    let saved = result.save();
    record(result, &[a], move |grad| {
        let result = saved.unpack();
        let for_a = unary(backward, grad);
        grad.torch().reads(&[&result]);
        one(for_a)
    })
}

/// `F.dropout(a, p)` in training: free where `p` is 0, else saves a mask of one byte an element.
pub(crate) fn dropout(a: impl Borrow<Tensor>, p: f64) -> Tensor {
    let a = a.borrow();
    if p == 0.0 {
        return a.clone();
    }
    let dropped = unary("native_dropout", a);
    let mask = a.torch().empty(a.layout().preserved(), Dtype::Bool);
    if !recorded(a.torch(), &[a]) {
        return dropped;
    }
    let mask = mask.save();
    record(dropped, &[a], move |grad| {
        let mask = mask.unpack();
        let for_a = unary("native_dropout_backward", grad);
        grad.torch().reads(&[&mask]);
        one(for_a)
    })
}

/// `a.to(dtype)`: the tensor itself where it has that type already.
pub(crate) fn to(a: impl Borrow<Tensor>, dtype: Dtype) -> Tensor {
    let a = a.borrow();
    if a.dtype() == dtype { a.clone() } else { to_copy(a, dtype) }
}

/// A copy in another type. Saves nothing; the gradient is cast back.
pub(crate) fn to_copy(a: impl Borrow<Tensor>, dtype: Dtype) -> Tensor {
    let a = a.borrow();
    let copy = output(a.torch(), "_to_copy", a.layout().preserved(), dtype);
    a.torch().reads(&[a]);
    let from = a.dtype();
    record(copy, &[a], move |grad| one(to(grad, from)))
}

/// The gradient that a backward pass starts with.
pub(crate) fn ones_like(a: &Tensor) -> Tensor {
    output(a.torch(), "ones_like", a.layout().preserved(), a.dtype())
}

/// `a.cos()`, of what needs no gradient.
pub(crate) fn cos(a: impl Borrow<Tensor>) -> Tensor {
    unary("cos", a.borrow())
}

/// `a.sin()`, of what needs no gradient.
pub(crate) fn sin(a: impl Borrow<Tensor>) -> Tensor {
    unary("sin", a.borrow())
}

/// What an op that reads `a` puts out: the type of `a` under another layout.
pub(super) fn like(op: &'static str, a: &Tensor, layout: Layout) -> Tensor {
    let result = output(a.torch(), op, layout, a.dtype());
    a.torch().reads(&[a]);
    result
}
