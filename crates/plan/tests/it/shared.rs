//! Where the full truth tables lie, if they are here, and how a job of the oracle reads as options.

use peakledger_input::Source;
use peakledger_plan::config::{Architecture, FAMILIES};
use peakledger_plan::options::*;
use peakledger_plan::parallel::Parallel;
use peakledger_plan::{Dtype, Plan, plan};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// The folder of the full tables. Says so where there is none.
pub(crate) fn folder() -> Option<PathBuf> {
    let root = std::env::var_os("PEAKLEDGER_SHARED").map(PathBuf::from);
    let root = root.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")));
    let tables = root.join("data/planner");
    if tables.is_dir() {
        return Some(tables);
    }
    say(&format!(
        "SKIPPED: no full truth tables at {}; the project's own table still runs",
        tables.display()
    ));
    None
}

/// Says a line aloud: the test runner keeps what is printed to itself.
pub(crate) fn say(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Says what was left out, by reason.
pub(crate) fn say_skipped(of: &str, planned: usize, reasons: &BTreeMap<String, usize>) {
    let skipped: usize = reasons.values().sum();
    if skipped > 0 {
        let reasons: Vec<String> =
            reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        say(&format!("{of}: {planned} compared, SKIPPED {skipped} not planned yet ({})", reasons.join(", ")));
    }
}

/// The rows that a job's rank received over those that it sent.
fn rank_imbalance(job: &Value) -> f64 {
    let number = |value: &Value| value.as_f64().unwrap();
    let Some(received) = job["received"].as_f64() else { return 1.0 };
    let chosen = number(&job["config"]["num_experts_per_tok"]);
    let tokens = (number(&job["batch"]) * number(&job["seq"]) / job["tp"].as_f64().unwrap_or(1.0)).ceil();
    (received + 0.5) / (tokens * chosen)
}

/// The sizes of the world that a job ran in.
fn parallel_of(job: &Value) -> Parallel {
    let size = |key: &str| job[key].as_u64().map_or(1, |n| u32::try_from(n).unwrap());
    Parallel {
        tp: size("tp"),
        ep: size("ep"),
        sp: job["sp"] == true,
        rank: job["rank"].as_u64().map_or(0, |n| u32::try_from(n).unwrap()),
        ..Parallel::default()
    }
}

/// The plan of an oracle job, or why it is none that this version plans.
pub(crate) fn plan_of(job: &Value) -> Result<Plan, String> {
    let (architecture, options) = asked_by(job)?;
    plan(architecture, options).map_err(|p| p.to_string())
}

/// What an oracle job runs, and how.
pub(crate) fn asked_by(job: &Value) -> Result<(Architecture, Options), String> {
    let family = job["config"]["model_type"].as_str().unwrap_or_default();
    if !FAMILIES.iter().any(|known| known.model_type == family) {
        return Err(format!("family {family}"));
    }
    let source = Source::from_text("config.json", job["config"].to_string());
    let architecture = Architecture::read(&source).map_err(|p| p.to_string())?;
    let text = |key: &str| job[key].as_str().unwrap_or_default();
    let (optimizer, optimizer_impl, momentum) = match text("optimizer") {
        "adamw" => (OptimizerKind::AdamW, OptimizerImpl::Foreach, false),
        "adamw_fused" => (OptimizerKind::AdamW, OptimizerImpl::Fused, false),
        "adamw_forloop" => (OptimizerKind::AdamW, OptimizerImpl::ForLoop, false),
        "sgd" => (OptimizerKind::Sgd, OptimizerImpl::Foreach, false),
        "sgd_momentum" => (OptimizerKind::Sgd, OptimizerImpl::Foreach, true),
        "muon" => (OptimizerKind::Muon, OptimizerImpl::Foreach, false),
        "adafactor" => (OptimizerKind::Adafactor, OptimizerImpl::ForLoop, false),
        other => return Err(format!("optimizer {other}")),
    };
    let precision = match (text("precision"), text("dtype")) {
        ("pure", "bfloat16") => Precision::Bf16,
        ("pure", "float16") => Precision::Fp16,
        ("autocast", "bfloat16") => Precision::Bf16Mixed,
        ("autocast", "float16") => Precision::Fp16Mixed,
        ("fp32", _) | ("pure", "float32") => Precision::Fp32,
        other => return Err(format!("precision {other:?}")),
    };
    let memory_efficient = text("sdpa_kernel") == "efficient";
    let weights = if job["weights"] == "bfloat16" { Dtype::Bf16 } else { precision.weights() };
    let lora = job["lora"].as_object().map(|lora| Lora {
        rank: lora["r"].as_u64().unwrap(),
        dropout: lora.get("lora_dropout").and_then(Value::as_f64).unwrap_or(0.0),
        dtype: if job["lora_fp32"] == false { weights } else { Dtype::F32 },
        targets: match &lora["target_modules"] {
            Value::Array(names) => {
                LoraTargets::Named(names.iter().map(|name| name.as_str().unwrap().to_owned()).collect())
            }
            _ => LoraTargets::AllLinear,
        },
        save: match &lora.get("modules_to_save") {
            Some(Value::Array(names)) => names.iter().map(|name| name.as_str().unwrap().to_owned()).collect(),
            _ => Vec::new(),
        },
        save_dtype: None,
    });
    let options = Options {
        lora,
        quantize: (job["int8"] == true).then_some(Quantize::Int8),
        loss_in_model: false,
        padded: job["padded"] == true,
        prepare_for_kbit: false,
        grad_scaler: false, // the oracle runs without one
        micro_batch_size: job["batch"].as_u64().ok_or("no batch")?,
        seq_len: job["seq"].as_u64(),
        gradient_accumulation_steps: job["accum"].as_u64().map_or(1, |n| u32::try_from(n).unwrap()),
        precision,
        optimizer,
        optimizer_impl: Some(optimizer_impl),
        momentum,
        attention: if text("attn") == "eager" { Attention::Eager } else { Attention::Sdpa },
        // the oracle repeats keys and values for every kernel but flash
        expand_kv: memory_efficient || (precision == Precision::Fp32 && text("sdpa_kernel") != "math"),
        weights_dtype: (job["weights"] == "bfloat16").then_some(Dtype::Bf16),
        experts: match text("experts") {
            "eager" => Experts::Eager { imbalance: job["imbalance"].as_f64().unwrap_or(1.0) },
            _ => Experts::GroupedMm,
        },
        rank_imbalance: rank_imbalance(job),
        recompute: match job["every"].as_u64().map(|every| NonZeroU32::new(u32::try_from(every).unwrap())) {
            Some(every) => Recompute::Every(every.unwrap()),
            None if job["checkpoint"] == true => Recompute::Full,
            None if job["selective"] == true => Recompute::Selective,
            None => Recompute::None,
        },
        clip_grad_norm: !job["clip"].is_null(),
        hold_outputs: if job["drop_logits"] == true || job["liger"] == true {
            HoldOutputs::No
        } else {
            HoldOutputs::Backward
        },
        capability: (memory_efficient || text("sdpa_kernel") == "math").then_some((7, 5)),
        offload: Offload { activations: job["offload_activations"] == true, ..Offload::default() },
        offload_prefetch: 0, // hooks on saved tensors, and nothing beside them
        fused_loss: job["liger"] == true,
        parallel: parallel_of(job),
        freeze: job["freeze"].as_array().map_or(Vec::new(), |parts| {
            let part = |part: &Value| Frozen { prefix: part.as_str().unwrap().to_owned(), range: None };
            parts.iter().map(part).collect()
        }),
        ..Options::default()
    };
    Ok((architecture, options))
}
