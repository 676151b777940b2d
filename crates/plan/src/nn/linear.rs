//! `nn.Linear`.

use super::{Adapter, Builder};
use crate::torch::{ModuleId, Tensor, ops};
use std::borrow::Borrow;

/// `y = x @ weight.T + bias`, weight `[out, in]`.
pub(crate) struct Linear {
    module: ModuleId,
    weight: Tensor,
    bias: Option<Tensor>,
    adapter: Option<Adapter>,
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
        let adapter = Adapter::of(build, module, name, (inputs, outputs));
        Linear { module, weight, bias, adapter }
    }

    /// One whose weight is another module's: a tied head.
    pub(crate) fn tied(build: &Builder, parent: ModuleId, name: &'static str, weight: &Tensor) -> Linear {
        Linear { module: build.module(parent, name), weight: weight.clone(), bias: None, adapter: None }
    }

    pub(crate) fn forward(&self, x: impl Borrow<Tensor>) -> Tensor {
        let torch = self.weight.torch().clone();
        match &self.adapter {
            None => torch.inside(self.module, || ops::linear(x, &self.weight, self.bias.as_ref())),
            Some(adapter) => {
                let x = x.borrow();
                let result = torch.inside(self.module, || ops::linear(x, &self.weight, self.bias.as_ref()));
                adapter.add_to(result, x)
            }
        }
    }
}
