//! `nn.Linear`.

use super::Builder;
use crate::torch::{ModuleId, Tensor, ops};
use std::borrow::Borrow;

/// `y = x @ weight.T + bias`, weight `[out, in]`.
pub(crate) struct Linear {
    module: ModuleId,
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    pub(crate) fn new(
        build: &mut Builder,
        parent: ModuleId,
        name: &'static str,
        (inputs, outputs): (u64, u64),
        bias: bool,
    ) -> Linear {
        let module = build.module(parent, name);
        let weight = build.parameter(module, "weight", &[outputs, inputs]);
        let bias = bias.then(|| build.parameter(module, "bias", &[outputs]));
        Linear { module, weight, bias }
    }

    /// One whose weight is another module's: a tied head.
    pub(crate) fn tied(build: &Builder, parent: ModuleId, name: &'static str, weight: &Tensor) -> Linear {
        Linear { module: build.module(parent, name), weight: weight.clone(), bias: None }
    }

    pub(crate) fn forward(&self, x: impl Borrow<Tensor>) -> Tensor {
        let torch = self.weight.torch().clone();
        torch.inside(self.module, || ops::linear(x, &self.weight, self.bias.as_ref()))
    }
}
