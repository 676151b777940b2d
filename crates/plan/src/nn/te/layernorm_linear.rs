//! `LayerNormLinear` (`module/layernorm_linear.py`), column parallel: a norm and the projection of its output in one
//! function. Saves the input, the norm's output and what it divided by. With sequence parallelism the norm's output is gathered
//! for the product, dropped, and gathered again in backward.

use super::linear::weight_and_bias;
use super::rms_norm::{normed, normed_backward};
use super::{Shared, with_last};
use crate::nn::Builder;
use crate::torch::autograd::{Grads, record, recorded};
use crate::torch::{ModuleId, Tensor, ops};
use smallvec::smallvec;
use std::cell::RefCell;
use std::rc::Rc;

/// `y = norm(x) @ weight.T + bias`, of which this rank has `outputs / tp` columns.
pub(crate) struct LayerNormLinear {
    module: ModuleId,
    shared: Rc<Shared>,
    norm: Tensor,
    weight: Tensor,
    bias: Option<Tensor>,
}

impl LayerNormLinear {
    /// `outputs` are those of all ranks.
    pub(crate) fn new(
        build: &mut Builder,
        parent: ModuleId,
        name: &'static str,
        (inputs, outputs): (u64, u64),
        bias: bool,
        shared: &Rc<Shared>,
    ) -> LayerNormLinear {
        let module = build.module(parent, name);
        let norm = build.parameter(module, "layer_norm_weight", &[inputs]);
        let mine = outputs / u64::from(shared.tp);
        let (weight, bias) = weight_and_bias(build, module, [mine, inputs], (inputs, outputs), bias);
        LayerNormLinear { module, shared: shared.clone(), norm, weight, bias }
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        self.shared.torch().inside(self.module, || self.run(x))
    }

    fn run(&self, x: &Tensor) -> Tensor {
        let (shared, weight, norm) = (self.shared.clone(), self.weight.clone(), self.norm.clone());
        let x = &ops::contiguous(x); // `prepare_forward`
        let (ln_out, rsigma) = normed(x, &norm);
        let gathers = shared.sequence_parallel;
        let total = if gathers { shared.all_gather(&ln_out) } else { ln_out.clone() };
        let product = shared.gemm(&total, &weight, &with_last(&total, weight.size(0)), weight.size(1));
        drop(total);
        let inputs: Vec<&Tensor> = [x, &self.norm, &self.weight].into_iter().chain(&self.bias).collect();
        if !recorded(shared.torch(), &inputs) {
            return product;
        }
        let saved = RefCell::new(Some([x.save(), ln_out.save(), rsigma.save()]));
        drop((ln_out, rsigma));
        let bias = self.bias.clone();
        record(product, &inputs, move |grad| {
            let Some(saved) = saved.take() else { return Grads::new() };
            let [x, ln_out, rsigma] = saved.each_ref().map(|saved| saved.unpack());
            drop(saved);
            let grad = ops::contiguous(grad);
            let total = if gathers { shared.all_gather(&ln_out) } else { ln_out.clone() };
            let product = shared.gemm(&grad, &weight, total.sizes(), weight.size(0));
            let dgrad = match gathers {
                true => shared.reduce_scatter(&product),
                false => {
                    shared.all_reduce(&product);
                    product.clone()
                }
            };
            shared.add_weight_gradient(&weight, &total, &grad);
            let for_bias = bias.as_ref().map(|bias| shared.bias_gradient(bias));
            drop((ln_out, total)); // `clear_tensor_data`
            let (for_x, for_norm) = normed_backward(&dgrad, &x, &rsigma, &norm);
            drop(product); // a name until the function returns
            let mut grads: Grads = smallvec![Some(for_x), Some(for_norm), None];
            grads.extend(for_bias.map(Some));
            grads
        })
    }
}
