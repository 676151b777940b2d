//! `nn.Embedding`.

use super::Builder;
use crate::torch::{ModuleId, Tensor, ops};

/// A table of rows, `[vocabulary, width]`.
pub(crate) struct Embedding {
    pub(crate) module: ModuleId,
    pub(crate) weight: Tensor,
}

impl Embedding {
    pub(crate) fn new(
        build: &mut Builder,
        parent: ModuleId,
        name: &'static str,
        sizes: [u64; 2],
    ) -> Embedding {
        let module = build.module(parent, name);
        Embedding { module, weight: build.parameter(module, "weight", &sizes) }
    }

    pub(crate) fn forward(&self, ids: &Tensor) -> Tensor {
        self.weight.torch().inside(self.module, || ops::embedding(ids, &self.weight))
    }
}
