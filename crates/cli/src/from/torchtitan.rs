//! torchtitan's TOML (`torchtitan/config/job_config.py`).

use super::found::ModelAsked;
use super::reading::Reading;
use peakledger_input::{Problem, quoted};
use peakledger_plan::catalogue::models;

pub(super) const SIGNS: &[&str] = &["training", "parallelism", "activation_checkpoint", "job"];

const PASSES: &[&str] = &[
    "job",
    "profiling",
    "metrics",
    "checkpoint",
    "comm",
    "memory_estimation",
    "lr_scheduler",
    "validation",
    "experimental",
    "debug",
    "fault_tolerance",
    "model/tokenizer_path",
    "model/print_after_conversion",
    "optimizer/lr",
    "optimizer/eps",
    "optimizer/beta*",
    "optimizer/weight_decay",
    "training/steps",
    "training/dataset*",
    "training/gc_*",
    "training/seed",
    "training/deterministic",
    "training/mixed_precision_reduce",
    "parallelism/context_parallel_ptrr_mask_key",
    "parallelism/pipeline_parallel_schedule_csv",
    "parallelism/enable_compiled_autograd",
    "compile/*",
    "float8",
    // what `model.converters` would read of it
    "quantize",
    "mx",
];

pub(super) fn read(reading: &mut Reading<'_>) -> Result<(), Problem> {
    reading.attempt(model);
    reading.attempt(types);
    reading.imply("--seq-len", 2048, "training.seq_len left out");
    reading.count("training/seq_len", "--seq-len");
    match reading.amount("training/max_norm")? {
        Some(norm) => reading.set("--clip-grad-norm", norm > 0.0, "training/max_norm"),
        None => reading.imply("--clip-grad-norm", true, "training.max_norm left out"),
    }
    if reading.is("training/enable_cpu_offload")? {
        reading.set("--offload", "parameters", "training/enable_cpu_offload");
    }
    reading.attempt(optimizer);
    reading.attempt(recompute);
    reading.attempt(many_gpus);
    reading.attempt(batch);
    for key in ["compile/enable", "training/compile"] {
        reading.not_planned_if_set(key, "torch.compile");
    }
    reading.pass(PASSES);
    Ok(())
}

/// The model by what its assets are called, else by name and flavor.
fn model(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let assets = reading.text("model/hf_assets_path")?;
    let folder = assets.and_then(|path| path.trim_end_matches('/').rsplit('/').next());
    let by_assets = folder.and_then(|folder| {
        models()
            .iter()
            .find(|model| model.id.rsplit('/').next() == Some(folder))
            .map(|model| model.name.clone())
    });
    let (name, flavor) = (reading.text("model/name")?, reading.text("model/flavor")?);
    let by_flavor = name.zip(flavor).and_then(|(name, flavor)| {
        let series = match name {
            "llama3" => "llama-3.1",
            "qwen3" => "qwen3",
            _ => return None,
        };
        let name = format!("{series}-{}", flavor.to_ascii_lowercase());
        models().iter().find(|model| model.name == name).map(|model| model.name.clone())
    });
    let key = if by_assets.is_some() { "model/hf_assets_path" } else { "model/flavor" };
    if let Some(name) = by_assets.or(by_flavor) {
        reading.found.model = Some((ModelAsked::Named(name), reading.origin(key)));
    }
    reading.not_planned_if_set(
        "model/converters",
        "other modules than those of the model: `nn.Linear` is planned",
    );
    let key = if reading.has("model") { "model" } else { "training" };
    reading.note(key, "torchtitan's own modules: those of transformers are planned");
    Ok(())
}

/// The type of weights, and the one that they are computed in.
fn types(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let weights = reading.text("training/dtype")?.unwrap_or("float32");
    let compute = reading.text("training/mixed_precision_param")?.unwrap_or("bfloat16");
    let key =
        match ["training/mixed_precision_param", "training/dtype"].into_iter().find(|key| reading.has(key)) {
            Some(key) => key,
            None => {
                reading.imply("--precision", "bf16-mixed", "training.mixed_precision_param left out");
                return Ok(());
            }
        };
    let precision = match (weights, compute) {
        ("float32", "float32") => "fp32",
        ("float32", "bfloat16") => "bf16-mixed",
        ("bfloat16", "bfloat16") => "bf16",
        _ => {
            let cause =
                format!("weights in {} computed in {} are not planned", quoted(weights), quoted(compute));
            reading.ask("--precision", key, &cause);
            return Ok(());
        }
    };
    reading.set("--precision", precision, key);
    Ok(())
}

fn optimizer(reading: &mut Reading<'_>) -> Result<(), Problem> {
    match reading.text("optimizer/name")? {
        None => reading.imply("--optimizer", "adamw", "optimizer.name left out"),
        Some("Adam" | "AdamW") => reading.set("--optimizer", "adamw", "optimizer/name"),
        Some(other) => {
            let cause = format!("the optimizer {} is not planned", quoted(other));
            reading.ask("--optimizer", "optimizer/name", &cause);
        }
    }
    match reading.text("optimizer/implementation")? {
        None => reading.imply("--optimizer-impl", "fused", "optimizer.implementation left out"),
        Some("for-loop") => reading.set("--optimizer-impl", "forloop", "optimizer/implementation"),
        Some(other) => reading.set("--optimizer-impl", other, "optimizer/implementation"),
    }
    reading.not_planned_if_set(
        "optimizer/early_step_in_backward",
        "an update within backward: planned after it",
    );
    Ok(())
}

fn recompute(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let key = "activation_checkpoint/mode";
    let option = reading.value("activation_checkpoint/selective_ac_option");
    let is_op = option.and_then(|option| option.as_str()) == Some("op");
    match reading.text(key)? {
        Some("none") => reading.set("--recompute", "none", key),
        Some("full") => reading.set("--recompute", "full", key),
        Some("selective") if is_op => {
            reading.set("--recompute", "selective", key);
            let what = "every second product of a linear module is computed again: all are planned as kept";
            reading.not_planned("activation_checkpoint/selective_ac_option", what);
        }
        Some("selective") => {
            reading.ask("--recompute", key, "a checkpoint of every Nth layer alone is not planned");
        }
        Some(other) => {
            let problem = reading.problem(key, format!("no mode of torchtitan: {}", quoted(other)));
            return Err(problem.mend("write none, full or selective"));
        }
        None => reading.ask(
            "--recompute",
            "activation_checkpoint",
            "`mode` is left out, and its default depends on the version",
        ),
    }
    reading.pass(&["activation_checkpoint/*"]);
    Ok(())
}

fn many_gpus(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let size = |reading: &mut Reading<'_>, key: &str| -> Result<u64, Problem> {
        let key = format!("parallelism/{key}");
        // -1 is what is left
        if reading.peek(&key).and_then(serde_json::Value::as_i64) == Some(-1) {
            reading.value(&key);
            return Ok(0);
        }
        Ok(reading.number(&key)?.unwrap_or(1))
    };
    let replicas = size(reading, "data_parallel_replicate_degree")?;
    let shard_key = "parallelism/data_parallel_shard_degree";
    let shards = if reading.has(shard_key) { size(reading, "data_parallel_shard_degree")? } else { 0 };
    if shards > 0 && replicas.saturating_mul(shards) > 1 {
        let key = if shards > 1 { shard_key } else { "parallelism/data_parallel_replicate_degree" };
        reading.set("--dp", replicas.saturating_mul(shards), key);
    }
    let never = reading.text("parallelism/fsdp_reshard_after_forward")? == Some("never");
    match (replicas > 1, shards) {
        (_, 1) => {}
        (true, 0) => {
            reading.ask("--dp", shard_key, "it is what other sizes leave of the GPUs, beside copies");
        }
        (true, _) => {
            reading.set("--fsdp", "hybrid_shard", shard_key);
            reading.set("--dp-shard-size", shards, shard_key);
        }
        (false, 0) if !reading.has(shard_key) => {
            reading.imply(
                "--fsdp",
                if never { "shard_grad_op" } else { "full_shard" },
                "torchtitan shards over the GPUs that are left",
            );
        }
        (false, _) => reading.set("--fsdp", if never { "shard_grad_op" } else { "full_shard" }, shard_key),
    }
    for (key, option) in [
        ("tensor_parallel_degree", "--tp"),
        ("pipeline_parallel_degree", "--pp"),
        ("context_parallel_degree", "--cp"),
        ("expert_parallel_degree", "--ep"),
        ("expert_tensor_parallel_degree", "--etp"),
    ] {
        let key = format!("parallelism/{key}");
        if reading.number(&key)?.is_some_and(|size| size > 1) {
            reading.count(&key, option);
        }
    }
    if reading.said("--tp").is_some() {
        if reading.flag("parallelism/enable_sequence_parallel")? != Some(false) {
            reading.imply("--sp", true, "torchtitan's tensor parallel is sequence parallel");
        }
        let key = "parallelism/disable_loss_parallel";
        match reading.flag(key)? {
            None => {
                reading.imply(
                    "--loss-parallel",
                    true,
                    "torchtitan's loss takes the logits as they are split",
                );
            }
            Some(disabled) => reading.set("--loss-parallel", !disabled, key),
        }
    }
    reading.pass(&["parallelism/enable_sequence_parallel", "parallelism/disable_loss_parallel"]);
    reading.attempt(context_parallel);
    let key = "parallelism/pipeline_parallel_schedule";
    let schedule = reading.text(key)?;
    if reading.said("--pp").is_some() {
        match schedule.unwrap_or("1F1B") {
            "1F1B" => {}
            "GPipe" => reading.set("--schedule", "gpipe", key),
            "Interleaved1F1B" => {
                reading.set("--schedule", "interleaved", key);
                reading.ask("--virtual-stages", key, "how many stages a rank has follows from the layers");
            }
            other => {
                reading.ask("--schedule", key, &format!("the schedule {} is not planned", quoted(other)));
            }
        }
    }
    reading.not_planned_if_set("parallelism/enable_async_tensor_parallel", "asynchronous tensor parallel");
    reading.not_planned_if_set(
        "parallelism/pipeline_parallel_split_points",
        "stages of its own choice: planned even",
    );
    reading.not_planned_if_set(
        "parallelism/pipeline_parallel_layers_per_stage",
        "stages of its own choice: planned even",
    );
    Ok(())
}

/// How keys and values come to the ranks that share a sequence, and how they share it.
fn context_parallel(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let keys = ["rotate_method", "load_balancer"].map(|name| format!("parallelism/context_parallel_{name}"));
    let [rotate, balancer] = &keys;
    if reading.said("--cp").is_none() {
        reading.pass(&[rotate.as_str(), balancer.as_str()]);
        return Ok(());
    }
    match reading.text(rotate)? {
        None => {}
        Some(method @ ("allgather" | "alltoall")) => reading.set("--cp-rotate-method", method, rotate),
        Some(other) => {
            let problem = reading.problem(rotate, format!("no method of torch's: {}", quoted(other)));
            return Err(problem.mend("write allgather or alltoall"));
        }
    }
    match reading.text(balancer)? {
        None => {}
        Some("headtail") => reading.set("--cp-load-balance", true, balancer),
        Some(other) => {
            let what = format!("the load balancer {} is FlexAttention's: sdpa's is planned", quoted(other));
            reading.not_planned(balancer, &what);
        }
    }
    Ok(())
}

/// A pipeline splits the local batch into micro-batches; accumulation makes the global one.
fn batch(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let key = "training/local_batch_size";
    let key = if reading.has("training/batch_size") { "training/batch_size" } else { key };
    let local = reading.number(key)?;
    let micro_key = "parallelism/pipeline_parallel_microbatch_size";
    let micro = reading.number(micro_key)?.unwrap_or(1).max(1);
    let size = local.unwrap_or(8);
    if reading.said("--pp").is_some() {
        if size % micro != 0 {
            let cause = format!("micro-batches of {micro} do not divide the local batch of {size}");
            return Err(reading.problem(key, cause).mend("use a multiple"));
        }
        reading.imply("--micro-batch-size", micro, "pipeline_parallel_microbatch_size left out");
        if reading.has(micro_key) {
            reading.set("--micro-batch-size", micro, micro_key);
        }
        reading.set("--gradient-accumulation-steps", size / micro, key);
        return Ok(());
    }
    match local {
        Some(local) => reading.set("--micro-batch-size", local, key),
        None => reading.imply("--micro-batch-size", 8, "training.local_batch_size left out"),
    }
    let key = "training/global_batch_size";
    if reading.peek(key).and_then(serde_json::Value::as_i64).is_some_and(|size| size < 0) {
        reading.value(key);
    } else {
        reading.samples(key);
    }
    Ok(())
}
