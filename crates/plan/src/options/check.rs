//! Which options go together: what no type rules out is refused, with what would mend it.

use super::bounds::within_expert_runs;
use super::{Experts, HoldOutputs, LoraTargets, OptimizerImpl, OptimizerKind, Options, Recompute};
use crate::Layers;
use crate::parallel::Stack;
use crate::torch::Dtype;
use peakledger_input::Problem;

/// That an option cannot be, why, and what would mend it.
pub(crate) fn refused<T>(
    option: &str,
    cause: impl Into<String>,
    mend: impl Into<String>,
) -> Result<T, Problem> {
    Err(Problem::in_option(option, cause).mend(mend))
}

impl Options {
    /// Checks what no type rules out.
    pub(crate) fn check(&self, seq_len: u64, layers: u32, experts: u64) -> Result<(), Problem> {
        self.check_batch(seq_len)?;
        let blocks = self.check_blocks(layers)?;
        self.check_implementation()?;
        self.check_precision()?;
        self.check_quantized()?;
        self.check_update()?;
        self.check_saved()?;
        self.check_parallel()?;
        self.check_layers(layers)?;
        self.check_loss()?;
        self.check_frozen()?;
        self.check_experts(experts, blocks)?;
        self.check_expert_tensor(experts)?;
        self.check_momentum()
    }

    /// Checks that the optimizer has the implementation that is asked for.
    fn check_implementation(&self) -> Result<(), Problem> {
        let foreach = self.optimizer_impl.is_some_and(|kind| kind != OptimizerImpl::ForLoop);
        if self.optimizer == OptimizerKind::Adafactor && foreach {
            let cause = "Adafactor is planned a parameter at a time, as torch runs it unless told otherwise";
            return refused("--optimizer-impl", cause, "leave it out, or use forloop");
        }
        let of_bitsandbytes = match self.optimizer {
            OptimizerKind::AdamW8bit => Some("AdamW8bit"),
            OptimizerKind::AdamW32bit => Some("AdamW32bit"),
            OptimizerKind::Lion => Some("Lion"),
            _ => None,
        };
        if let (Some(name), true) = (of_bitsandbytes, self.optimizer_impl.is_some()) {
            let cause = format!("bitsandbytes' {name} has one implementation");
            return refused("--optimizer-impl", cause, "leave it out");
        }
        Ok(())
    }

    /// Checks that a scaled loss leads to gradients that can be unscaled.
    fn check_precision(&self) -> Result<(), Problem> {
        let trained_in = self.lora.as_ref().map_or(self.weights(), |lora| lora.dtype);
        // (DeepSpeed scales by itself)
        if self.grad_scaler && !self.is_deepspeed() && trained_in == Dtype::F16 {
            let cause = "fp16 weights have fp16 gradients, which GradScaler does not unscale";
            return refused("--weights-dtype", cause, "use fp32 or bf16");
        }
        Ok(())
    }

    /// Checks that something is trained beside packed weights, and that nothing else is prepared for it.
    fn check_quantized(&self) -> Result<(), Problem> {
        if self.quantize.is_some() && self.lora.is_none() {
            let cause = "quantized weights are frozen, so nothing would be trained";
            return refused("--quantize", cause, "add adapters: --lora r=16");
        }
        if self.prepare_for_kbit && self.quantize.is_none() {
            let cause = "it prepares quantized models, and no weight is quantized";
            return refused("--prepare-for-kbit", cause, "add --quantize nf4, or leave it out");
        }
        Ok(())
    }

    /// Checks what the update cannot do.
    fn check_update(&self) -> Result<(), Problem> {
        let weights = self.weights();
        if self.master_weights.is_some() && self.lora.is_some() && self.stack == Stack::Transformers {
            let cause = "adapters are stepped in their own type";
            return refused(
                "--master-weights",
                cause,
                "leave it out: `--lora r=16,dtype=fp32` sets their type",
            );
        }
        // (Megatron's own types are checked where its modules are)
        if self.master_weights == Some(weights) && self.stack == Stack::Transformers {
            return refused("--master-weights", "the weights have that type already", "leave it out");
        }
        let is_zero = self.is_deepspeed();
        let stepped = if is_zero { self.stepped_in() } else { self.master_weights.unwrap_or(weights) };
        if self.grad_dtype.is_some_and(|grads| grads != stepped) {
            let cause = "an optimizer steps what has the type of its gradients";
            return refused("--grad-dtype", cause, "use the type of --master-weights, or leave it out");
        }
        let on_host = self.offload.has_optimizer();
        if on_host && (self.master_weights.is_some() || self.grad_dtype.is_some()) {
            let cause =
                "master weights and gradient buffers are planned with an optimizer on the device alone";
            return refused(
                "--offload",
                cause,
                "leave out --master-weights and --grad-dtype, or the offload",
            );
        }
        let on_the_device = match self.optimizer {
            OptimizerKind::AdamW8bit => Some("bitsandbytes' AdamW8bit runs on the device alone"),
            OptimizerKind::AdamW32bit => Some("bitsandbytes' AdamW32bit is planned on the device alone"),
            _ => None,
        };
        if let Some(cause) = on_the_device.filter(|_| on_host) {
            return refused("--offload", cause, "use --optimizer adamw");
        }
        // DeepSpeed takes the norm as it reduces, and clips on the host
        let copies_early = self.offload.optimizer && !self.offload.parameters && !self.is_deepspeed();
        if copies_early && self.clip_grad_norm {
            let cause =
                "gradients are copied to the host as they are made, before there is a norm to clip them by";
            return refused("--clip-grad-norm", cause, "leave out one: it or `--offload optimizer`");
        }
        Ok(())
    }

    /// Checks modules of which a copy is trained.
    fn check_saved(&self) -> Result<(), Problem> {
        let Some(lora) = self.lora.as_ref().filter(|lora| !lora.save.is_empty()) else { return Ok(()) };
        let parallel = &self.parallel;
        let shared =
            [("--tp", parallel.tp > 1), ("--pp", parallel.pp > 1), ("--fsdp", parallel.sharding.is_fsdp())];
        if let Some((option, _)) = shared.iter().find(|(_, is)| *is) {
            let cause = format!(
                "a copy of {} that is trained is not planned with {option} yet",
                lora.save.join(", ")
            );
            return refused("--lora", cause, format!("leave out `save` or {option}"));
        }
        if let LoraTargets::Named(names) = &lora.targets
            && let Some(both) = names.iter().find(|name| lora.save.contains(name))
        {
            let cause = format!("{both} is to have an adapter and to be saved, which peft refuses");
            return refused("--lora", cause, "name it in one of targets and save");
        }
        Ok(())
    }

    /// Checks that the layers that are named are there, counted over the whole model.
    fn check_layers(&self, layers: u32) -> Result<(), Problem> {
        if matches!(self.recompute, Recompute::Block(_)) && layers > Layers::MOST {
            let cause = format!("of {layers} layers {} can be named", Layers::MOST);
            return refused("--recompute", cause, "use full, or every:N");
        }
        let recomputed = match self.recompute {
            Recompute::Layers(set) => Some(("--recompute", set)),
            _ => None,
        };
        let offloaded = self.offload_layers.map(|set| ("--offload-layers", set));
        for (option, set) in recomputed.into_iter().chain(offloaded) {
            if let Some(last) = set.last().filter(|last| *last >= layers) {
                let cause = format!("there is no layer {last} of {layers}");
                return refused(option, cause, "layers count from 0");
            }
        }
        if self.offload_layers.is_some() && !self.offload.activations {
            let cause = "it names layers whose activations are offloaded, and none are";
            return refused("--offload-layers", cause, "add `--offload activations`, or leave it out");
        }
        Ok(())
    }

    /// Checks that there are logits to keep, where some are to be kept.
    fn check_loss(&self) -> Result<(), Problem> {
        if self.fused_loss && self.hold_outputs != HoldOutputs::No {
            let cause = "a fused loss makes no logits that a loop could keep";
            return refused("--hold-outputs", cause, "leave it out, or --fused-loss");
        }
        Ok(())
    }

    /// Checks that parts are not frozen twice.
    fn check_frozen(&self) -> Result<(), Problem> {
        if !self.freeze.is_empty() && self.lora.is_some() {
            let cause = "with adapters all else is frozen already";
            return refused("--freeze", cause, "leave it out, or --lora");
        }
        Ok(())
    }

    /// Checks that experts can run one after the other, in so many layers of micro-batches.
    fn check_experts(&self, experts: u64, blocks: u64) -> Result<(), Problem> {
        let Experts::Eager { imbalance } = self.experts else { return Ok(()) };
        if !(imbalance >= 1.0 && imbalance.is_finite()) {
            let cause = format!("the busiest expert cannot have {imbalance} times the mean");
            return refused("--expert-imbalance", cause, "use 1 or more");
        }
        if experts == 0 {
            return refused("--experts", "the model has no experts", "leave it out");
        }
        within_expert_runs(experts, blocks)
    }

    /// Checks that the optimizer has a momentum, where one is asked for.
    fn check_momentum(&self) -> Result<(), Problem> {
        if self.momentum && self.optimizer != OptimizerKind::Sgd {
            let cause = "only SGD has a momentum to set";
            return refused("--momentum", cause, "leave it out, or use --optimizer sgd");
        }
        Ok(())
    }
}
