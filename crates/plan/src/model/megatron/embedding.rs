//! `VocabParallelEmbedding` (`megatron/core/tensor_parallel/layers.py`) and what follows it in `LanguageModelEmbedding`: each rank
//! has some rows of the table, and the ranks' results are summed.

use crate::nn::Builder;
use crate::nn::te::Shared;
use crate::torch::autograd::record;
use crate::torch::{Dtype, Layout, ModuleId, Tensor, ops};
use smallvec::smallvec;
use std::rc::Rc;

/// Rows of the table that this rank has.
pub(super) struct VocabParallelEmbedding {
    module: ModuleId,
    pub(super) weight: Tensor,
    shared: Rc<Shared>,
}

impl VocabParallelEmbedding {
    pub(super) fn new(
        build: &mut Builder,
        parent: ModuleId,
        rows: [u64; 2],
        shared: &Rc<Shared>,
    ) -> VocabParallelEmbedding {
        let parent = build.module(parent, "embedding");
        let module = build.module(parent, "word_embeddings");
        let weight = build.parameter(module, "weight", &rows);
        build.is_part_of(whole(rows, shared));
        VocabParallelEmbedding { module, weight, shared: shared.clone() }
    }

    /// Tokens `[b, s]` to `[s, b, h]`, of which a rank keeps its part of the sequence with sequence parallelism.
    pub(super) fn forward(&self, tokens: &Tensor) -> Tensor {
        let (torch, shared) = (tokens.torch(), &self.shared);
        torch.inside(self.module, || {
            if shared.tp == 1 {
                let embedded = ops::embedding(tokens, &self.weight);
                return ops::contiguous(ops::transpose(&embedded, 0, 1));
            }
            let (mask, masked) = masked(tokens);
            let embedded = zeroed(ops::embedding(&masked, &self.weight), &mask);
            if shared.sequence_parallel {
                let embedded = ops::contiguous(ops::transpose(&embedded, 0, 1));
                return reduce_scatter(&embedded, shared);
            }
            shared.all_reduce(&embedded);
            ops::contiguous(ops::transpose(&embedded, 0, 1))
        })
    }
}

/// The numbers of a table of which a rank has these rows.
pub(super) fn whole([rows, width]: [u64; 2], shared: &Shared) -> u64 {
    rows.saturating_mul(width).saturating_mul(shared.tp.into())
}

/// Which tokens are other ranks', and the tokens as rows of this rank's table.
fn masked(tokens: &Tensor) -> (Tensor, Tensor) {
    let torch = tokens.torch();
    let make = |op, dtype| {
        torch.launch(op);
        torch.reads(&[tokens]);
        torch.empty(Layout::contiguous(tokens.sizes()), dtype)
    };
    let (below, above) = (make("lt.Scalar", Dtype::Bool), make("ge.Scalar", Dtype::Bool));
    let mask = make("bitwise_or.Tensor", Dtype::Bool);
    drop((below, above));
    let copy = make("clone", Dtype::Int64);
    let rows = make("sub.Tensor", Dtype::Int64);
    drop(copy);
    torch.launch("index_put_");
    (mask, rows)
}

/// `embedded[mask, :] = 0.0`: in place, and so is the gradient of a copy.
fn zeroed(embedded: Tensor, mask: &Tensor) -> Tensor {
    embedded.torch().launch("index_put_");
    let mask = mask.save();
    record(embedded.detach(), &[&embedded], move |grad| {
        let _mask = mask.unpack();
        let torch = grad.torch();
        torch.launch("index_put");
        torch.reads(&[grad]);
        smallvec![Some(torch.empty(grad.layout().packed(), grad.dtype()))]
    })
}

/// `_ReduceScatterToSequenceParallelRegion` (`tensor_parallel/mappings.py`): its gradient is gathered.
fn reduce_scatter(x: &Tensor, shared: &Rc<Shared>) -> Tensor {
    let scattered = shared.reduce_scatter(x);
    let shared = shared.clone();
    record(scattered, &[x], move |grad| smallvec![Some(shared.all_gather(&ops::contiguous(grad)))])
}
