//! `TopKRouter` (`megatron/core/transformer/moe/router.py`) with `topk_routing_with_score_function` (`moe_utils.py`): the
//! experts of each token and their weights, in the type of the model (`moe_router_dtype` unset), without an auxiliary loss.

use crate::config::Shape;
use crate::nn::Builder;
use crate::torch::autograd::record;
use crate::torch::cost::product_flops;
use crate::torch::{Dtype, Layout, ModuleId, Tensor, ops};
use smallvec::smallvec;

/// How the router scores experts (`--moe-router-score-function`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Score {
    /// Softmax over those that were chosen.
    Softmax,
    /// Sigmoid, with a bias that is no parameter and decides the choice alone (`--moe-router-enable-expert-bias`).
    Sigmoid {
        /// Among how many groups of experts how many are chosen first (`--moe-router-num-groups`,
        /// `--moe-router-group-topk`).
        groups: Option<[u64; 2]>,
    },
}

/// A router.
pub(super) struct TopKRouter {
    module: ModuleId,
    gate: Tensor,
    score: Score,
    expert_bias: Option<Tensor>,
    _local_tokens_per_expert: Option<Tensor>,
    chosen: u64,
}

impl TopKRouter {
    pub(super) fn new(
        build: &mut Builder,
        parent: ModuleId,
        shape: &Shape,
        (experts, chosen, score): (u64, u64, Score),
    ) -> TopKRouter {
        let module = build.module(parent, "router");
        let gate = build.parameter(module, "weight", &[experts, shape.hidden_size]);
        let buffer = |name| {
            let is_biased = matches!(score, Score::Sigmoid { .. });
            is_biased.then(|| build.buffer(module, name, &[experts], Dtype::F32))
        };
        let _local_tokens_per_expert = buffer("local_tokens_per_expert");
        let expert_bias = buffer("expert_bias");
        TopKRouter { module, gate, score, expert_bias, _local_tokens_per_expert, chosen }
    }

    /// Of each token the weights of its experts and which they are, spread out over all experts.
    pub(super) fn forward(&self, hidden_states: &Tensor) -> (Tensor, Tensor) {
        hidden_states.torch().inside(self.module, || {
            let logits = gating(hidden_states, &self.gate);
            let tokens = logits.layout().numel() / logits.size(-1).max(1);
            let logits = ops::reshape(&logits, &[tokens, self.gate.size(0)]);
            match (self.score, &self.expert_bias) {
                (Score::Sigmoid { groups }, Some(bias)) => self.by_sigmoid(&logits, bias, groups),
                _ => {
                    let (scores, places) = ops::topk(&logits, self.chosen);
                    let probs = ops::to(ops::softmax(&ops::to(&scores, Dtype::F32)), logits.dtype());
                    spread_out(&logits, &probs, &places)
                }
            }
        })
    }

    fn by_sigmoid(&self, logits: &Tensor, bias: &Tensor, groups: Option<[u64; 2]>) -> (Tensor, Tensor) {
        let mut scores = ops::to(ops::sigmoid(ops::to(logits, Dtype::F32)), logits.dtype());
        let scores_for_routing = ops::add(&scores, bias);
        let (_best, places) = match groups {
            Some(groups) => group_limited_topk(&scores_for_routing, self.chosen, groups),
            None => ops::topk(&scores_for_routing, self.chosen),
        };
        scores = ops::gather(&scores, &places);
        let mut probs = match self.chosen {
            1 => scores.clone(),
            _ => ops::div(&scores, &ops::add_scalar(ops::sum(&scores, 1, true))),
        };
        probs = ops::mul_scalar(&probs);
        let routed = spread_out(logits, &probs, &places);
        // `_apply_expert_bias`, one compiled kernel that adds in place
        logits.torch().launch("local_tokens_per_expert");
        routed
    }
}

/// `group_limited_topk`: the groups with the best experts first, and the best experts of these.
fn group_limited_topk(scores: &Tensor, chosen: u64, [groups, best]: [u64; 2]) -> (Tensor, Tensor) {
    let [tokens, experts] = [0, 1].map(|dim| scores.size(dim));
    let of_group = experts / groups.max(1);
    let group_scores = {
        let grouped = ops::reshape(scores, &[tokens, groups, of_group]);
        let (values, indices) = ops::topk(&grouped, chosen / best.max(1));
        drop(indices);
        ops::sum(values, 2, false)
    };
    let (values, _group_idx) = ops::topk(&group_scores, best);
    drop(values);
    let group_mask = ops::zeros_like(&group_scores);
    ops::scatter_in_place(&group_mask);
    let score_mask = ops::expand(&ops::unsqueeze(&group_mask, 2), &[tokens, groups, of_group]);
    let score_mask = ops::reshape(score_mask, &[tokens, experts]);
    let is_left_out = ops::bitwise_not(ops::to(&score_mask, Dtype::Bool));
    let masked_scores = ops::masked_fill(scores, &is_left_out);
    drop(is_left_out);
    ops::topk(&masked_scores, chosen)
}

/// The weights and the choice, `[tokens, chosen]`, as rows over all experts.
fn spread_out(logits: &Tensor, probs: &Tensor, places: &Tensor) -> (Tensor, Tensor) {
    let torch = logits.torch();
    let spread = |op, dtype| {
        torch.launch(op);
        torch.empty(logits.layout().packed(), dtype)
    };
    let zeros = spread("zeros_like", logits.dtype());
    let saved = places.save();
    let layout = probs.layout().packed();
    let routing_probs = record(spread("scatter.src", logits.dtype()), &[probs], move |grad| {
        let _places = saved.unpack();
        grad.torch().launch("gather");
        smallvec![Some(grad.torch().empty(layout.clone(), grad.dtype()))]
    });
    drop(zeros);
    let zeros = spread("zeros_like", logits.dtype());
    let numbers = spread("_to_copy", Dtype::Int32);
    drop(zeros);
    let ones = spread("scatter.value", Dtype::Int32);
    drop(numbers);
    let routing_map = spread("_to_copy", Dtype::Bool);
    drop(ones);
    (routing_probs, routing_map)
}

/// `RouterGatingLinearFunction` (`moe_utils.py`). Saves its input.
fn gating(x: &Tensor, weight: &Tensor) -> Tensor {
    let product = |op, first: &Tensor, sizes: &[u64], inner: u64| {
        let torch = first.torch();
        torch.launch(op);
        let layout = Layout::contiguous(sizes);
        torch.multiplies(product_flops(layout.numel(), inner), first.dtype());
        torch.reads(&[first]);
        torch.empty(layout, first.dtype())
    };
    let logits = product("general_gemm", x, &[x.size(0), x.size(1), weight.size(0)], weight.size(1));
    let (saved, weight) = (x.save(), weight.clone());
    record(logits, &[x, &weight.clone()], move |grad| {
        let x = saved.unpack();
        let rows = grad.layout().numel() / grad.size(-1).max(1);
        let for_x = product("general_gemm", grad, x.sizes(), weight.size(0));
        smallvec![Some(for_x), Some(product("general_gemm", grad, weight.sizes(), rows))]
    })
}
