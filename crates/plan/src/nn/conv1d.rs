//! `Conv1D` of `transformers/pytorch_utils.py`: a linear layer whose weight is stored `[in, out]`.

use super::Builder;
use crate::torch::{ModuleId, Tensor, ops};

/// `y = x @ weight + bias`.
pub(crate) struct Conv1d {
    module: ModuleId,
    weight: Tensor,
    bias: Tensor,
}

impl Conv1d {
    pub(crate) fn new(
        build: &mut Builder,
        parent: ModuleId,
        name: &'static str,
        (inputs, outputs): (u64, u64),
    ) -> Conv1d {
        let module = build.module(parent, name);
        let weight = build.parameter(module, "weight", &[inputs, outputs]);
        Conv1d { module, weight, bias: build.parameter(module, "bias", &[outputs]) }
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        self.weight.torch().inside(self.module, || ops::addmm(&self.bias, x, &self.weight))
    }
}
