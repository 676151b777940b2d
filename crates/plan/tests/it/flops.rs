//! FLOPs beside `torch.utils.flop_counter.FlopCounterMode` (torch 2.15) over the same modules on fake tensors, with a
//! formula of its own for `_grouped_mm`, which torch's table lacks: as many as the products that it is made of.

use crate::shared;
use peakledger_core::Phase;
use peakledger_plan::Costs;
use peakledger_plan::options::{Options, Recompute};
use peakledger_plan::plan;
use serde_json::Value;

#[test]
fn flops_are_those_that_torch_counts() {
    let rows = include_str!("../data/flops.jsonl");
    let mut wrong = Vec::new();
    for row in rows.lines() {
        let row: Value = serde_json::from_str(row).unwrap();
        let plan = shared::plan_of(&row["job"]).unwrap();
        let of = |phases: &[Phase]| -> Costs {
            let phases = plan.steady.phases.iter().filter(|phase| phases.contains(&phase.phase));
            phases.filter(|phase| phase.micro_batch == Some(0)).map(|phase| phase.costs).sum()
        };
        let (forward, backward) = (of(&[Phase::Forward, Phase::Loss]), of(&[Phase::Backward]));
        let again = row["backward"].as_u64().unwrap() - row["backward_without_checkpoint"].as_u64().unwrap();
        let mut same = |what: &str, planned: u128, truth: u64| {
            if planned != u128::from(truth) {
                wrong.push(format!("{} {what}: planned {planned}, truth {truth}", row["id"]));
            }
        };
        same("forward", forward.flops.total(), row["forward"].as_u64().unwrap());
        same("forward again", forward.recomputed.total(), 0);
        same("backward", backward.flops.total(), row["backward"].as_u64().unwrap());
        same("recomputed", backward.recomputed.total(), again);
    }
    assert!(rows.lines().count() >= 20);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The passes that an update makes over parameters, gradients and states, by pencil.
#[test]
fn an_update_moves_what_its_ops_read_and_write() {
    let row: Value =
        serde_json::from_str(include_str!("../data/flops.jsonl").lines().next().unwrap()).unwrap();
    let with = |optimizer: &str| {
        let mut job = row["job"].clone();
        job["optimizer"] = optimizer.into();
        shared::plan_of(&job).unwrap()
    };
    let moved = |optimizer: &str, first: bool| {
        let plan = with(optimizer);
        let step = if first { &plan.first } else { &plan.steady };
        let update = step.phases.iter().find(|phase| phase.phase == Phase::Update).unwrap();
        assert_eq!(update.costs.flops.total(), 0);
        update.costs.bytes_moved()
    };
    let parameters = 2 * u128::from(with("sgd").parameters);
    assert_eq!(moved("sgd", false), 3 * parameters);
    // parameter, gradient, two moments in; all but the gradient out
    assert_eq!(moved("adamw_fused", false), 7 * parameters);
    // mul_, lerp_, mul_, addcmul_, sqrt, div_, add_, addcdiv_
    assert_eq!(moved("adamw", false), (2 + 3 + 2 + 3 + 2 + 2 + 2 + 4) * parameters);
    assert_eq!(moved("adamw_forloop", false), moved("adamw", false));
    // two moments of zeros
    assert_eq!(moved("adamw", true) - moved("adamw", false), 2 * parameters);
}

/// What is computed again is counted apart, and is all that a checkpoint adds.
#[test]
fn a_checkpoint_adds_what_it_computes_again() {
    let row: Value =
        serde_json::from_str(include_str!("../data/flops.jsonl").lines().next().unwrap()).unwrap();
    let given = shared::plan_of(&row["job"]).unwrap();
    let options = Options { recompute: Recompute::Full, ..given.options.clone() };
    let checkpointed = plan(given.architecture.clone(), options).unwrap().steady.costs();
    let plain = given.steady.costs();
    assert_eq!(plain.recomputed.total(), 0);
    assert_eq!(checkpointed.flops.total() - plain.flops.total(), checkpointed.recomputed.total());
    assert!(checkpointed.recomputed.bf16 > 0 && checkpointed.recomputed.fp32 == 0);
    assert_eq!(checkpointed.host, plain.host, "nothing goes to the host");
}
