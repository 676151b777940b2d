//! The experts of `deepseek_v3`: routed ones beside shared ones, and a router that chooses groups of experts first
//! (`transformers/models/deepseek_v3/modeling_deepseek_v3.py`).

use super::deepseek_v3::DeepseekV3;
use super::experts::Experts;
use super::mlp::GatedMlp;
use crate::config::Shape;
use crate::nn::Builder;
use crate::torch::{Dtype, ModuleId, Tensor, ops};

/// `DeepseekV3MoE`: routed experts, and shared ones that lie as one MLP.
pub(super) struct SharedMoe {
    module: ModuleId,
    experts: Experts,
    gate: TopkRouter,
    shared_experts: GatedMlp,
}

impl SharedMoe {
    pub(super) fn new(
        build: &mut Builder,
        parent: ModuleId,
        shape: &Shape,
        deepseek: &DeepseekV3,
    ) -> SharedMoe {
        let module = build.module(parent, "mlp");
        let routed = &deepseek.routed;
        let shared = routed.intermediate_size.saturating_mul(deepseek.n_shared_experts);
        let sizes = (shape.hidden_size, shared);
        SharedMoe {
            module,
            experts: Experts::new(build, module, shape, routed),
            gate: TopkRouter::new(build, module, shape, deepseek),
            shared_experts: GatedMlp::named(
                build,
                module,
                "shared_experts",
                sizes,
                deepseek.hidden_act,
                false,
            ),
        }
    }

    pub(super) fn forward(&self, residuals: &Tensor) -> Tensor {
        residuals.torch().inside(self.module, || {
            let [batch, length, hidden] = [0, 1, 2].map(|dim| residuals.size(dim));
            let (_router_logits, topk_weights, topk_indices) = self.gate.forward(residuals);
            let mut hidden_states = ops::reshape(residuals, &[batch.saturating_mul(length), hidden]);
            hidden_states = self.experts.forward(&hidden_states, &topk_indices, &topk_weights);
            hidden_states = ops::reshape(hidden_states, &[batch, length, hidden]);
            ops::add(&hidden_states, self.shared_experts.forward(residuals))
        })
    }
}

/// `DeepseekV3TopkRouter`, in fp32 whatever the type of the model: the best groups of experts first, and among them the best
/// experts, by scores with a bias that is no parameter.
struct TopkRouter {
    module: ModuleId,
    weight: Tensor,
    e_score_correction_bias: Tensor,
    deepseek: DeepseekV3,
}

impl TopkRouter {
    fn new(build: &mut Builder, parent: ModuleId, shape: &Shape, deepseek: &DeepseekV3) -> TopkRouter {
        let module = build.module(parent, "gate");
        let experts = deepseek.routed.num_experts;
        let weight = build.parameter_of(module, "weight", &[experts, shape.hidden_size], Dtype::F32);
        let e_score_correction_bias = build.buffer(module, "e_score_correction_bias", &[experts], Dtype::F32);
        TopkRouter { module, weight, e_score_correction_bias, deepseek: *deepseek }
    }

    /// The logits, and of each token the weights of its experts and which they are.
    fn forward(&self, hidden_states: &Tensor) -> (Tensor, Tensor, Tensor) {
        let deepseek = &self.deepseek;
        let experts = deepseek.routed.num_experts;
        let groups = [deepseek.n_group, experts / deepseek.n_group.max(1)];
        hidden_states.torch().inside(self.module, || {
            let [batch, length, hidden] = [0, 1, 2].map(|dim| hidden_states.size(dim));
            let tokens = batch.saturating_mul(length);
            let hidden_states = ops::reshape(hidden_states, &[tokens, hidden]);
            // the weight is cast where it is gathered in another type than it is kept in
            let [hidden_in_fp32, weight] =
                [&hidden_states, &self.weight].map(|operand| ops::to(operand, Dtype::F32));
            let router_logits = ops::linear(hidden_in_fp32, &weight, None);
            drop(weight);
            let scores = ops::sigmoid(&router_logits);
            let mut scores_for_choice = ops::add(&scores, &self.e_score_correction_bias);
            let [of_groups, of_group] = groups;
            let group_scores = {
                let (best_two, indices) =
                    ops::topk(&ops::reshape(&scores_for_choice, &[tokens, of_groups, of_group]), 2);
                drop(indices);
                ops::sum(best_two, 2, false)
            };
            let (values, _group_idx) = ops::topk(&group_scores, deepseek.topk_group);
            drop(values);
            let group_mask = ops::zeros_like(&group_scores);
            ops::scatter_in_place(&group_mask);
            let score_mask = ops::expand(&ops::unsqueeze(&group_mask, 2), &[tokens, of_groups, of_group]);
            let score_mask = ops::reshape(score_mask, &[tokens, experts]);
            let is_left_out = ops::bitwise_not(ops::to(&score_mask, Dtype::Bool));
            scores_for_choice = ops::masked_fill(&scores_for_choice, &is_left_out);
            drop(is_left_out);
            let (values, topk_indices) = ops::topk(&scores_for_choice, deepseek.routed.num_experts_per_tok);
            drop(values);
            let mut topk_weights = ops::gather(&scores, &topk_indices);
            let _denominator;
            if deepseek.norm_topk_prob {
                let denominator = ops::add_scalar(ops::sum(&topk_weights, 1, true));
                topk_weights = ops::div_in_place(topk_weights, denominator.clone());
                _denominator = denominator;
            }
            topk_weights = ops::mul_scalar(&topk_weights);
            (router_logits, topk_weights, topk_indices)
        })
    }
}
