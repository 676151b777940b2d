//! What a step that is spread over GPUs cannot be, and what a pipeline in it cannot.

use super::schedule::rounds;
use super::{Schedule, Sharding, Stack};
use crate::options::{HoldOutputs, Options, refused};
use peakledger_input::Problem;

impl Options {
    /// Checks what a step that is spread over GPUs cannot be, and refuses what is not planned yet.
    pub(crate) fn check_parallel(&self) -> Result<(), Problem> {
        let parallel = &self.parallel;
        let mesh = self.mesh()?;
        let megatron = self.stack == Stack::Megatron;
        if !megatron {
            self.check_sharding()?;
        }
        self.check_pipeline()?;
        if parallel.sp && mesh.tp == 1 {
            let cause = "the sequence is split among the ranks of --tp, and there is one";
            return refused("--sp", cause, "add --tp, or leave it out");
        }
        if parallel.loss_parallel && (megatron || mesh.tp == 1) {
            let (cause, mend) = match megatron {
                true => ("Megatron's loss takes the logits as they are shared out already", "leave it out"),
                false => (
                    "the logits are shared out among the ranks of --tp, and there is one",
                    "add --tp, or leave it out",
                ),
            };
            return refused("--loss-parallel", cause, mend);
        }
        self.check_context_parallel(&mesh)?;
        if megatron { Ok(()) } else { self.check_data_parallel(&mesh) }
    }

    /// Checks which sharding a pipeline runs with.
    fn check_sharding(&self) -> Result<(), Problem> {
        let sharding = self.parallel.sharding;
        if self.parallel.pp <= 1 {
            return Ok(());
        }
        if self.parallel.data.sync_each_batch {
            let cause = "a pipeline's schedule has gradients reduced once, when a stage has run all its micro-batches";
            return refused("--sync-each-batch", cause, "leave it out, or --pp");
        }
        let beside_fsdp = match self.parallel.schedule {
            _ if !sharding.is_fsdp() => None,
            Schedule::OneFOneB | Schedule::Gpipe | Schedule::Interleaved => None,
            Schedule::ZbH2 | Schedule::DualPipe => {
                Some("torch.distributed.pipelining, which runs FSDP2 beside a pipeline, has no such schedule")
            }
            Schedule::ZbH1 if sharding == Sharding::ShardGradOp => {
                Some("weights whose gradients wait are not planned yet beside FSDP2")
            }
            // torch 2.15 says nothing: such weights have no gradient of that micro-batch
            Schedule::ZbH1 => Some(
                "torch does not find the weights that a layer has shared out when its backward begins (`stage_backward_input`), so their gradients would be left out",
            ),
        };
        if let Some(cause) = beside_fsdp {
            return refused("--schedule", cause, "use 1f1b, gpipe or interleaved");
        }
        if matches!(sharding, Sharding::Zero2 | Sharding::Zero3) {
            let cause = "DeepSpeed's pipelines run with ZeRO stage 0 or 1";
            return refused("--zero", cause, "use --zero 1, or leave out --pp");
        }
        Ok(())
    }

    /// Checks what a pipeline cannot be.
    fn check_pipeline(&self) -> Result<(), Problem> {
        let parallel = &self.parallel;
        let (stages, schedule, parts) = (parallel.pp, parallel.schedule, parallel.virtual_stages);
        let micro_batches = self.gradient_accumulation_steps;
        if stages <= 1 {
            let without_effect = [
                ("--schedule", schedule != Schedule::default() && parts == 1),
                ("--virtual-stages", parts > 1),
            ];
            return match without_effect.iter().find(|(_, asked)| *asked) {
                Some((option, _)) => {
                    refused(option, "there is one stage, so nothing to schedule", "add --pp 2 or more")
                }
                None => Ok(()),
            };
        }
        if schedule == Schedule::Interleaved && parts < 2 {
            let cause = "stages of one part have nothing to interleave";
            return refused("--schedule", cause, "add --virtual-stages 2 or more, or use 1f1b");
        }
        if schedule != Schedule::Interleaved && parts > 1 {
            let cause = format!("{} runs stages of one part", schedule.as_str());
            return refused("--virtual-stages", cause, "use --schedule interleaved, or leave it out");
        }
        if schedule == Schedule::Interleaved {
            let groups = match self.stack {
                Stack::Megatron => None,
                Stack::Transformers => Some(rounds(stages, micro_batches)),
            };
            let cause = match groups {
                None if !micro_batches.is_multiple_of(stages) => Some(format!(
                    "interleaved stages take micro-batches in groups of pp {stages}, and {micro_batches} are no multiple of that"
                )),
                Some(groups) if !micro_batches.is_multiple_of(groups) => Some(format!(
                    "interleaved stages of pp {stages} take {micro_batches} micro-batches in {micro_batches} / {stages} = {groups} \
                     groups, and they are no multiple of that"
                )),
                _ => None,
            };
            if let Some(cause) = cause {
                return refused("--gradient-accumulation-steps", cause, "use a multiple of --pp");
            }
        }
        if schedule == Schedule::DualPipe {
            if !stages.is_multiple_of(2) {
                let cause = format!("DualPipe goes through the stages both ways, and pp {stages} is odd");
                return refused("--pp", cause, "use an even number of stages");
            }
            if !micro_batches.is_multiple_of(2) || micro_batches < 2 * stages {
                let cause = format!(
                    "DualPipe needs an even number of micro-batches, 2 × pp {stages} = {} or more, and {micro_batches} are given",
                    2 * stages
                );
                return refused("--gradient-accumulation-steps", cause, "use more micro-batches");
            }
            if parallel.first_stage_layers.is_some() || parallel.last_stage_layers.is_some() {
                let cause = "DualPipe has the first and the last layers on one stage";
                return refused("--decoder-first-pipeline-num-layers", cause, "leave it out");
            }
        }
        if self.hold_outputs != HoldOutputs::No {
            let cause = "the schedule itself keeps what the last stage puts out until its backward";
            return refused("--hold-outputs", cause, "leave it out");
        }
        // Megatron's fused loss takes the logits
        let in_one_op = self.fused_loss && self.stack != Stack::Megatron;
        if self.loss_in_model || in_one_op {
            let option = if in_one_op { "--fused-loss" } else { "--loss-in-model" };
            let cause = "the schedule computes the loss from the logits of the last stage";
            return refused(option, cause, "leave it out, or --pp");
        }
        Ok(())
    }
}
