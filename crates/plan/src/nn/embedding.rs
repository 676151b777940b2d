//! `nn.Embedding`.

use super::{Builder, Spread};
use crate::parallel::tensor::Split;
use crate::torch::{ModuleId, Tensor, ops};

/// A table of rows, `[vocabulary, width]`.
pub(crate) struct Embedding {
    pub(crate) module: ModuleId,
    pub(crate) weight: Tensor,
    /// How the vocabulary is shared out among tensor parallel ranks, and how many rows all have together.
    split: Option<(Split, u64)>,
}

impl Embedding {
    pub(crate) fn new(
        build: &mut Builder,
        parent: ModuleId,
        name: &'static str,
        sizes: [u64; 2],
    ) -> Embedding {
        let module = build.module(parent, name);
        let Some(split) = build.split(module) else {
            return Embedding { module, weight: build.parameter(module, "weight", &sizes), split: None };
        };
        let [rows, width] = sizes;
        let part = [split.group.part(rows), width];
        let numbers = rows.saturating_mul(width);
        let weight = build.part((module, "weight"), &part, numbers, Spread::Tensor);
        Embedding { module, weight, split: Some((split, rows)) }
    }

    pub(crate) fn forward(&self, ids: &Tensor) -> Tensor {
        self.forward_then(ids, |embedded| embedded)
    }

    /// The same with something done to what was looked up, in the module.
    pub(crate) fn forward_then(&self, ids: &Tensor, then: impl FnOnce(Tensor) -> Tensor) -> Tensor {
        self.weight.torch().inside(self.module, || match self.split {
            None => then(ops::embedding(ids, &self.weight)),
            Some((split, rows)) => {
                let part = ops::vocabulary_parallel_embedding(ids, &self.weight, rows);
                then(split.summed(part.clone()))
            }
        })
    }
}
