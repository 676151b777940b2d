//! `Conv1D` of `transformers/pytorch_utils.py`: a linear layer whose weight is stored `[in, out]`.

use super::{Adapter, Base, Builder};
use crate::torch::{ModuleId, Tensor, ops};

/// `y = x @ weight + bias`.
pub(crate) struct Conv1d {
    module: ModuleId,
    weight: Tensor,
    bias: Tensor,
    adapter: Option<Adapter>,
}

impl Conv1d {
    pub(crate) fn new(
        build: &mut Builder,
        parent: ModuleId,
        name: &'static str,
        (inputs, outputs): (u64, u64),
    ) -> Conv1d {
        let module = build.module(parent, name);
        build.stays_whole("Conv1D");
        let weight = build.parameter(module, "weight", &[inputs, outputs]);
        let bias = build.parameter(module, "bias", &[outputs]);
        let adapter = Adapter::of(build, module, name, (inputs, outputs));
        Conv1d { module, weight, bias, adapter }
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        let result = self.weight.torch().inside(self.module, || ops::addmm(&self.bias, x, &self.weight));
        match &self.adapter {
            None => result,
            Some(adapter) => adapter.add_to(result, x, Base::Plain),
        }
    }
}
