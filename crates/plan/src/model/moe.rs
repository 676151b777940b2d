//! Mixture of experts: a router sends each token to a few of many gated MLPs ([`Experts`]).

use super::experts::{Experts, Routed};
use super::megatron;
use crate::config::{Reader, Shape};
use crate::nn::Builder;
use crate::torch::{Dtype, ModuleId, Tensor, ops};
use peakledger_input::Problem;

/// Experts with a router by softmax, as its config.json has them.
#[derive(Clone, Debug)]
pub(super) struct Moe {
    routed: Routed,
    router: Router,
}

/// How a router weighs the experts it chose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Router {
    /// Whether the weights of a token's experts are made to sum to 1.
    pub(super) normalised: bool,
    /// Whether they stay in fp32, or go back to the type of the hidden states.
    pub(super) in_fp32: bool,
    /// Whether the block names the experts first, which is the order of its parameters.
    pub(super) after_experts: bool,
}

impl Moe {
    /// Reads the counts, of which the family knows the defaults.
    pub(super) fn read(
        reader: &mut Reader<'_>,
        shape: &mut Shape,
        intermediate_size: u64,
        router: Router,
        defaults: [u64; 2],
    ) -> Result<Moe, Problem> {
        let names = ["num_local_experts", "num_experts"];
        let routed = Routed::read(reader, shape, &names, intermediate_size, defaults)?;
        Ok(Moe { routed, router })
    }
}

impl Moe {
    /// The same as Megatron has them.
    pub(super) fn megatron(&self, layers: &[bool]) -> megatron::Experts {
        let Routed { num_experts, num_experts_per_tok, intermediate_size, .. } = self.routed;
        megatron::Experts {
            number: num_experts,
            chosen: num_experts_per_tok,
            width: intermediate_size,
            shared_width: None,
            score: megatron::Score::Softmax,
            layers: layers.to_vec(),
        }
    }
}

/// `…SparseMoeBlock`: the router and the experts.
pub(super) struct SparseMoeBlock {
    module: ModuleId,
    gate: TopKRouter,
    experts: Experts,
}

impl SparseMoeBlock {
    pub(super) fn new(build: &mut Builder, parent: ModuleId, shape: &Shape, moe: &Moe) -> SparseMoeBlock {
        let module = build.module(parent, "mlp");
        let router = |build: &mut Builder| TopKRouter::new(build, module, shape, moe);
        let before = (!moe.router.after_experts).then(|| router(build));
        let experts = Experts::new(build, module, shape, &moe.routed);
        SparseMoeBlock { module, gate: before.unwrap_or_else(|| router(build)), experts }
    }

    pub(super) fn forward(&self, hidden_states: &Tensor) -> Tensor {
        hidden_states.torch().inside(self.module, || {
            let [batch, length, hidden] = [0, 1, 2].map(|dim| hidden_states.size(dim));
            let tokens = batch.saturating_mul(length);
            let hidden_states = ops::reshape(hidden_states, &[tokens, hidden]);
            let (_router_logits, top_k_weights, top_k_index) = self.gate.forward(&hidden_states);
            let hidden_states = self.experts.forward(&hidden_states, &top_k_index, &top_k_weights);
            ops::reshape(hidden_states, &[batch, length, hidden])
        })
    }
}

/// `…TopKRouter`.
struct TopKRouter {
    module: ModuleId,
    weight: Tensor,
    top_k: u64,
    router: Router,
}

impl TopKRouter {
    fn new(build: &mut Builder, parent: ModuleId, shape: &Shape, moe: &Moe) -> TopKRouter {
        let module = build.module(parent, "gate");
        let weight = build.parameter(module, "weight", &[moe.routed.num_experts, shape.hidden_size]);
        TopKRouter { module, weight, top_k: moe.routed.num_experts_per_tok, router: moe.router }
    }

    /// The logits, and of each token the weights of its experts and which they are.
    fn forward(&self, hidden_states: &Tensor) -> (Tensor, Tensor, Tensor) {
        hidden_states.torch().inside(self.module, || {
            let hidden_states = ops::reshape(hidden_states, hidden_states.sizes());
            let router_logits = ops::linear(&hidden_states, &self.weight, None);
            let router_probs = match self.router.in_fp32 {
                true => ops::softmax(&ops::to(&router_logits, Dtype::F32)),
                false => ops::softmax_fp32(&router_logits),
            };
            let (mut top_value, indices) = ops::topk(&router_probs, self.top_k);
            if self.router.normalised {
                let total = ops::sum(&top_value, 1, true);
                top_value = ops::div_in_place(top_value, total);
            }
            if !self.router.in_fp32 {
                top_value = ops::to(&top_value, router_logits.dtype());
            }
            (router_logits, top_value, indices)
        })
    }
}
