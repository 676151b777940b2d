//! What a plan takes for granted and what it leaves out, in words: every figure stands on these.

use crate::model::Attend;
use crate::options::{
    Attention, Experts, HoldOutputs, LoraTargets, Offload, OptimizerImpl, OptimizerKind, Quantize, Recompute,
};
use crate::parallel::{Stack, megatron};
use crate::plan::Plan;
use crate::torch::kernel::cublas_workspace;
use crate::torch::ops::SdpaKernel;
use peakledger_core::{Bytes, Category};

/// One thing that is taken for granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumption {
    /// What it is about.
    pub topic: &'static str,
    /// What is assumed.
    pub value: String,
}

impl Plan {
    /// Everything that is assumed, said or left to its default.
    pub fn assumptions(&self) -> Vec<Assumption> {
        let mut list =
            if self.options.stack == Stack::Megatron { megatron::assumptions(self) } else { self.usual() };
        list.extend(self.parallel_assumptions());
        if let Some(ranks) = self.data_parallel().filter(|_| self.options.stack == Stack::Transformers) {
            list.push(("ranks", ranks));
        }
        if self.options.offload != Offload::default() {
            list.push(("offload", self.offload()));
        }
        if self.options.stack == Stack::Transformers && self.architecture.shape.num_experts > 0 {
            list.push(("experts", self.experts()));
        }
        if let Some(parallel) = self.model_parallel().filter(|_| self.options.stack == Stack::Transformers) {
            list.push(("parallel", parallel));
        }
        list.extend(self.context_parallel().map(|shared| ("context", shared)));
        let config = [
            ("left out, so the family's default", &self.architecture.defaults),
            ("not planned", &self.architecture.not_planned),
        ];
        let config = config.iter().filter(|(_, fields)| !fields.is_empty());
        let config: Vec<String> =
            config.map(|(what, fields)| format!("{what}: {}", fields.join(", "))).collect();
        if !config.is_empty() {
            list.push(("config", config.join("; ")));
        }
        list.into_iter().map(|(topic, value)| Assumption { topic, value }).collect()
    }

    /// What is assumed of transformers' modules and torch's loop.
    fn usual(&self) -> Vec<(&'static str, String)> {
        vec![
            ("model", self.model()),
            ("batch", self.batch()),
            ("precision", self.precision()),
            ("attention", self.attention()),
            ("optimizer", self.optimizer()),
            ("recompute", self.recompute()),
            ("loop", self.training_loop()),
            ("kernels", self.kernels()),
        ]
    }

    /// What the figures leave out; what the caching allocator adds is no part of a plan, and is left out unless a replay of
    /// its traffic is told beside it.
    pub fn not_counted(&self, replayed: bool) -> Vec<&'static str> {
        let mut list =
            vec!["the little that other kernels allocate inside themselves (sorting, reductions, cuBLASLt)"];
        if self.options.stack == Stack::Megatron {
            list.extend(megatron::NOT_COUNTED);
        }
        if !replayed {
            list.push(
                "what the caching allocator adds to a request (it leaves up to 1 MiB of a large block unsplit) and what it \
                 reserves beyond that (fragmentation, whole segments)",
            );
        }
        if self.options.lora.is_some() && !self.options.loss_in_model {
            list.push(
                "the last hidden states while the loss is computed, which a model that is passed the labels still holds \
                 (--loss-in-model)",
            );
        }
        if self.options.quantize == Some(Quantize::Int8) {
            list.push(
                "columns of activations with outliers: int8 modules keep them in their own type and make those of the weight \
                 whole",
            );
        }
        if self.options.offload != Offload::default() {
            list.push(
                "what pinning adds to copies on the host (torch rounds each up to a power of two), and the process itself there",
            );
        }
        list
    }

    fn kernels(&self) -> String {
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

    fn model(&self) -> String {
        let modules = self.architecture.family.modules;
        let trained = match &self.options.lora {
            None if self.options.freeze.is_empty() => "every parameter trained".to_owned(),
            None => {
                let parts: Vec<String> = self.options.freeze.iter().map(|part| part.written()).collect();
                format!("all trained but what is in {}", parts.join(", "))
            }
            Some(lora) => {
                let targets = match &lora.targets {
                    LoraTargets::AllLinear if self.architecture.shape.num_experts > 0 => {
                        "every linear module but the head (experts are none)".to_owned()
                    }
                    LoraTargets::AllLinear => "every linear module but the head".to_owned(),
                    LoraTargets::Named(names) => names.join(", "),
                };
                let (rank, dtype) = (lora.rank, self.options.adapters(lora.dtype).as_str());
                let packed = match self.options.quantize {
                    None => "",
                    Some(Quantize::Nf4) => ", linear weights packed to nf4 (bitsandbytes)",
                    Some(Quantize::Nf4Double) => {
                        ", linear weights packed to nf4 and their scales to 8 bits (bitsandbytes)"
                    }
                    Some(Quantize::Int8) => {
                        ", linear weights packed to int8 (bitsandbytes; no activation passes the outlier threshold of 6)"
                    }
                };
                let saved = match lora.save.as_slice() {
                    [] => String::new(),
                    names => {
                        let dtype = lora.save_dtype.unwrap_or(self.options.weights());
                        let dtype =
                            if lora.save_dtype.is_some() { self.options.adapters(dtype) } else { dtype };
                        let names = names.join(" and ");
                        format!(" and copies of {names} in {} that run in their place", dtype.as_str())
                    }
                };
                format!(
                    "frozen{packed} but for LoRA adapters of rank {rank} in {dtype} on {targets}{saved} (peft)"
                )
            }
        };
        format!("transformers 5.24 modules ({modules}) on torch 2.15, {trained}")
    }

    /// How the model is split over ranks, and whose way of doing it that is.
    fn model_parallel(&self) -> Option<String> {
        let mesh = self.options.mesh().ok()?;
        let (tp, ep) = (mesh.tp, mesh.ep);
        let mut said = Vec::new();
        if self.options.parallel.sp {
            said.push(format!(
                "tensor parallel over {tp} ranks with what lies between the matrices split by sequence: torch's styles as \
                 torchtitan's parallelize_llama combines them, on transformers' modules, position_ids passed in \
                 (transformers has no such plan); {}",
                self.logits()
            ));
        } else if tp > 1 {
            said.push(format!(
                "tensor parallel over {tp} ranks by the family's tp_plan, on DTensors \
                 (transformers/distributed/tensor_parallel.py): what the plan names is shared out, norms are not, each \
                 colwise module sums its input's gradient by itself, {}, and every rank makes the whole gradient of the embedding",
                self.logits()
            ));
        }
        if ep > 1 {
            let rows = match self.options.rank_imbalance == 1.0 {
                true => "as many rows as it sends".to_owned(),
                false => format!("{} times the rows that it sends", self.options.rank_imbalance),
            };
            said.push(format!(
                "whole experts spread over {ep} ranks, tokens sent to them and back (AllToAllEP, \
                 transformers/distributed/expert_parallel.py); this rank receives {rows}"
            ));
        }
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// What becomes of the logits that tensor parallel ranks share.
    fn logits(&self) -> &'static str {
        match self.options.parallel.loss_parallel {
            true => {
                "the logits stay shared out and the loss takes them so (loss_parallel, torch/distributed/tensor/parallel/loss.py)"
            }
            false => "the logits are gathered before the loss",
        }
    }

    fn experts(&self) -> String {
        match self.options.experts {
            Experts::GroupedMm => {
                "grouped_mm, transformers' default: rows sorted by expert, so it is the same however evenly the routers \
                 spread them"
                    .to_owned()
            }
            Experts::Eager { imbalance } => {
                let spread = match imbalance > 1.0 {
                    true => format!(", the last with {imbalance} times the mean rows and the others alike"),
                    false => ", the routers spreading the tokens evenly".to_owned(),
                };
                format!("eager: one after the other, the gradient of each as large as that of all{spread}")
            }
        }
    }

    fn batch(&self) -> String {
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

    fn precision(&self) -> String {
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

    fn attention(&self) -> String {
        let repeats = match self.options.expand_kv {
            true => "; it repeats keys and values itself, so --expand-kv changes nothing",
            false => "",
        };
        if self.options.attention == Attention::Eager {
            return format!("eager: matmul, softmax in fp32, matmul{repeats}");
        }
        let Attend::Sdpa { kernel, expand_kv, .. } = Attend::choose(&self.architecture.shape, &self.options)
        else {
            return format!("eager: the family's scores are capped, which no fused kernel does{repeats}");
        };
        let expanded = if expand_kv { ", keys and values repeated for all heads" } else { "" };
        if self.options.padded {
            let mask = "sdpa with a mask for padded rows: the memory-efficient kernel, keys and values repeated for all heads";
            return mask.to_owned();
        }
        let window = self.architecture.shape.window.as_ref();
        if let Some(window) = window.filter(|window| self.seq_len >= window.size) {
            let some = if window.layers.contains(&false) { "in some layers " } else { "" };
            return format!(
                "sdpa {some}through a window of {} tokens: a mask is made, so the memory-efficient kernel with keys and values \
                 repeated for all heads",
                window.size
            );
        }
        match kernel {
            SdpaKernel::Flash => format!("sdpa: the flash kernel (half types, no mask, sm80 or later){expanded}"),
            SdpaKernel::MemoryEfficient => format!("sdpa: the memory-efficient kernel{expanded}"),
            SdpaKernel::Math => {
                "sdpa: the math path, since no fused kernel takes grouped heads here (--expand-kv repeats them)".to_owned()
            }
        }
    }

    fn optimizer(&self) -> String {
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

    fn recompute(&self) -> String {
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

    fn offload(&self) -> String {
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

    fn training_loop(&self) -> String {
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
}
