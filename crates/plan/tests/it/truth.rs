//! Phase by phase: every row of the truth table that this version plans.

use crate::shared;
use peakledger_plan::{Plan, Step, StepPlan};
use serde_json::Value;
use std::collections::BTreeMap;

#[test]
fn every_row_of_the_full_table() {
    let Some(folder) = shared::folder() else { return };
    let text = std::fs::read_to_string(folder.join("truth.jsonl")).unwrap();
    let planned = check(&text);
    assert!(planned >= 18, "only {planned} rows planned");
}

/// The project's own rows, made with the same oracle from small configurations that differ in one thing each.
#[test]
fn every_row_of_the_own_table() {
    let rows = include_str!("../data/truth.jsonl");
    assert_eq!(check(rows), rows.lines().count());
}

/// Rows of models that are split by tensor parallel styles, each one rank of a process group without the other ranks
/// (`torch.testing._internal.distributed.fake_pg`).
#[test]
fn every_row_of_a_tensor_parallel_rank() {
    let rows = include_str!("../data/tensor_parallel.jsonl");
    assert_eq!(check(rows), rows.lines().count());
}

fn check(table: &str) -> usize {
    let mut planned = 0;
    let (mut wrong, mut skipped) = (Vec::new(), BTreeMap::new());
    for row in table.lines().filter(|line| !line.is_empty()) {
        let row: Value = serde_json::from_str(row).unwrap();
        match shared::plan_of(&row["job"]) {
            Err(reason) => *skipped.entry(reason).or_default() += 1,
            Ok(plan) => {
                planned += 1;
                compare(&row, &plan, &mut wrong);
            }
        }
    }
    shared::say_skipped("truth table", planned, &skipped);
    assert!(wrong.is_empty(), "{} figures differ:\n{}", wrong.len(), wrong.join("\n"));
    planned
}

fn compare(row: &Value, plan: &Plan, wrong: &mut Vec<String>) {
    let id = row["id"].as_str().unwrap();
    for step in [Step::First, Step::Steady] {
        let ledger = plan.ledger(step).unwrap();
        let mut names: Vec<&str> = ledger.states().iter().map(|state| state.name.as_ref()).collect();
        names.sort_unstable();
        wrong.extend(
            names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| format!("{id}: twice {}", pair[0])),
        );
    }
    let mut same = |what: String, planned: u64, truth: u64| {
        if planned != truth {
            wrong.push(format!(
                "{id} {what}: planned {planned}, truth {truth}, off by {}",
                i128::from(planned) - i128::from(truth)
            ));
        }
    };
    same("parameters".to_owned(), plan.parameters, row["params"].as_u64().unwrap());
    same("trainable".to_owned(), plan.trainable, row["trainable"].as_u64().unwrap());
    for (step, key) in [(&plan.first, "first_step"), (&plan.steady, "steady_step")] {
        let truth = phases(&row[key]);
        let micro_batches = row["job"]["accum"].as_u64().unwrap_or(1);
        let mut held = if key == "first_step" { 0 } else { micro_batches * held_by_tracker(&row["job"]) };
        for (phase, peak, end) in figures(step) {
            let (true_peak, true_end) = truth[&phase];
            same(format!("{key} {phase} peak"), peak + held, true_peak);
            let in_backward = phase.starts_with("backward");
            // a loop that keeps the output keeps its graph, and so the plan itself has them until here
            let keeps_output = row["job"]["drop_logits"] != true;
            if in_backward && !keeps_output {
                held += held_by_tracker(&row["job"]);
            }
            same(format!("{key} {phase} end"), end + held, true_end);
            if in_backward && keeps_output {
                held += held_by_tracker(&row["job"]);
            }
        }
    }
    let peak = plan.steady.phases.iter().rev().max_by_key(|p| p.peak).unwrap();
    let truth = phases(&row["steady_step"]);
    let largest = truth.values().map(|(peak, _)| *peak).max().unwrap();
    let name = phase_name(&peak.phase.to_string(), peak.micro_batch);
    // what the tracker holds of its own can move its peak to another phase
    if held_by_tracker(&row["job"]) == 0 && truth[&name].0 != largest {
        wrong.push(format!("{id}: the peak is not in {name}"));
    }
}

/// What the tracker itself keeps of each step: with a frozen embedding under checkpoints the embedding's output is a leaf that asks
/// for its gradient, and the tracker's module hooks hold it and its gradient for good. Plain training lets them go when
/// backward ends (weak references to that storage are dead then; torch 2.15, peft, transformers 5.24).
pub(crate) fn held_by_tracker(job: &Value) -> u64 {
    let checkpointed = job["checkpoint"] == true || job["selective"] == true || !job["every"].is_null();
    let mut parts = job["freeze"].as_array().into_iter().flatten();
    let is_embedding = |part: &Value| part == "model.embed_tokens" || part == "transformer.wte";
    // of which a copy may be trained in its place
    let saved = job["lora"]["modules_to_save"].as_array().into_iter().flatten();
    let is_saved = saved.into_iter().any(|name| name == "embed_tokens" || name == "wte");
    let frozen_embedding = (!job["lora"].is_null() && !is_saved) || parts.any(is_embedding);
    if !frozen_embedding || !checkpointed {
        return 0;
    }
    let number = |value: &Value| value.as_u64().unwrap();
    let config = &job["config"];
    let width = number(config.get("hidden_size").unwrap_or(&config["n_embd"]));
    let elements = number(&job["batch"]) * number(&job["seq"]) * width;
    let width = if job["precision"] == "pure" { 2 } else { 4 };
    2 * elements * width
}

pub(crate) fn figures(step: &StepPlan) -> impl Iterator<Item = (String, u64, u64)> + '_ {
    step.phases
        .iter()
        .map(|p| (phase_name(&p.phase.to_string(), p.micro_batch), p.peak.get(), p.end.get()))
        .filter(|(name, ..)| name != "load")
}

fn phase_name(phase: &str, micro_batch: Option<u32>) -> String {
    micro_batch.map_or(phase.to_owned(), |i| format!("{phase}.{i}"))
}

/// The tracker's phases, its clip being part of the update.
pub(crate) fn phases(step: &Value) -> BTreeMap<String, (u64, u64)> {
    let mut phases: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for row in step.as_array().unwrap() {
        // the full table has objects with classes, the own one [phase, peak, end]
        let field =
            |key: &str, index: usize| if row.is_array() { row[index].clone() } else { row[key].clone() };
        let total = |value: Value| value["Total"].as_u64().or(value.as_u64()).unwrap();
        let name = field("phase", 0).as_str().unwrap().replace("clip", "update");
        let entry = phases.entry(name).or_default();
        *entry = (entry.0.max(total(field("peak", 1))), total(field("end", 2)));
    }
    phases
}
