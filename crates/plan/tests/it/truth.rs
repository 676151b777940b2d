//! Phase by phase: every row of the truth table that this version plans.

use crate::shared;
use peakledger_plan::{Plan, StepPlan};
use serde_json::Value;
use std::collections::BTreeMap;

#[test]
fn every_row_of_the_full_table() {
    let Some(folder) = shared::folder() else { return };
    let text = std::fs::read_to_string(folder.join("truth.jsonl")).unwrap();
    let planned = check(&text);
    assert!(planned >= 20, "only {planned} rows planned");
}

fn check(table: &str) -> usize {
    let mut planned = 0;
    let mut wrong = Vec::new();
    for row in table.lines().filter(|line| !line.is_empty()) {
        let row: Value = serde_json::from_str(row).unwrap();
        match shared::plan_of(&row["job"]) {
            Err(reason) => println!("SKIPPED {}: {reason} is not planned yet", row["id"]),
            Ok(plan) => {
                planned += 1;
                compare(&row, &plan, &mut wrong);
            }
        }
    }
    assert!(wrong.is_empty(), "{} figures differ:\n{}", wrong.len(), wrong.join("\n"));
    planned
}

fn compare(row: &Value, plan: &Plan, wrong: &mut Vec<String>) {
    let id = row["id"].as_str().unwrap();
    let mut same = |what: String, planned: u64, truth: u64| {
        if planned != truth {
            wrong.push(format!("{id} {what}: planned {planned}, truth {truth}, off by {}", planned as i64 - truth as i64));
        }
    };
    same("parameters".to_owned(), plan.parameters, row["params"].as_u64().unwrap());
    same("trainable".to_owned(), plan.trainable, row["trainable"].as_u64().unwrap());
    for (step, key) in [(&plan.first, "first_step"), (&plan.steady, "steady_step")] {
        let truth = phases(&row[key]);
        for (phase, peak, end) in figures(step) {
            let (true_peak, true_end) = truth[&phase];
            same(format!("{key} {phase} peak"), peak, true_peak);
            same(format!("{key} {phase} end"), end, true_end);
        }
    }
    let peak = plan.steady.phases.iter().rev().max_by_key(|p| p.peak).unwrap();
    same("peak".to_owned(), peak.peak.get(), row["peak_bytes"].as_u64().unwrap());
    let name = phase_name(&peak.phase.to_string(), peak.micro_batch);
    assert_eq!(name, row["peak_phase"].as_str().unwrap().replace("clip", "update"), "{id}");
}

fn figures(step: &StepPlan) -> impl Iterator<Item = (String, u64, u64)> + '_ {
    step.phases
        .iter()
        .map(|p| (phase_name(&p.phase.to_string(), p.micro_batch), p.peak.get(), p.end.get()))
        .filter(|(name, ..)| name != "load")
}

fn phase_name(phase: &str, micro_batch: Option<u32>) -> String {
    micro_batch.map_or(phase.to_owned(), |i| format!("{phase}.{i}"))
}

/// The tracker's phases, its clip being part of the update.
fn phases(step: &Value) -> BTreeMap<String, (u64, u64)> {
    let mut phases: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for row in step.as_array().unwrap() {
        let name = row["phase"].as_str().unwrap().replace("clip", "update");
        let total = |key: &str| row[key]["Total"].as_u64().unwrap();
        let entry = phases.entry(name).or_default();
        *entry = (entry.0.max(total("peak")), total("end"));
    }
    phases
}
