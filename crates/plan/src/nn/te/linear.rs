//! `Linear` (`module/linear.py`), column parallel, row parallel or whole on every rank. Saves its input. A column parallel one
//! gathers an input that is split by sequence for the product and again in backward, a row parallel one scatters its output and
//! gathers the gradient.

use super::{Shared, with_last};
use crate::nn::Builder;
use crate::torch::autograd::{Grads, record, recorded};
use crate::torch::{ModuleId, Tensor, ops};
use smallvec::smallvec;
use std::cell::RefCell;
use std::rc::Rc;

/// How the matrix is split over the tensor parallel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// By outputs.
    Column,
    /// By inputs.
    Row,
    /// Not: every rank has all of it, and its own part of the sequence (`parallel_mode="duplicated"` of Megatron's
    /// `TELinear`).
    Duplicated,
}

/// `y = x @ weight.T + bias`.
pub(crate) struct Linear {
    module: ModuleId,
    shared: Rc<Shared>,
    mode: Mode,
    weight: Tensor,
    bias: Option<Tensor>,
}

/// This rank's part of a weight, whose inputs and outputs are those of all ranks, and of its bias if it has one.
pub(super) fn weight_and_bias(
    build: &mut Builder,
    module: ModuleId,
    sizes: [u64; 2],
    (inputs, outputs): (u64, u64),
    bias: bool,
) -> (Tensor, Option<Tensor>) {
    let weight = build.parameter(module, "weight", &sizes);
    build.is_part_of(outputs.saturating_mul(inputs));
    let bias = bias.then(|| {
        let bias = build.parameter(module, "bias", &sizes[..1]);
        build.is_part_of(outputs);
        bias
    });
    (weight, bias)
}

impl Linear {
    /// `inputs` and `outputs` are those of all ranks.
    pub(crate) fn new(
        build: &mut Builder,
        parent: ModuleId,
        name: &'static str,
        (inputs, outputs): (u64, u64),
        bias: bool,
        (mode, shared): (Mode, &Rc<Shared>),
    ) -> Linear {
        let module = build.module(parent, name);
        let tp = u64::from(shared.tp);
        let sizes = match mode {
            Mode::Column => [outputs / tp, inputs],
            Mode::Row => [outputs, inputs / tp],
            Mode::Duplicated => [outputs, inputs],
        };
        let (weight, bias) = weight_and_bias(build, module, sizes, (inputs, outputs), bias);
        Linear { module, shared: shared.clone(), mode, weight, bias }
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        self.shared.torch().inside(self.module, || self.run(x))
    }

    fn run(&self, x: &Tensor) -> Tensor {
        let (shared, weight, mode) = (self.shared.clone(), self.weight.clone(), self.mode);
        let x = ops::contiguous(x);
        let splits = shared.sequence_parallel;
        let gathers = splits && mode == Mode::Column;
        let total = if gathers { shared.all_gather(&x) } else { x.clone() };
        let product = shared.gemm(&total, &weight, &with_last(&total, weight.size(0)), weight.size(1));
        drop(total);
        let output = match mode {
            Mode::Row if splits => shared.reduce_scatter(&product),
            Mode::Row => {
                shared.all_reduce(&product);
                product.clone()
            }
            Mode::Column | Mode::Duplicated => product.clone(),
        };
        drop(product);
        let inputs: Vec<&Tensor> = [&x, &self.weight].into_iter().chain(&self.bias).collect();
        if !recorded(shared.torch(), &inputs) {
            return output;
        }
        let saved = RefCell::new(Some(x.save()));
        let bias = self.bias.clone();
        record(output, &inputs, move |grad| {
            let Some(x) = saved.take().map(|saved| saved.unpack()) else { return Grads::new() };
            let grad = ops::contiguous(grad);
            let grad = if splits && mode == Mode::Row { shared.all_gather(&grad) } else { grad };
            let total = if gathers { shared.all_gather(&x) } else { x.clone() };
            let product = shared.gemm(&grad, &weight, total.sizes(), weight.size(0));
            let dgrad = match mode {
                Mode::Column if splits => shared.reduce_scatter(&product),
                Mode::Column => {
                    shared.all_reduce(&product);
                    product.clone()
                }
                Mode::Row | Mode::Duplicated => product.clone(),
            };
            shared.add_weight_gradient(&weight, &total, &grad);
            let for_bias = bias.as_ref().map(|bias| shared.bias_gradient(bias));
            drop((total, grad));
            drop(product); // a name until the function returns
            let mut grads: Grads = smallvec![Some(dgrad), None];
            grads.extend(for_bias.map(Some));
            grads
        })
    }
}
