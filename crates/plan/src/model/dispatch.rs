//! Expert parallel: whole experts on each rank, and the tokens sent to them (`AllToAllEP`,
//! `transformers/distributed/expert_parallel.py`, what `ep_implementation="auto"` runs in training).
//!
//! The ranks of a tensor parallel group share their batch: each keeps a slice of it. A token goes, once for each of its
//! experts, to the rank that has it, and what the expert makes of it comes back and is weighted where it came from. How
//! many rows a rank receives is data: as many as it sends, or so many times that.

use crate::parallel::experts::ExpertParallel;
use crate::torch::{Tensor, ops};

/// What brings the results back.
struct Sent {
    top_k_weights: Tensor,
    order: Tensor,
    tokens: u64,
}

/// Runs `experts` over the rows that a rank receives of `tokens`, each with the one expert of this rank that it is for.
pub(super) fn dispatched(
    parallel: ExpertParallel,
    local_experts: u64,
    [hidden_states, top_k_index, top_k_weights]: [&Tensor; 3],
    experts: impl FnOnce([&Tensor; 3]) -> Tensor,
) -> Tensor {
    let dtype = hidden_states.dtype();
    let output = {
        let ([received, ids, weights], sent) =
            dispatch(parallel, local_experts, [hidden_states, top_k_index, top_k_weights]);
        let made = experts([&received, &ids, &weights]);
        let output = combine(parallel, &made, &sent);
        drop((received, ids, weights, sent));
        output
    };
    ops::to(&output, dtype)
}

fn dispatch(
    parallel: ExpertParallel,
    local_experts: u64,
    [hidden_states, top_k_index, top_k_weights]: [&Tensor; 3],
) -> ([Tensor; 3], Sent) {
    let tokens = hidden_states.size(0);
    let own = |shared: &Tensor| match parallel.tensor {
        Some(group) => ops::chunk(shared, 0, group),
        None => shared.clone(),
    };
    let (hidden_states, top_k_index, top_k_weights) =
        (own(hidden_states), own(top_k_index), own(top_k_weights));
    let rows = top_k_index.layout().numel();
    let (_, order) = ops::sort(&ops::reshape(&top_k_index, &[rows]));
    let send_tokens = ops::index(&hidden_states, &[&ops::floor_divide(&order)]);
    let _counts = ops::exchange_counts(&order, local_experts, parallel.group);
    let received = ops::all_to_all(&send_tokens, parallel.received(rows), parallel.group);
    let ids = ops::received_ids(&received, local_experts, parallel.group);
    let weights = ops::ones_column(&ids, received.dtype());
    ([received, ids, weights], Sent { top_k_weights, order, tokens })
}

fn combine(parallel: ExpertParallel, made: &Tensor, sent: &Sent) -> Tensor {
    let [rows, top_k, hidden] = [sent.top_k_weights.size(0), sent.top_k_weights.size(1), made.size(1)];
    let returned = ops::all_to_all(made, rows.saturating_mul(top_k), parallel.group);
    let in_order = ops::reshape(ops::put_rows(&returned, &sent.order), &[rows, top_k, hidden]);
    let output = ops::sum(ops::mul(&in_order, ops::unsqueeze(&sent.top_k_weights, 2)), 1, false);
    match parallel.tensor {
        Some(group) => ops::all_gather(output, 0, sent.tokens, group),
        None => output,
    }
}
