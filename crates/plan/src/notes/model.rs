//! What is assumed of the model: its modules and what of them is trained, how attention and experts run, and how ranks share
//! it out.

use crate::model::Attend;
use crate::options::{Attention, Experts, Lora, LoraTargets, Quantize};
use crate::plan::Plan;
use crate::torch::ops::SdpaKernel;

impl Plan {
    pub(super) fn model(&self) -> String {
        let modules = self.architecture.family.modules;
        let trained = match &self.options.lora {
            Some(lora) => self.adapters(lora),
            None if self.options.freeze.is_empty() => "every parameter trained".to_owned(),
            None => {
                let parts: Vec<String> = self.options.freeze.iter().map(|part| part.written()).collect();
                format!("all trained but what is in {}", parts.join(", "))
            }
        };
        format!("transformers 5.24 modules ({modules}) on torch 2.15, {trained}")
    }

    /// What is trained in the place of the model's own parameters.
    fn adapters(&self, lora: &Lora) -> String {
        let targets = match &lora.targets {
            LoraTargets::AllLinear if self.architecture.shape.num_experts > 0 => {
                "every linear module but the head (experts are none)".to_owned()
            }
            LoraTargets::AllLinear => "every linear module but the head".to_owned(),
            LoraTargets::Named(names) => names.join(", "),
        };
        let (rank, dtype) = (lora.rank, self.options.adapters(lora.dtype).as_str());
        let (packed, saved) = (self.packed(), self.saved(lora));
        format!("frozen{packed} but for LoRA adapters of rank {rank} in {dtype} on {targets}{saved} (peft)")
    }

    /// How frozen weights are packed.
    fn packed(&self) -> &'static str {
        match self.options.quantize {
            None => "",
            Some(Quantize::Nf4) => ", linear weights packed to nf4 (bitsandbytes)",
            Some(Quantize::Nf4Double) => {
                ", linear weights packed to nf4 and their scales to 8 bits (bitsandbytes)"
            }
            Some(Quantize::Int8) => {
                ", linear weights packed to int8 (bitsandbytes; no activation passes the outlier threshold of 6)"
            }
        }
    }

    /// Of which modules a copy is trained.
    fn saved(&self, lora: &Lora) -> String {
        if lora.save.is_empty() {
            return String::new();
        }
        let names = lora.save.join(" and ");
        let dtype = match lora.save_dtype {
            Some(dtype) => self.options.adapters(dtype),
            None => self.options.weights(),
        };
        format!(" and copies of {names} in {} that run in their place", dtype.as_str())
    }

    pub(super) fn attention(&self) -> String {
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

    pub(super) fn experts(&self) -> String {
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

    /// How the model is split over ranks, and whose way of doing it that is.
    pub(super) fn model_parallel(&self) -> Option<String> {
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
}
