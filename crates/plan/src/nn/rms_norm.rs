//! RMSNorm as `LlamaRMSNorm` and its copies write it: in fp32, scaled after the cast back.

use super::Builder;
use crate::torch::{Dtype, ModuleId, Tensor, ops};

/// `weight * (x / rms(x))`.
pub(crate) struct RmsNorm {
    module: ModuleId,
    weight: Tensor,
}

impl RmsNorm {
    pub(crate) fn new(build: &mut Builder, parent: ModuleId, name: &'static str, width: u64) -> RmsNorm {
        let module = build.module(parent, name);
        RmsNorm { module, weight: build.parameter(module, "weight", &[width]) }
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        self.weight.torch().inside(self.module, || {
            let mut hidden = ops::to(x, Dtype::F32);
            let variance = ops::mean_last(ops::pow2(&hidden));
            hidden = ops::mul(&hidden, ops::rsqrt(ops::add_scalar(&variance)));
            ops::mul(&self.weight, ops::to(&hidden, x.dtype()))
        })
    }
}
