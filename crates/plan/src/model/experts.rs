//! The experts of a layer: gated MLPs whose weights lie as two 3-D tensors.
//!
//! By `grouped_mm` the tokens are sorted by expert and one grouped product serves all of them
//! (`grouped_mm_experts_forward`, `transformers/integrations/moe.py`): what is allocated depends on how many tokens there
//! are, not on where they go. By `eager` the experts run one after the other, each over its own tokens (`…Experts.forward`
//! of the modeling files), and the gradient of each is as large as that of all of them.

use super::dispatch::dispatched;
use super::mlp::activate;
use crate::config::{Activation, Reader, Shape};
use crate::nn::{Builder, Spread};
use crate::options::Experts as Way;
use crate::parallel::experts::ExpertParallel;
use crate::parallel::tensor::Split;
use crate::torch::{Dtype, ModuleId, Tensor, ops};
use peakledger_input::Problem;

/// The experts of a model, as its config.json has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Routed {
    pub(super) num_experts: u64,
    pub(super) num_experts_per_tok: u64,
    pub(super) intermediate_size: u64,
    pub(super) hidden_act: Activation,
}

impl Routed {
    /// Reads the counts, of which the family knows the defaults, and notes in the shape how many experts there are.
    pub(super) fn read(
        reader: &mut Reader<'_>,
        shape: &mut Shape,
        names: &[&'static str],
        intermediate_size: u64,
        [num_experts, num_experts_per_tok]: [u64; 2],
    ) -> Result<Routed, Problem> {
        let routed = Routed {
            num_experts: reader.number_or(names, num_experts)?,
            num_experts_per_tok: reader.number_or(&["num_experts_per_tok"], num_experts_per_tok)?,
            intermediate_size,
            hidden_act: reader.activation("hidden_act", Activation::Silu)?,
        };
        if routed.num_experts_per_tok > routed.num_experts {
            let (chosen, experts) = (routed.num_experts_per_tok, routed.num_experts);
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
        shape.num_experts = routed.num_experts;
        Ok(routed)
    }
}

/// `gate_up_proj` `[experts, 2 · intermediate, hidden]` and `down_proj` `[experts, hidden, intermediate]`.
struct Weights {
    gate_up_proj: Tensor,
    down_proj: Tensor,
}

/// `…Experts`.
pub(super) struct Experts {
    module: ModuleId,
    act_fn: ModuleId,
    weights: Weights,
    activation: Activation,
    way: Way,
    /// How every expert is split among tensor parallel ranks, if they are.
    split: Option<Split>,
    /// How experts are spread over ranks, if they are.
    spread: Option<ExpertParallel>,
}

impl Experts {
    pub(super) fn new(build: &mut Builder, parent: ModuleId, shape: &Shape, routed: &Routed) -> Experts {
        let module = build.module(parent, "experts");
        build.stays_whole("an expert's weight");
        let (experts, inner, hidden) = (routed.num_experts, routed.intermediate_size, shape.hidden_size);
        let spread = build.expert_parallel;
        let split = build.split(module).filter(|_| spread.is_none());
        let part = split.map_or(inner, |split| split.group.part(inner));
        let here = spread.map_or(experts, |spread| spread.group.part(experts));
        let among = match (split, spread) {
            (_, Some(_)) => Spread::Experts,
            (Some(_), None) => Spread::Tensor,
            (None, None) => Spread::None,
        };
        let mut weight = |name, sizes: [u64; 3], whole: u64| {
            build.part((module, name), &sizes, experts.saturating_mul(whole), among)
        };
        let of_down = inner.saturating_mul(hidden);
        let gate_up_proj =
            weight("gate_up_proj", [here, part.saturating_mul(2), hidden], of_down.saturating_mul(2));
        let down_proj = weight("down_proj", [here, hidden, part], of_down);
        Experts {
            module,
            act_fn: build.module(module, "act_fn"),
            weights: Weights { gate_up_proj, down_proj },
            split,
            spread,
            activation: routed.hidden_act,
            way: build.experts,
        }
    }

    pub(super) fn forward(
        &self,
        hidden_states: &Tensor,
        top_k_index: &Tensor,
        top_k_weights: &Tensor,
    ) -> Tensor {
        let torch = hidden_states.torch();
        torch.inside(self.module, || match (self.spread, self.split) {
            (Some(spread), _) => {
                let run = |[hidden_states, top_k_weights]: &[Tensor; 2]| {
                    let weights = self.local_weights();
                    let inputs = [hidden_states, top_k_index, top_k_weights];
                    dispatched(spread, weights.gate_up_proj.size(0), inputs, |inputs| {
                        self.grouped_mm(&weights, inputs)
                    })
                };
                let hooks = torch.module_hooks.borrow().clone();
                match hooks {
                    Some(hooks) => {
                        hooks.around_experts(self.module, [hidden_states, top_k_weights], Box::new(run))
                    }
                    None => run(&[hidden_states.clone(), top_k_weights.clone()]),
                }
            }
            // each rank runs its part of every expert over all tokens (`MoeExpertsParallel`)
            (None, Some(Split { group, .. })) => {
                let hidden_states = ops::gradient_reduced_in_place(hidden_states, group);
                let top_k_weights = ops::gradient_reduced_in_place(top_k_weights, group);
                let inputs = [&hidden_states, top_k_index, &top_k_weights];
                ops::all_reduce_in_place(self.run(&self.local_weights(), inputs), group)
            }
            (None, None) => self.run(&self.weights, [hidden_states, top_k_index, top_k_weights]),
        })
    }

    /// The weights of DTensors as the tensors that they are on this rank (`_use_local_dtensor_params`): their gradients
    /// meet there.
    fn local_weights(&self) -> Weights {
        let Weights { gate_up_proj, down_proj } = &self.weights;
        Weights { gate_up_proj: ops::from_local(gate_up_proj), down_proj: ops::from_local(down_proj) }
    }

    fn run(&self, weights: &Weights, inputs: [&Tensor; 3]) -> Tensor {
        match self.way {
            Way::GroupedMm => self.grouped_mm(weights, inputs),
            Way::Eager { imbalance } => self.eager(weights, inputs, imbalance),
        }
    }

    fn grouped_mm(
        &self,
        weights: &Weights,
        [hidden_states, top_k_index, top_k_weights]: [&Tensor; 3],
    ) -> Tensor {
        let (tokens, top_k) = (top_k_index.size(0), top_k_index.size(1));
        let selected = tokens.saturating_mul(top_k);
        let sample_weights = ops::reshape(top_k_weights, &[selected]);
        let expert_ids = ops::reshape(top_k_index, &[selected]);

        let (expert_ids, permutation) = ops::sort(&expert_ids);
        let hidden_of_selected = ops::index(hidden_states, &[&ops::floor_divide(&permutation)]);
        let sample_weights = ops::index(&sample_weights, &[&permutation]);
        let histogram_input = ops::to_copy(&expert_ids, Dtype::Int32);
        let tokens_per_expert = ops::histc(&histogram_input, weights.gate_up_proj.size(0));
        let offsets = ops::cumsum(&tokens_per_expert);
        // rows of experts that are elsewhere, of which there are none where tokens were sent to their experts
        let elsewhere = self.spread.map(|_| ops::at_least(&expert_ids));

        let hidden_of_selected = match &elsewhere {
            None => hidden_of_selected,
            Some(mask) => ops::masked_fill_in_place(&hidden_of_selected, mask),
        };
        let mut projected = ops::grouped_mm(&hidden_of_selected, &weights.gate_up_proj, &offsets);
        if let Some(mask) = &elsewhere {
            projected = ops::masked_fill(&projected, mask);
        }
        projected = self.apply_gate(&projected);
        projected = ops::grouped_mm(&projected, &weights.down_proj, &offsets);
        if let Some(mask) = &elsewhere {
            projected = ops::masked_fill(&projected, mask);
        }

        let mut weighted = ops::mul(&projected, ops::unsqueeze(&sample_weights, 1));
        let inverse = ops::inverse_permutation(&permutation);
        weighted = ops::index(&weighted, &[&inverse]);
        let of_token = ops::reshape(&weighted, &[tokens, top_k, hidden_states.size(1)]);
        let summed = ops::sum(of_token, 1, false);
        ops::to(&summed, hidden_states.dtype())
    }

    fn apply_gate(&self, gate_up: &Tensor) -> Tensor {
        let half = gate_up.size(1) / 2;
        let [gate, up] = ops::split_last(gate_up, [half, half]);
        ops::mul(self.activated(gate), up)
    }

    fn activated(&self, gate: Tensor) -> Tensor {
        gate.torch().clone().inside(self.act_fn, || activate(self.activation, gate))
    }

    fn eager(
        &self,
        weights: &Weights,
        [hidden_states, top_k_index, top_k_weights]: [&Tensor; 3],
        imbalance: f64,
    ) -> Tensor {
        let torch = hidden_states.torch();
        let experts = weights.gate_up_proj.size(0);
        let mut hit = rows_of_experts([top_k_index.size(0), top_k_index.size(1)], experts, imbalance);
        hit.retain(|rows| *rows > 0);

        let mut final_hidden_states = ops::zeros_like(hidden_states);
        let expert_mask = ops::one_hot(top_k_index, experts.saturating_add(1));
        let _expert_hit = {
            let tokens_per_expert = ops::sum_of_rows(&expert_mask);
            let is_hit = ops::greater(tokens_per_expert);
            ops::nonzero(&is_hit, u64::try_from(hit.len()).unwrap_or(u64::MAX))
        };
        // what a name of the loop's body holds until it is bound again
        let (mut token_idx, mut current_state, mut gate_up) = (None, None, None);
        let mut _current_hidden_states: Option<Tensor> = None;
        for rows in hit {
            drop(ops::equal(torch));
            let found = ops::nonzero(&expert_mask, rows);
            let token_idx = token_idx.insert(found);
            let current_state = current_state.insert(ops::index(hidden_states, &[token_idx]));
            let projected = ops::linear(&*current_state, &ops::select(&weights.gate_up_proj), None);
            let half = projected.size(1) / 2;
            let [gate, up] = gate_up.insert(ops::split_last(&projected, [half, half]));
            drop(projected);
            let gated = ops::mul(self.activated(gate.clone()), &*up);
            _current_hidden_states = None;
            let mut current = gated;
            current = ops::linear(&current, &ops::select(&weights.down_proj), None);
            current =
                ops::mul(&current, ops::index(ops::unsqueeze(top_k_weights, 2), &[token_idx, token_idx]));
            let source = ops::to(&current, final_hidden_states.dtype());
            final_hidden_states = ops::index_add_in_place(final_hidden_states, token_idx, source);
            _current_hidden_states = Some(current);
        }
        final_hidden_states
    }
}

/// How many rows each expert has, of `tokens` that go to `top_k` experts each. The last is given `imbalance` times the mean,
/// but no token twice; the others share the rest evenly.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)] // a share of what fits 53 bits
fn rows_of_experts([tokens, top_k]: [u64; 2], experts: u64, imbalance: f64) -> Vec<u64> {
    let rows = tokens.saturating_mul(top_k);
    let evenly = |rows: u64, experts: u64| {
        (0..experts).map(move |expert| rows / experts + u64::from(expert < rows % experts))
    };
    if imbalance <= 1.0 {
        return evenly(rows, experts).collect();
    }
    let busiest = ((rows as f64 * imbalance / experts as f64) as u64).min(tokens);
    let others = evenly(rows - busiest.min(rows), experts.saturating_sub(1));
    others.chain([busiest]).collect()
}

#[cfg(test)]
mod tests {
    use super::rows_of_experts;

    #[test]
    fn rows_are_shared_out() {
        assert_eq!(rows_of_experts([5, 3], 4, 1.0), [4, 4, 4, 3]);
        assert_eq!(rows_of_experts([5, 1], 8, 1.0), [1, 1, 1, 1, 1, 0, 0, 0]);
        assert_eq!(rows_of_experts([100, 2], 4, 1.5), [42, 42, 41, 75]);
        assert_eq!(rows_of_experts([100, 2], 4, 3.0), [34, 33, 33, 100], "no token goes twice to one");
        assert_eq!(rows_of_experts([7, 1], 1, 2.0), [7]);
    }
}
