//! `nn.Linear`.

use super::{Adapter, Base, Builder, HEAD, Spread, Weight4bit, Weight8bit};
use crate::options::Quantize;
use crate::parallel::tensor::Split;
use crate::torch::{ModuleId, Tensor, ops};
use std::borrow::Borrow;

/// `y = x @ weight.T + bias`, weight `[out, in]`.
pub(crate) struct Linear {
    module: ModuleId,
    weight: Weight,
    bias: Option<Tensor>,
    adapter: Option<Adapter>,
    /// How it is split among tensor parallel ranks, and how many outputs it has on all of them.
    split: Option<(Split, u64)>,
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
        if let Some(split) = build.split(module) {
            return Linear::split(build, (module, name), (inputs, outputs), bias, split);
        }
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
        // of the head alone, which has no bias
        let saved = if name == HEAD { build.saved(module, name, sizes) } else { None };
        let (module, weight) = saved.map_or((module, weight), |(module, copy)| (module, Weight::Plain(copy)));
        Linear { module, weight, bias, adapter, split: None }
    }

    /// This rank's part of one that is split among tensor parallel ranks.
    fn split(
        build: &mut Builder,
        (module, name): (ModuleId, &'static str),
        whole: (u64, u64),
        bias: bool,
        split: Split,
    ) -> Linear {
        let (inputs, outputs) = split.sizes(whole);
        let numbers = whole.0.saturating_mul(whole.1);
        let weight = build.part((module, "weight"), &[outputs, inputs], numbers, Spread::Tensor);
        let bias = bias.then(|| match split.sums() {
            true => build.replicated((module, "bias"), outputs, None),
            false => build.part((module, "bias"), &[outputs], whole.1, Spread::Tensor),
        });
        let adapter = Adapter::split(build, module, name, whole, split);
        Linear { module, weight: Weight::Plain(weight), bias, adapter, split: Some((split, whole.1)) }
    }

    /// One whose weight is another module's: a tied head.
    pub(crate) fn tied(
        build: &mut Builder,
        parent: ModuleId,
        name: &'static str,
        weight: &Tensor,
        [outputs, inputs]: [u64; 2],
    ) -> Linear {
        let module = build.module(parent, name);
        let split = build.split(module).map(|split| (split, outputs));
        let saved = build.saved(module, name, [outputs, inputs]);
        let (module, weight) = saved.unwrap_or_else(|| (module, weight.clone()));
        Linear { module, weight: Weight::Plain(weight), bias: None, adapter: None, split }
    }

    /// The weight, where it is neither packed nor split nor has an adapter beside it.
    pub(crate) fn plain_weight(&self) -> Option<&Tensor> {
        match (&self.weight, &self.adapter) {
            (Weight::Plain(weight), None) if self.split.is_none() => Some(weight),
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
        if let (Weight::Plain(weight), Some((split, outputs))) = (&self.weight, self.split) {
            let product = |x: &Tensor| match bias {
                // each rank adds its part of a bias that is whole on all
                Some(bias) if split.sums() => ops::linear_of_parts(x, weight, bias),
                _ => ops::linear(x, weight, bias),
            };
            return torch.inside(self.module, || split.around(x.borrow(), outputs, product));
        }
        torch.inside(self.module, || match &self.weight {
            Weight::Plain(weight) => ops::linear(x, weight, bias),
            Weight::In4bit(weight) => weight.forward(x.borrow(), bias),
            Weight::In8bit(weight) => weight.forward(x.borrow()),
        })
    }
}
