//! Op by op: the steady step of the planner's tape beside the tracker's log of the same step.

use crate::shared;
use flate2::read::GzDecoder;
use peakledger_core::Phase;
use peakledger_plan::{OpTotal, Step};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// Ops of the log that allocate nothing of their own: views, questions, in-place arithmetic, markers.
const FREE: [&str; 41] = [
    "view",
    "split.Tensor",
    "split_with_sizes",
    "pow_.Scalar",
    "clamp_",
    "div_.Tensor",
    "rsqrt_",
    "t",
    "transpose.int",
    "detach",
    "unsqueeze",
    "select.int",
    "unbind.int",
    "expand",
    "slice.Tensor",
    "_unsafe_view",
    "permute",
    "alias",
    "squeeze.dim",
    "_local_scalar_dense",
    "lift_fresh",
    "_foreach_add_.Tensor",
    "_foreach_mul_.Scalar",
    "_foreach_lerp_.Scalar",
    "_foreach_addcmul_.Scalar",
    "_foreach_div_.ScalarList",
    "_foreach_add_.List",
    "_foreach_add_.Scalar",
    "mul_.Tensor",
    "lerp_.Scalar",
    "addcmul_",
    "profiler._record_function_enter_new",
    "profiler._record_function_exit._RecordFunction",
    "prim.device",
    "add_.Tensor",
    // of DTensors: what waits or writes in place, and sizes asked of a tensor on no device
    "_c10d_functional.wait_tensor",
    "c10d.allreduce_",
    "chunk",
    "empty.memory_format",
    "masked_fill_.Scalar",
    "_foreach_mul_.Tensor",
];

#[test]
fn every_op_of_the_shared_logs() {
    let Some(folder) = shared::folder() else { return };
    assert!(check(&folder.join("ops")) >= 6);
}

/// The project's own logs, of the same oracle.
#[test]
fn every_op_of_the_own_logs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/ops");
    assert_eq!(check(&folder), std::fs::read_dir(&folder).unwrap().count());
}

/// Compares every log of a folder that this version plans; says what it leaves out and returns how many it compared.
fn check(folder: &Path) -> usize {
    let mut logs: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    logs.sort();
    let (mut compared, mut skipped, mut wrong) = (0, BTreeMap::new(), Vec::new());
    for path in logs {
        let log: Value = serde_json::from_reader(GzDecoder::new(File::open(&path).unwrap())).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match shared::plan_of(&log["job"]) {
            Err(reason) => *skipped.entry(reason).or_default() += 1,
            Ok(plan) => {
                wrong.extend(compare(&name, &plan.ops(Step::Steady), &log).err());
                compared += 1;
            }
        }
    }
    shared::say_skipped("op logs", compared, &skipped);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    compared
}

/// More logs to hold the planner against while one writes an op: a file of oracle rows with `ops`, a row a line.
#[test]
fn every_op_of_further_logs() {
    let Some(path) = std::env::var_os("PEAKLEDGER_OPS") else { return };
    let mut wrong = Vec::new();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let log: Value = serde_json::from_str(line).unwrap();
        let plan = shared::plan_of(&log["job"]).unwrap();
        wrong.extend(compare(log["id"].as_str().unwrap(), &plan.ops(Step::Steady), &log).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn compare(name: &str, planned: &[OpTotal], log: &Value) -> Result<(), String> {
    let held = held_by_tracker(&log["job"]);
    // the oracle's own modules around groups of layers have no names in transformers
    let grouped = log["job"]["every"].is_u64();
    let job = &log["job"];
    let log: Vec<(String, String, String, u64)> = log["ops"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let text = |i: usize| row[i].as_str().unwrap().to_owned();
            let op = text(2);
            let op = op.strip_suffix(".default").unwrap_or(&op);
            let op = op.strip_prefix("bitsandbytes.").unwrap_or(op).to_owned();
            (text(0), text(1), op, row[4].as_u64().unwrap())
        })
        .filter(|(_, _, op, _)| !FREE.contains(&op.as_str()))
        .collect();
    let planned: Vec<&OpTotal> = planned
        .iter()
        .filter(|row| !FREE.contains(&row.op) && !["end of phase", "zero_grad", "backward"].contains(&row.op))
        .filter(|row| !row.op.starts_with("_foreach_addcdiv_") || log.iter().any(|l| l.2 == row.op))
        .collect();
    for (index, row) in planned.iter().enumerate() {
        let Some((phase, module, op, total)) = log.get(index) else {
            return Err(format!("{name}: {row:?} is not in the log"));
        };
        let off = i128::from(row.total.get()) - i128::from(*total);
        let of_row = row.micro_batch.map_or(row.phase.to_string(), |i| format!("{}.{i}", row.phase));
        if of_row != phase.replace("clip", "update") {
            return Err(format!("{name} op {index}: log has {phase} {module} {op}, plan has {row:?}"));
        }
        // backward ops have other names in the log: the tracker calls them by the module that it left last
        let own = own_name(module);
        let is_within =
            own.strip_prefix(row.module.as_str()).is_some_and(|r| r.is_empty() || r.starts_with('.'));
        // and torch's styles run in hooks outside the modules that they are of
        let hooked = job["sp"] == true;
        let is_named = row.phase == Phase::Forward && !grouped && !hooked;
        if is_named && !(is_within || row.module.is_empty()) {
            return Err(format!("{name} op {index}: log has {module} {op}, plan has {row:?}"));
        }
        let routed = row.phase == Phase::Backward && row.module.ends_with(".mlp.gate");
        if row.op != op || (off != 0 && !(routed && off == -i128::from(held))) {
            return Err(format!(
                "{name} op {index}: log has {phase} {module} {op} {total}, plan has {row:?}, off by {off}"
            ));
        }
    }
    match log.get(planned.len()) {
        Some(next) => Err(format!("{name}: the log goes on with {next:?}")),
        None => Ok(()),
    }
}

/// A module's name in the log without the classes around the model: `LlamaForCausalLM.model.norm` is `model.norm`.
fn own_name(module: &str) -> &str {
    let (_, name) = module.split_once('.').unwrap_or(("", ""));
    name.strip_prefix("base_model.model.").unwrap_or(name)
}

/// What the tracker itself keeps while backward runs through a router: it waits for the gradients of all inputs of the
/// experts, so that of the routing weights stays until that of the hidden states is whole. Plain training lets it go (weak
/// references to its storage are dead when the router's logits get theirs; torch 2.15, transformers 5.24).
fn held_by_tracker(job: &Value) -> u64 {
    let number = |value: &Value| value.as_u64().unwrap();
    let Some(chosen) = job["config"]["num_experts_per_tok"].as_u64() else { return 0 };
    let is_fp32 = job["config"]["model_type"] == "mixtral" || job["precision"] == "fp32";
    let width = if is_fp32 { 4 } else { 2 };
    (number(&job["batch"]) * number(&job["seq"]) * chosen * width).div_ceil(512) * 512
}
