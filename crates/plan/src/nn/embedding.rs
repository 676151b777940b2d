//! `nn.Embedding`.

use super::{Builder, Spread};
use crate::parallel::tensor::Split;
use crate::torch::{ModuleId, Tensor, ops};

/// A table of rows, `[vocabulary, width]`.
pub(crate) struct Embedding {
    pub(crate) module: ModuleId,
    pub(crate) weight: Tensor,
    /// The copy of it that is trained in its place, if there is one: a head that is tied shares the table itself.
    saved: Option<(ModuleId, Tensor)>,
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
            let weight = build.parameter(module, "weight", &sizes);
            let saved = build.saved(module, name, sizes);
            return Embedding { module, weight, saved, split: None };
        };
        let [rows, width] = sizes;
        let part = [split.group.part(rows), width];
        let numbers = rows.saturating_mul(width);
        let weight = build.part((module, "weight"), &part, numbers, Spread::Tensor);
        Embedding { module, weight, saved: None, split: Some((split, rows)) }
    }

    pub(crate) fn forward(&self, ids: &Tensor) -> Tensor {
        self.forward_then(ids, |embedded| embedded)
    }

    /// The same with something done to what was looked up, in the module.
    pub(crate) fn forward_then(&self, ids: &Tensor, then: impl FnOnce(Tensor) -> Tensor) -> Tensor {
        let (module, weight) =
            self.saved.as_ref().map_or((self.module, &self.weight), |(module, copy)| (*module, copy));
        weight.torch().inside(module, || match self.split {
            None => then(ops::embedding(ids, weight)),
            Some((split, rows)) => {
                let part = ops::vocabulary_parallel_embedding(ids, weight, rows);
                then(split.summed(part.clone()))
            }
        })
    }
}
