//! The output layer: `ColumnParallelLinear` by `LinearWithGradAccumulationAndAsyncCommunication`
//! (`megatron/core/tensor_parallel/layers.py`), Megatron's own and not Transformer Engine's. Saves its input; what is split by
//! sequence is gathered into a buffer that stays.

use super::embedding::whole;
use crate::nn::Builder;
use crate::nn::te::Shared;
use crate::torch::autograd::{record, recorded};
use crate::torch::cost::product_flops;
use crate::torch::{Layout, ModuleId, Tensor, ops};
use smallvec::smallvec;
use std::rc::Rc;

/// Columns of the vocabulary that this rank has.
pub(super) struct ColumnParallelHead {
    module: ModuleId,
    weight: Tensor,
    shared: Rc<Shared>,
}

impl ColumnParallelHead {
    /// `tied` is the embedding's weight, where the two share it.
    pub(super) fn new(
        build: &mut Builder,
        parent: ModuleId,
        rows: [u64; 2],
        tied: Option<Tensor>,
        shared: &Rc<Shared>,
    ) -> ColumnParallelHead {
        let module = build.module(parent, "output_layer");
        let weight = tied.unwrap_or_else(|| {
            let weight = build.parameter(module, "weight", &rows);
            build.is_part_of(whole(rows, shared));
            weight
        });
        ColumnParallelHead { module, weight, shared: shared.clone() }
    }

    /// `[s, b, h]` to `[s, b, vocabulary / tp]`.
    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        self.shared.torch().inside(self.module, || self.run(x))
    }

    fn run(&self, x: &Tensor) -> Tensor {
        let (shared, weight) = (self.shared.clone(), self.weight.clone());
        let gathers = shared.sequence_parallel;
        let gathered = move |x: &Tensor, shared: &Shared| match gathers {
            true => shared.gather_into_global_buffer(x),
            false => x.clone(),
        };
        let total = gathered(x, &shared);
        let logits = matmul(&total, &weight, [total.size(0), total.size(1), weight.size(0)], weight.size(1));
        let inputs = [x, &self.weight];
        if !recorded(shared.torch(), &inputs) {
            return logits;
        }
        let saved = x.save();
        record(logits, &inputs, move |grad| {
            let x = saved.unpack();
            let total = gathered(&x, &shared);
            let sizes = [total.size(0), total.size(1), weight.size(1)];
            let for_total = matmul(grad, &weight, sizes, weight.size(0));
            let for_x = match gathers {
                true => shared.reduce_scatter(&for_total),
                false => {
                    shared.all_reduce(&for_total);
                    for_total.clone()
                }
            };
            let torch = grad.torch();
            torch.launch("wgrad_gemm_accum_fp32");
            torch.cublas();
            let rows = total.layout().numel() / total.size(-1).max(1);
            torch.multiplies(product_flops(weight.layout().numel(), rows), x.dtype());
            torch.reads(&[&total, &ops::contiguous(grad)]);
            shared.dummy_gradient(&weight);
            drop(for_total); // a name until the function returns
            smallvec![Some(for_x), None]
        })
    }
}

/// `torch.matmul`, with the workspace that torch gives cuBLAS.
fn matmul(x: &Tensor, weight: &Tensor, sizes: [u64; 3], inner: u64) -> Tensor {
    let torch = x.torch();
    torch.launch("mm");
    let layout = Layout::contiguous(&sizes);
    torch.multiplies(product_flops(layout.numel(), inner), x.dtype());
    torch.reads(&[x, weight]);
    let product = torch.empty(layout, x.dtype());
    torch.cublas();
    product
}
