//! Mixture of experts: a router sends each token to a few of many gated MLPs, whose weights lie as two 3-D tensors. The
//! tokens are sorted by expert, so one grouped product serves all of them (`grouped_mm_experts_forward`,
//! `transformers/integrations/moe.py`): what is allocated depends on how many tokens there are, not on where they go.

use super::mlp::activate;
use crate::config::{Activation, Reader, Shape};
use crate::nn::Builder;
use crate::torch::{Dtype, ModuleId, Tensor, ops};
use peakledger_input::Problem;

/// The experts of a model, as its config.json has them.
#[derive(Clone, Debug)]
pub(super) struct Moe {
    num_experts: u64,
    num_experts_per_tok: u64,
    intermediate_size: u64,
    hidden_act: Activation,
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
        intermediate_size: u64,
        router: Router,
        [num_experts, num_experts_per_tok]: [u64; 2],
    ) -> Result<Moe, Problem> {
        let moe = Moe {
            num_experts: reader.number_or(&["num_local_experts", "num_experts"], num_experts)?,
            num_experts_per_tok: reader.number_or(&["num_experts_per_tok"], num_experts_per_tok)?,
            intermediate_size,
            hidden_act: reader.activation("hidden_act", Activation::Silu)?,
            router,
        };
        if moe.num_experts_per_tok > moe.num_experts {
            let (chosen, experts) = (moe.num_experts_per_tok, moe.num_experts);
            let cause = format!("a token goes to {chosen} experts and there are {experts}");
            return Err(reader.at("num_experts_per_tok", &cause, "it is at most the number of experts"));
        }
        if reader.flag("output_router_logits")? == Some(true) {
            let cause = "the load-balancing loss of the routers is not planned yet";
            return Err(reader.at(
                "output_router_logits",
                cause,
                "set it to false to plan without that loss",
            ));
        }
        Ok(moe)
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
        let experts = Experts::new(build, module, shape, moe);
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
        let weight = build.parameter(module, "weight", &[moe.num_experts, shape.hidden_size]);
        TopKRouter { module, weight, top_k: moe.num_experts_per_tok, router: moe.router }
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

/// `…Experts`: `gate_up_proj` `[experts, 2 · intermediate, hidden]` and `down_proj` `[experts, hidden, intermediate]`.
struct Experts {
    module: ModuleId,
    act_fn: ModuleId,
    gate_up_proj: Tensor,
    down_proj: Tensor,
    activation: Activation,
}

impl Experts {
    fn new(build: &mut Builder, parent: ModuleId, shape: &Shape, moe: &Moe) -> Experts {
        let module = build.module(parent, "experts");
        build.stays_whole("an expert's weight");
        let (experts, inner, hidden) = (moe.num_experts, moe.intermediate_size, shape.hidden_size);
        let gate_up = [experts, inner.saturating_mul(2), hidden];
        Experts {
            module,
            act_fn: build.module(module, "act_fn"),
            gate_up_proj: build.parameter(module, "gate_up_proj", &gate_up),
            down_proj: build.parameter(module, "down_proj", &[experts, hidden, inner]),
            activation: moe.hidden_act,
        }
    }

    fn forward(&self, hidden_states: &Tensor, top_k_index: &Tensor, top_k_weights: &Tensor) -> Tensor {
        let torch = hidden_states.torch();
        torch.inside(self.module, || {
            let (tokens, top_k) = (top_k_index.size(0), top_k_index.size(1));
            let selected = tokens.saturating_mul(top_k);
            let sample_weights = ops::reshape(top_k_weights, &[selected]);
            let expert_ids = ops::reshape(top_k_index, &[selected]);

            let (expert_ids, permutation) = ops::sort(&expert_ids);
            let hidden_of_selected = ops::index(hidden_states, ops::floor_divide(&permutation));
            let sample_weights = ops::index(&sample_weights, &permutation);
            let histogram_input = ops::to_copy(&expert_ids, Dtype::Int32);
            let tokens_per_expert = ops::histc(&histogram_input, self.gate_up_proj.size(0));
            let offsets = ops::cumsum(&tokens_per_expert);

            let mut projected = ops::grouped_mm(&hidden_of_selected, &self.gate_up_proj, &offsets);
            projected = self.apply_gate(&projected);
            projected = ops::grouped_mm(&projected, &self.down_proj, &offsets);

            let mut weighted = ops::mul(&projected, ops::unsqueeze(&sample_weights, 1));
            let inverse = ops::inverse_permutation(&permutation);
            weighted = ops::index(&weighted, &inverse);
            let of_token = ops::reshape(&weighted, &[tokens, top_k, hidden_states.size(1)]);
            let summed = ops::sum(of_token, 1, false);
            ops::to(&summed, hidden_states.dtype())
        })
    }

    fn apply_gate(&self, gate_up: &Tensor) -> Tensor {
        let half = gate_up.size(1) / 2;
        let [gate, up] = ops::split_last(gate_up, [half, half]);
        let gate = gate_up.torch().inside(self.act_fn, || activate(self.activation, gate));
        ops::mul(gate, up)
    }
}
