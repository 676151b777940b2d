//! What is there beside the tapes: what vLLM holds, and what a rollout leaves for training.

use super::compose::{Composer, Laid, List};
use super::composed::{Group, OF};
use super::pass::Pass;
use crate::torch::tape::rounded;
use peakledger_core::{Bytes, Category, Detail, Device, Residencies, Residency, State};

impl Composer<'_> {
    /// What vLLM holds, asleep and awake.
    pub(super) fn engine(&self, list: &mut List) {
        let Some(pool) = self.pool else { return };
        let is_in = |laid: &Laid, passes: &[Pass]| {
            self.parts.get(laid.part).is_some_and(|part| passes.contains(&part.pass))
        };
        if let Some(residencies) = self.periods(None, |laid| is_in(laid, &[Pass::Sync])) {
            let (name, category) = ("sync_weights: gathered parameters".into(), Category::Parameter);
            let state =
                State { name, category, detail: None, bytes: pool.gathered, persistent: false, residencies };
            list.push(Group::Named("actor · gathered for vLLM"), state);
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
                &[Pass::Sync, Pass::Rollout][..],
            ),
            (all_else, Category::Activation, pool.blocks, blocks_away, &[Pass::Rollout]),
            (
                ["vllm: logits, fp32", "vLLM · logits, fp32"],
                Category::Activation,
                pool.logits,
                None,
                &[Pass::Rollout],
            ),
        ] {
            let Some(residencies) =
                self.periods(away, |laid| is_in(laid, needed)).filter(|_| bytes > Bytes::ZERO)
            else {
                continue;
            };
            let persistent = away.is_some();
            let state = State { name: name.into(), category, detail: None, bytes, persistent, residencies };
            list.push(Group::Named(group), state);
        }
    }

    /// What a rollout and what scores it leave for training, 4 bytes a number.
    pub(super) fn experience(&self, sequences: u64, list: &mut List) {
        for laid in self.laid.iter().filter(|laid| laid.micro_batch.is_none()) {
            let left = self.parts.get(laid.part).and_then(|part| part.pass.leaves(self.request));
            let Some((name, numbers)) = left else { continue };
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
            list.push(Group::Named("experience"), state);
        }
    }
}
