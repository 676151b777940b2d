//! `nn.Linear`.

use super::{Adapter, Base, Builder, HEAD, Weight4bit, Weight8bit};
use crate::options::Quantize;
use crate::torch::{ModuleId, Tensor, ops};
use std::borrow::Borrow;

/// `y = x @ weight.T + bias`, weight `[out, in]`.
pub(crate) struct Linear {
    module: ModuleId,
    weight: Weight,
    bias: Option<Tensor>,
    adapter: Option<Adapter>,
}

/// A weight as it is stored.
enum Weight {
    Plain(Tensor),
    In4bit(Weight4bit),
    In8bit(Weight8bit),
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
        let sizes = [outputs, inputs];
        let weight = match build.quantized.filter(|_| name != HEAD) {
            None => Weight::Plain(build.parameter(module, "weight", &sizes)),
            Some(packing) if packing.quantize == Quantize::Int8 => {
                Weight::In8bit(Weight8bit::new(build, module, sizes, packing))
            }
            Some(packing) => Weight::In4bit(Weight4bit::new(build, module, sizes, packing)),
        };
        let bias = bias.then(|| build.parameter(module, "bias", &[outputs]));
        let adapter = Adapter::of(build, module, name, (inputs, outputs));
        Linear { module, weight, bias, adapter }
    }

    /// One whose weight is another module's: a tied head.
    pub(crate) fn tied(build: &Builder, parent: ModuleId, name: &'static str, weight: &Tensor) -> Linear {
        Linear {
            module: build.module(parent, name),
            weight: Weight::Plain(weight.clone()),
            bias: None,
            adapter: None,
        }
    }

    /// The weight, where it is neither packed nor has an adapter beside it.
    pub(crate) fn plain_weight(&self) -> Option<&Tensor> {
        match (&self.weight, &self.adapter) {
            (Weight::Plain(weight), None) => Some(weight),
            _ => None,
        }
    }

    pub(crate) fn forward(&self, x: impl Borrow<Tensor>) -> Tensor {
        let Some(adapter) = &self.adapter else { return self.base(x) };
        let x = x.borrow();
        let result = self.base(x);
        let base = match self.weight {
            Weight::Plain(_) => Base::Plain,
            Weight::In4bit(_) => Base::In4bit,
            Weight::In8bit(_) => Base::In8bit,
        };
        adapter.add_to(result, x, base)
    }

    /// Without the adapter. What is given by value goes when the product is there.
    fn base(&self, x: impl Borrow<Tensor>) -> Tensor {
        let bias = self.bias.as_ref();
        let torch = x.borrow().torch().clone();
        torch.inside(self.module, || match &self.weight {
            Weight::Plain(weight) => ops::linear(x, weight, bias),
            Weight::In4bit(weight) => weight.forward(x.borrow(), bias),
            Weight::In8bit(weight) => weight.forward(x.borrow()),
        })
    }
}
