//! What is there beside the tapes: what vLLM holds, and what a rollout leaves for training.

use super::compose::{Composer, Laid};
use super::composed::{Group, OF};
use super::rollout::{ROLLOUT, SYNC};
use crate::torch::tape::rounded;
use peakledger_core::{Bytes, Category, Detail, Device, Residencies, Residency, State};

impl Composer<'_> {
    /// What vLLM holds, asleep and awake.
    pub(super) fn engine(&self, states: &mut Vec<(Group, State)>) {
        let Some(pool) = self.pool else { return };
        let is_in = |laid: &Laid, phases: &[&str]| {
            self.parts.get(laid.part).is_some_and(|part| phases.contains(&part.passing))
        };
        if let Some(residencies) = self.periods(None, |laid| is_in(laid, &[SYNC])) {
            let (name, category) = ("sync_weights: gathered parameters".into(), Category::Parameter);
            let state =
                State { name, category, detail: None, bytes: pool.gathered, persistent: false, residencies };
            states.push((Group::Named("actor · gathered for vLLM"), state));
        }
        let (weights_away, blocks_away) = match pool.vllm.sleep_level {
            None => (Some(Device::Gpu), Some(Device::Gpu)),
            Some(1) => (Some(Device::Cpu), None),
            Some(_) => (None, None),
        };
        let all_else = match pool.vllm.gpu_memory_utilization {
            None => ["vllm: KV cache blocks", "vLLM · KV cache blocks"],
            Some(_) => ["vllm: KV cache blocks and workspace", "vLLM · KV cache blocks and workspace"],
        };
        // blocks come when it has its weights (`wake_up`)
        for ([name, group], category, bytes, away, needed) in [
            (
                ["vllm: weights, bf16", "vLLM · weights, bf16"],
                Category::Parameter,
                pool.weights,
                weights_away,
                &[SYNC, ROLLOUT][..],
            ),
            (all_else, Category::Activation, pool.blocks, blocks_away, &[ROLLOUT]),
            (
                ["vllm: logits, fp32", "vLLM · logits, fp32"],
                Category::Activation,
                pool.logits,
                None,
                &[ROLLOUT],
            ),
        ] {
            let Some(residencies) =
                self.periods(away, |laid| is_in(laid, needed)).filter(|_| bytes > Bytes::ZERO)
            else {
                continue;
            };
            let persistent = away.is_some();
            let state = State { name: name.into(), category, detail: None, bytes, persistent, residencies };
            states.push((Group::Named(group), state));
        }
    }

    /// What a rollout leaves for training: ids, and 4 bytes a token of each score.
    pub(super) fn experience(&self, sequences: u64, states: &mut Vec<(Group, State)>) {
        for laid in self.laid.iter().filter(|laid| laid.micro_batch.is_none()) {
            let Some(part) = self.parts.get(laid.part).filter(|part| !part.trains) else { continue };
            let (name, numbers) = match part.passing {
                ROLLOUT => ("ids of prompts and responses", self.request.tokens().saturating_mul(2)),
                "score_actor" => ("old log-probabilities", self.request.response_len),
                "score_reference" => ("reference log-probabilities", self.request.response_len),
                "score_critic" => ("values", self.request.response_len),
                SYNC => continue,
                _ => ("rewards", 1),
            };
            let bytes = Bytes::new(rounded(sequences.saturating_mul(numbers).saturating_mul(4)));
            let stay = Residency { device: Device::Gpu, start: laid.last(), end: self.last() };
            let state = State {
                name: format!("experience{OF}{name}").into(),
                category: Category::Activation,
                detail: Some(Detail::Input),
                bytes,
                persistent: false,
                residencies: Residencies::One(stay),
            };
            states.push((Group::Named("experience"), state));
        }
    }
}
