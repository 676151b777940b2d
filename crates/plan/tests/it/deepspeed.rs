//! Steps that DeepSpeed itself ran, phase by phase: every row of the table that `tests/oracle/deepspeed_engine.py` made.

use crate::shared;
use crate::truth::{figures, phases};
use peakledger_plan::options::{HoldOutputs, Offload, Options};
use peakledger_plan::parallel::{DataParallel, Parallel, Sharding, ZeroSizes};
use peakledger_plan::{Dtype, Plan, plan};
use serde_json::{Value, json};

#[test]
fn every_row_of_the_table() {
    check(include_str!("../data/deepspeed.jsonl"));
}

/// More rows to hold the planner against while one writes a rule: a file with a row a line.
#[test]
fn every_row_of_further_tables() {
    let Some(path) = std::env::var_os("PEAKLEDGER_DEEPSPEED") else {
        return shared::say("SKIPPED: PEAKLEDGER_DEEPSPEED names no further table of DeepSpeed's steps");
    };
    check(&std::fs::read_to_string(path).unwrap());
}

fn check(table: &str) {
    let mut wrong = Vec::new();
    for row in table.lines() {
        let row: Value = serde_json::from_str(row).unwrap();
        match planned(&row["job"]) {
            Ok(plan) => compare(&row, &plan, &mut wrong),
            Err(problem) => wrong.push(format!("{}: {problem}", row["id"])),
        }
    }
    assert!(wrong.is_empty(), "{} figures differ:\n{}", wrong.len(), wrong.join("\n"));
}

fn compare(row: &Value, plan: &Plan, wrong: &mut Vec<String>) {
    let id = row["id"].as_str().unwrap();
    let mut same = |what: String, planned: u64, truth: u64| {
        if planned != truth {
            let off = i128::from(planned) - i128::from(truth);
            wrong.push(format!("{id} {what}: planned {planned}, truth {truth}, off by {off}"));
        }
    };
    same("parameters".to_owned(), plan.parameters, row["params"].as_u64().unwrap());
    for (step, key) in [(&plan.first, "first_step"), (&plan.steady, "steady_step")] {
        let truth = phases(&row[key]);
        for (phase, peak, end) in figures(step) {
            let (true_peak, true_end) = truth[&phase];
            if key == "first_step" && records(&row["job"], &phase) {
                continue;
            }
            same(format!("{key} {phase} peak"), peak, true_peak);
            same(format!("{key} {phase} end"), end, true_end);
        }
    }
}

/// In the first micro-batch of all ZeRO 3 records the order of the modules, and fetches and releases as if there were none;
/// the planner has it from the beginning (`docs/accuracy.md`).
fn records(job: &Value, phase: &str) -> bool {
    job["zero"]["stage"] == 3 && phase.ends_with(".0")
}

fn planned(job: &Value) -> Result<Plan, String> {
    let mut asked = job.clone();
    let is_half = job["dtype"] != "float32";
    asked["precision"] = json!(if is_half { "autocast" } else { "fp32" });
    asked["optimizer"] = job.get("optimizer").cloned().unwrap_or(json!("adamw"));
    asked["drop_logits"] = json!(true);
    let (architecture, options) = shared::asked_by(&asked)?;
    let zero = &job["zero"];
    let offload = Offload {
        optimizer: !zero["offload_optimizer"].is_null(),
        parameters: !zero["offload_param"].is_null(),
        ..Offload::default()
    };
    let grad_dtype = (job["deepspeed"]["data_types"]["grad_accum_dtype"] == "fp32").then_some(Dtype::F32);
    let options =
        Options { parallel: parallel(job), hold_outputs: HoldOutputs::No, offload, grad_dtype, ..options };
    plan(architecture, options).map_err(|problem| problem.to_string())
}

fn parallel(job: &Value) -> Parallel {
    let number = |key: &str| job[key].as_u64().map(|n| u32::try_from(n).unwrap());
    let asked = &job["zero"];
    let size = |key: &str, usual| asked[key].as_u64().unwrap_or(usual);
    let usual = ZeroSizes::default();
    let zero = ZeroSizes {
        reduce_bucket_size: size("reduce_bucket_size", usual.reduce_bucket_size),
        overlap_comm: asked["overlap_comm"].as_bool(),
        prefetch_bucket_size: size("stage3_prefetch_bucket_size", usual.prefetch_bucket_size),
        param_persistence_threshold: size(
            "stage3_param_persistence_threshold",
            usual.param_persistence_threshold,
        ),
        max_live_parameters: size("stage3_max_live_parameters", usual.max_live_parameters),
        sub_group_size: size("sub_group_size", usual.sub_group_size),
    };
    Parallel {
        gpus: number("world"),
        sharding: match asked["stage"].as_u64().unwrap() {
            1 => Sharding::Zero1,
            2 => Sharding::Zero2,
            _ => Sharding::Zero3,
        },
        data: DataParallel { zero, ..DataParallel::default() },
        rank: number("rank").unwrap_or(0),
        ..Parallel::default()
    }
}
