//! What is assumed of a step: its batch, the types that things are kept and computed in, the loop and the optimizer.

use crate::options::{HoldOutputs, OptimizerImpl, OptimizerKind, Quantize};
use crate::plan::Plan;
use crate::torch::kernel::cublas_workspace;
use peakledger_core::{Bytes, Category};

impl Plan {
    pub(super) fn batch(&self) -> String {
        let (batch, length) = (self.options.micro_batch_size, self.seq_len);
        let limit = self.architecture.shape.max_position_embeddings;
        let sequences = if batch == 1 { "sequence" } else { "sequences" };
        let mut text = format!("{batch} {sequences} of {length} tokens");
        match self.options.gradient_accumulation_steps {
            1 => {}
            steps => text += &format!(", {steps} micro-batches a step, all on the device from the start"),
        }
        if length > limit {
            text += &format!("; longer than the model's limit of {limit}");
        }
        text
    }

    pub(super) fn precision(&self) -> String {
        if let Some(precision) = self.options.precision_of_shards() {
            return precision;
        }
        let (options, stored) = (&self.options, self.options.weights().as_str());
        let gradients = options.grad_dtype.unwrap_or(options.weights()).as_str();
        // its moments have types of their own, which are said of the optimizer
        let of_bitsandbytes = matches!(
            options.optimizer,
            OptimizerKind::AdamW8bit | OptimizerKind::AdamW32bit | OptimizerKind::Lion
        );
        let kept = match (&options.lora, options.master_weights) {
            (None, Some(masters)) => {
                let (masters, summed) = (
                    masters.as_str(),
                    match options.grad_dtype {
                        None => "copied to that type in the update".to_owned(),
                        Some(_) => format!("summed in a persistent buffer in {gradients}"),
                    },
                );
                format!(
                    "weights in {stored}, master weights and optimizer state in {masters}, gradients in {stored} and {summed} \
                     (Megatron's Float16OptimizerWithFloat16Params)"
                )
            }
            (None, None) => {
                let routers = if self.routers_in_fp32() { " (the routers' in fp32)" } else { "" };
                match of_bitsandbytes {
                    true => format!("weights and gradients in {stored}{routers}"),
                    false => format!("weights, gradients and optimizer state in {stored}{routers}"),
                }
            }
            (Some(lora), _) => {
                let (weights, dtype) = (
                    if options.quantize.is_some() { "other weights" } else { "weights" },
                    lora.dtype.as_str(),
                );
                match of_bitsandbytes {
                    true => format!("{weights} in {stored}, adapters with their gradients in {dtype}"),
                    false => format!(
                        "{weights} in {stored}, adapters with their gradients and optimizer state in {dtype}"
                    ),
                }
            }
        };
        match options.precision.autocast() {
            None => format!("{kept}, computed in {}", options.compute().as_str()),
            Some(autocast) => {
                let scaler = if options.grad_scaler { ", a GradScaler" } else { "" };
                format!("{kept}, autocast to {}{scaler}", autocast.as_str())
            }
        }
    }

    /// Whether the family keeps its routers in fp32 where other weights are not.
    fn routers_in_fp32(&self) -> bool {
        let stored = self.tape().stored.iter();
        let mut weights = stored.filter(|it| it.category == Category::Parameter && it.detail.is_none());
        weights.any(|it| it.dtype != self.options.weights())
    }

    pub(super) fn training_loop(&self) -> String {
        let outputs = match self.options.hold_outputs {
            HoldOutputs::No => "the logits go once the loss is computed",
            HoldOutputs::Backward => "the logits stay until backward ends",
            HoldOutputs::Step => "the logits stay until the step ends",
        };
        if self.mesh.pp > 1 {
            return "the schedule keeps the logits of the last stage until their backward, and the losses until the step ends; \
                    zero_grad sets gradients to None"
                .to_owned();
        }
        if self.options.fused_loss {
            return "head and loss are one op that makes logits in pieces and their gradients at once (Liger's fused linear \
                    cross entropy); zero_grad sets gradients to None"
                .to_owned();
        }
        let loss = if self.options.loss_in_model { "the model computes the loss; " } else { "" };
        format!("{loss}{outputs}; zero_grad sets gradients to None")
    }
    pub(super) fn optimizer(&self) -> String {
        let offload = self.options.offload;
        let on_host_of_zero = offload.has_optimizer() && self.options.is_deepspeed();
        let implementation = match self.options.optimizer_impl {
            _ if self.options.optimizer == OptimizerKind::Adafactor => "for-loop, as torch picks",
            _ if on_host_of_zero && self.options.optimizer == OptimizerKind::AdamW => "DeepSpeedCPUAdam",
            None if offload.parameters => "for-loop, as torch picks on the host",
            None if offload.optimizer && self.options.optimizer == OptimizerKind::AdamW => {
                "fused on the host, as torchao picks"
            }
            None if offload.optimizer => "for-loop, as torch picks on the host",
            None => "foreach, as torch picks on CUDA",
            Some(OptimizerImpl::Foreach) => "foreach",
            Some(OptimizerImpl::Fused) => "fused",
            Some(OptimizerImpl::MultiTensor) => "multi-tensor",
            Some(OptimizerImpl::ForLoop) => "for-loop",
        };
        let clip = if self.options.clip_grad_norm { ", after clip_grad_norm_" } else { "" };
        match self.options.optimizer {
            OptimizerKind::AdamW => format!("AdamW ({implementation}){clip}"),
            OptimizerKind::AdamW8bit => {
                format!(
                    "AdamW8bit (bitsandbytes; 8-bit moments for every parameter of 4096 numbers or more){clip}"
                )
            }
            OptimizerKind::AdamW32bit => {
                format!("AdamW32bit (bitsandbytes; moments in fp32 for every parameter){clip}")
            }
            OptimizerKind::Sgd if self.options.momentum => {
                format!("SGD with momentum ({implementation}){clip}")
            }
            OptimizerKind::Adafactor => format!("Adafactor ({implementation}){clip}"),
            OptimizerKind::Lion => format!("Lion (bitsandbytes; a moment in fp32 for every parameter){clip}"),
            OptimizerKind::Muon => format!(
                "torch.optim.Muon for the matrices of the layers, AdamW ({implementation}) for the rest: embeddings, head, \
                 whatever has no two dimensions{clip}"
            ),
            OptimizerKind::Sgd => format!("SGD ({implementation}){clip}"),
        }
    }

    pub(super) fn kernels(&self) -> String {
        let workspace = Bytes::new(cublas_workspace(self.options.capability));
        let routing = match self.architecture.shape.num_experts {
            0 => "",
            _ => ", and sorting tokens for experts and adding up their gradients",
        };
        let int8 = match self.options.quantize {
            Some(Quantize::Int8) => ", and int8's packing and products",
            _ => "",
        };
        format!(
            "at device level: two cuBLAS workspaces of {workspace}, for the loop's thread and autograd's, and what the \
             backward kernels of attention, softmax and embedding allocate for themselves{routing}{int8}"
        )
    }
}
