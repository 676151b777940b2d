//! Steps of data parallel ranks, phase by phase: every row of the table that `tests/oracle/sharded.py` made.

use crate::shared;
use crate::truth::{figures, held_by_tracker, phases};
use peakledger_plan::options::{HoldOutputs, Options};
use peakledger_plan::parallel::{DataParallel, FsdpWrap, Parallel, RotateMethod, Schedule, Sharding};
use peakledger_plan::{Dtype, plan};
use serde_json::{Value, json};

#[test]
fn every_row_of_the_table() {
    let rows = include_str!("../data/sharded.jsonl");
    let mut wrong = Vec::new();
    for row in rows.lines() {
        let row: Value = serde_json::from_str(row).unwrap();
        compare(&row, &mut wrong);
    }
    assert!(wrong.is_empty(), "{} figures differ:\n{}", wrong.len(), wrong.join("\n"));
}

fn compare(row: &Value, wrong: &mut Vec<String>) {
    let id = row["id"].as_str().unwrap();
    let (architecture, options) = {
        let mut job = row["job"].clone();
        let mixed = job["mixed"].as_str().map(str::to_owned);
        job["precision"] = json!(if mixed.is_some() { "autocast" } else { "pure" });
        job["optimizer"] = job.get("optimizer").cloned().unwrap_or(json!("adamw"));
        job["drop_logits"] = json!(true);
        let (architecture, options) = shared::asked_by(&job).unwrap();
        let loss_in_model = job["loss_in_model"] == true;
        let (parallel, hold_outputs) = (parallel(&job), HoldOutputs::No);
        (architecture, Options { parallel, loss_in_model, hold_outputs, ..options })
    };
    let plan = match plan(architecture, options) {
        Ok(plan) => plan,
        Err(problem) => return wrong.push(format!("{id}: {problem}")),
    };
    let mut same = |what: String, planned: u64, truth: u64| {
        if planned != truth {
            let off = i128::from(planned) - i128::from(truth);
            wrong.push(format!("{id} {what}: planned {planned}, truth {truth}, off by {off}"));
        }
    };
    let is_half = row["job"]["dtype"] == "bfloat16";
    // of a pipeline, the stage's
    let parameters = if row["job"]["pp"].is_null() { plan.parameters } else { plan.rank_parameters };
    same("parameters".to_owned(), parameters, row["params"].as_u64().unwrap());
    same("trainable".to_owned(), plan.trainable, row["trainable"].as_u64().unwrap_or(plan.trainable));
    for (step, key) in [(&plan.first, "first_step"), (&plan.steady, "steady_step")] {
        let truth = phases(&row[key]);
        // what the tracker holds of its own, from backward on; hidden states are of the type that parameters are gathered in
        let mut job = with(&row["job"], "precision", if is_half { "pure" } else { "fp32" });
        job["seq"] = json!(job["seq"].as_u64().unwrap() / job["cp"].as_u64().unwrap_or(1)); // a rank's own tokens
        let of_a_step = held_by_tracker(&job);
        let micro_batches = row["job"]["accum"].as_u64().unwrap_or(1);
        let mut held = if key == "first_step" { 0 } else { of_a_step * micro_batches };
        for (phase, peak, end) in figures(step) {
            let (true_peak, true_end) = truth[&phase];
            same(format!("{key} {phase} peak"), peak + held, true_peak);
            if phase.starts_with("backward") {
                held += of_a_step;
            }
            same(format!("{key} {phase} end"), end + held, true_end);
        }
    }
}

fn with(job: &Value, key: &str, value: &str) -> Value {
    let mut job = job.clone();
    job[key] = json!(value);
    job
}

fn parallel(job: &Value) -> Parallel {
    let number = |key: &str| job[key].as_u64().map(|n| u32::try_from(n).unwrap());
    let sharding = match job["strategy"].as_str().unwrap() {
        "full_shard" => Sharding::FullShard,
        "shard_grad_op" => Sharding::ShardGradOp,
        "hybrid_shard" => Sharding::HybridShard,
        _ => Sharding::Replicated,
    };
    let reduce_dtype = job["reduce_dtype"].as_str().map(|dtype| match dtype {
        "float32" => Dtype::F32,
        _ => Dtype::Bf16,
    });
    let world = number("world").unwrap();
    Parallel {
        gpus: Some(world),
        tp: number("tp").unwrap_or(1),
        ep: number("ep").unwrap_or(1),
        pp: number("pp").unwrap_or(1),
        schedule: match job["schedule"].as_str() {
            Some("gpipe") => Schedule::Gpipe,
            Some("interleaved") => Schedule::Interleaved,
            _ => Schedule::OneFOneB,
        },
        virtual_stages: number("parts").unwrap_or(1),
        loss_parallel: job["loss_parallel"] == true,
        cp: number("cp").unwrap_or(1),
        cp_rotate: match job["rotate"].as_str() {
            Some("alltoall") => RotateMethod::AllToAll,
            _ => RotateMethod::AllGather,
        },
        sharding,
        data: DataParallel {
            reduce_dtype,
            // where experts are spread, transformers does it its own way
            wrap: (sharding.is_fsdp() && job["ep"].is_null()).then(|| match job["wrap"].as_str() {
                None => FsdpWrap::Layers,
                Some("accelerate") => FsdpWrap::Accelerate,
                Some("accelerate-1.13") => FsdpWrap::Accelerate113,
                Some("verl") => FsdpWrap::Verl,
                Some(other) => panic!("nobody wraps a model so: {other}"),
            }),
            sync_each_batch: job["sync_each_batch"] == true,
            ddp_bucket_view: job["bucket_view"] == true,
            ..DataParallel::default()
        },
        gpus_per_node: number("hosts").map_or(8, |hosts| world / hosts),
        rank: number("rank").unwrap_or(0),
        ..Parallel::default()
    }
}
