//! What is assumed of activations that are not kept, and of what is kept on the host.

use crate::options::{Offload, Quantize, Recompute};
use crate::plan::Plan;

impl Plan {
    pub(super) fn recompute(&self) -> String {
        let in_contexts = match (self.options.quantize, self.options.recompute) {
            (Some(Quantize::Int8), recompute) if recompute != Recompute::None => {
                "; the inputs of int8 modules stay all the same, in the contexts of bitsandbytes' MatMul8bitLt, until the loss \
                 goes"
            }
            _ => "",
        };
        let recompute = match self.options.recompute {
            Recompute::None => "none: activations are kept for backward".to_owned(),
            Recompute::Full => "full: every decoder layer is a checkpoint (use_reentrant=False)".to_owned(),
            Recompute::Every(layers) => {
                format!(
                    "every:{layers}: a checkpoint for {layers} decoder layers in a row (use_reentrant=False)"
                )
            }
            Recompute::Block(layers) => {
                format!(
                    "block:{layers}: each of the first {layers} decoder layers of a pipeline stage is a checkpoint (use_reentrant=False)"
                )
            }
            Recompute::Layers(layers) => {
                format!("layers:{layers}: each of these decoder layers is a checkpoint (use_reentrant=False)")
            }
            Recompute::Selective => {
                "selective: every decoder layer is a checkpoint (use_reentrant=False) that keeps what mm, addmm, \
                 _grouped_mm and the flash and memory-efficient attention kernels put out \
                 (create_selective_checkpoint_contexts); eager attention's bmm is computed again"
                    .to_owned()
            }
        };
        recompute + in_contexts
    }

    pub(super) fn offload(&self) -> String {
        let Offload { activations, optimizer, parameters } = self.options.offload;
        let ahead = match self.options.offload_prefetch {
            0 => "when the first op asks for it".to_owned(),
            1 => "a layer ahead".to_owned(),
            layers => format!("{layers} layers ahead"),
        };
        let which = match self.options.offload_layers {
            None => "decoder layers".to_owned(),
            Some(layers) => format!("decoder layers {layers}"),
        };
        let mut said = Vec::new();
        if activations {
            said.push(format!(
                "activations: what {which} save (but parameters and what is below 1 KiB) is copied to the host as it is \
                 saved and comes back {ahead} (hooks on saved tensors, as torch's save_on_cpu)"
            ));
        }
        if let Some(shards) = self.options.offload_of_shards() {
            said.push(shards.to_owned());
        } else if parameters {
            said.push(format!(
                "parameters, gradients and the optimizer are on the host; a layer's parameters come for its forward and again \
                 for its backward, {ahead}, and all others for both (FSDP2's CPUOffloadPolicy)"
            ));
        } else if optimizer {
            said.push(
                "optimizer: it steps copies on the host of all parameters of 4096 numbers or more, gradients are copied there \
                 as they are made (torchao's CPUOffloadOptimizer)"
                    .to_owned(),
            );
        }
        said.join("; ")
    }
}
