//! torchtitan's TOML (`torchtitan/config/job_config.py`, 0.1 to 0.2; 0.3 has configs in Python).

use super::found::{ByModel, ModelAsked};
use super::reading::Reading;
use peakledger_input::{Problem, quoted};
use peakledger_plan::catalogue::models;
use peakledger_plan::config::Architecture;

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
    "experimental/custom_*",
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
    "experimental/pipeline_parallel_schedule_csv",
    "parallelism/pipeline_parallel_first_stage_less_layers",
    "parallelism/pipeline_parallel_last_stage_less_layers",
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
    if reading.said("--fsdp").is_some() && reading.said("--precision") == Some("bf16") {
        // `mixed_precision_reduce`, which has no other value
        reading.imply("--reduce-dtype", "fp32", "torchtitan reduces gradients in float32");
    }
    reading.attempt(batch);
    // 0.0.2's switch; later `model.converters` says it
    reading.not_planned_if_set(
        "float8/enable_float8_linear",
        "linear modules in float8: `nn.Linear` is planned",
    );
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
        let name = match (name, flavor) {
            ("llama3", flavor) => format!("llama-3.1-{}", flavor.to_ascii_lowercase()),
            ("qwen3", flavor) => format!("qwen3-{}", flavor.to_ascii_lowercase()),
            ("deepseek_v3", "671B") => "deepseek-v3".to_owned(),
            _ => return None,
        };
        models().iter().find(|model| model.name == name).map(|model| model.name.clone())
    });
    let key = if by_assets.is_some() { "model/hf_assets_path" } else { "model/flavor" };
    match (by_assets.or(by_flavor), name, flavor) {
        (Some(name), ..) => {
            reading.found.model = Some((ModelAsked::Named(name), reading.origin(key)));
        }
        (None, Some(name), Some(flavor)) => {
            let cause =
                format!("the flavor {} of {} is none that is known here", quoted(flavor), quoted(name));
            reading.ask("MODEL", "model/flavor", &cause);
        }
        (None, Some(name), None) => {
            let cause = format!("{} is no model that is known here, and has no flavor", quoted(name));
            reading.ask("MODEL", "model/name", &cause);
        }
        (None, None, _) => {}
    }
    reading.not_planned_if_set(
        "model/converters",
        "other modules than those of the model: `nn.Linear` is planned",
    );
    let key = if reading.has("model") { "model" } else { "training" };
    reading.note(key, "torchtitan's own modules: those of transformers are planned");
    Ok(())
}

/// The type of weights, and the one that they are computed in: FSDP casts, or autocast where a rank has the whole model, and
/// nobody where tensor or pipeline parallel runs without FSDP (`maybe_enable_amp` in `distributed/utils.py`).
fn types(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let weights = reading.text("training/dtype")?.unwrap_or("float32");
    let asked = reading.text("training/mixed_precision_param")?;
    let splits = ["tensor_parallel_degree", "pipeline_parallel_degree"].map(|key| degree(reading, key));
    if splits != [1, 1] && !is_sharded(reading) {
        let precision = if weights == "bfloat16" { "bf16" } else { "fp32" };
        let why = "torchtitan mixes no precision beside tensor or pipeline parallel without FSDP";
        reading.imply("--precision", precision, why);
        return Ok(());
    }
    let compute = asked.unwrap_or("bfloat16");
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
            reading.unplanned("--precision", key, &cause);
            return Ok(());
        }
    };
    reading.set("--precision", precision, key);
    Ok(())
}

/// The key of what `parallelism` has: before 0.1 it stood beside the training's own keys, or among the experiments.
fn parallel(reading: &Reading<'_>, name: &str) -> String {
    let keys = ["parallelism", "training", "experimental"].map(|section| format!("{section}/{name}"));
    let [usual, ..] = &keys;
    keys.iter().find(|key| reading.has(key)).unwrap_or(usual).clone()
}

/// The key of how many ranks share parameters out: `data_parallel_degree` where there were no copies yet.
fn shard_key(reading: &Reading<'_>) -> String {
    let old = "training/data_parallel_degree";
    if reading.has(old) { old.to_owned() } else { parallel(reading, "data_parallel_shard_degree") }
}

/// How many ranks a degree of `parallelism` says, -1 for what is left; what is none of these is refused where it is read.
fn degree(reading: &Reading<'_>, name: &str) -> i64 {
    let value = reading.peek(&parallel(reading, name));
    value.and_then(serde_json::Value::as_i64).unwrap_or(1)
}

/// Whether FSDP runs, as far as the file tells: over shards of the data, or over ranks that share a sequence.
fn is_sharded(reading: &Reading<'_>) -> bool {
    let shards = reading.peek(&shard_key(reading));
    shards.is_none()
        || shards.and_then(serde_json::Value::as_i64) != Some(1)
        || degree(reading, "context_parallel_degree") > 1
}

fn optimizer(reading: &mut Reading<'_>) -> Result<(), Problem> {
    match reading.text("optimizer/name")? {
        None => reading.imply("--optimizer", "adamw", "optimizer.name left out"),
        Some("Adam" | "AdamW") => reading.set("--optimizer", "adamw", "optimizer/name"),
        Some(other) => {
            let cause = format!("the optimizer {} is not planned", quoted(other));
            reading.unplanned("--optimizer", "optimizer/name", &cause);
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

/// What is computed again (`distributed/activation_checkpoint.py`): the ops of a selective checkpoint, or the whole of every Nth
/// layer, as of every second one by default.
fn recompute(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let (key, option) = ("activation_checkpoint/mode", "activation_checkpoint/selective_ac_option");
    let of_layers = match reading.value(option) {
        None => Some("2".to_owned()),
        Some(value) => {
            value.as_str().map(str::to_owned).or_else(|| value.as_u64().map(|number| number.to_string()))
        }
    };
    let mode = reading.text(key)?;
    match (mode.unwrap_or("selective"), of_layers.as_deref()) {
        ("none", _) => reading.set("--recompute", "none", key),
        ("full", _) => reading.set("--recompute", "full", key),
        ("selective", Some("op")) => {
            reading.set("--recompute", "selective", if mode.is_some() { key } else { option });
            let what = "every second product of a linear module is computed again: all are planned as kept";
            reading.not_planned(option, what);
        }
        ("selective", Some("0" | "1")) => reading.set("--recompute", "full", option),
        ("selective", layers) => match (layers.and_then(every_nth), mode, reading.has(option)) {
            (Some(layers), _, true) => reading.set_by_model("--recompute", layers, option),
            (Some(layers), Some(_), false) => reading.set_by_model("--recompute", layers, key),
            (Some(layers), None, false) => {
                let why = "activation_checkpoint.mode left out: torchtitan checkpoints every second layer";
                reading.imply_by_model("--recompute", layers, why);
            }
            (None, ..) => {
                reading.unplanned(
                    "--recompute",
                    option,
                    "of checkpoints of every Nth layer those of 2, 3, 4 and 8 are planned, and `layers:SET` names others",
                );
            }
        },
        ("memory_budget", _) => {
            reading.unplanned("--recompute", key, "what a compiler keeps within a budget is not planned");
        }
        (other, _) => {
            let problem = reading.problem(key, format!("no mode of torchtitan: {}", quoted(other)));
            return Err(problem.mend("write none, full or selective"));
        }
    }
    reading.pass(&["activation_checkpoint/*"]);
    Ok(())
}

/// A checkpoint for every Nth layer, as `--recompute` has it, of the few N that people use.
fn every_nth(layers: &str) -> Option<ByModel> {
    Some(match layers {
        "2" => every::<2>,
        "3" => every::<3>,
        "4" => every::<4>,
        "8" => every::<8>,
        _ => return None,
    })
}

fn every<const N: usize>(model: &Architecture) -> Option<String> {
    let layers = (0..model.shape.num_hidden_layers).skip(N - 1).step_by(N);
    let layers: Vec<String> = layers.map(|layer| layer.to_string()).collect();
    (!layers.is_empty()).then(|| format!("layers:{}", layers.join("+")))
}

fn many_gpus(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let size = |reading: &mut Reading<'_>, key: &str| -> Result<u64, Problem> {
        // -1 is what is left
        if reading.peek(key).and_then(serde_json::Value::as_i64) == Some(-1) {
            reading.value(key);
            return Ok(0);
        }
        Ok(reading.number(key)?.unwrap_or(1))
    };
    let replicate_key = &*parallel(reading, "data_parallel_replicate_degree");
    let replicas = size(reading, replicate_key)?;
    let shard_key = &*shard_key(reading);
    let shards = if reading.has(shard_key) { size(reading, shard_key)? } else { 0 };
    if shards > 0 && replicas.saturating_mul(shards) > 1 {
        let key = if shards > 1 { shard_key } else { replicate_key };
        reading.set("--dp", replicas.saturating_mul(shards), key);
    }
    let is_pipeline = degree(reading, "pipeline_parallel_degree") > 1;
    let whole = stays_whole(reading, is_pipeline)?;
    let strategy = if whole { "shard_grad_op" } else { "full_shard" };
    match (replicas > 1, shards) {
        (true, 1) => {
            let what = "DDP's buckets of 100 MiB: planned with its own of 25 MiB";
            reading.note(replicate_key, what);
        }
        (false, 1) => {}
        (true, 0) => {
            reading.ask("--dp", shard_key, "it is what other sizes leave of the GPUs, beside copies");
        }
        (true, _) => {
            reading.set("--fsdp", "hybrid_shard", shard_key);
            reading.set("--dp-shard-size", shards, shard_key);
            if whole {
                let what = "parameters that stay whole from forward to backward: planned as resharded between replicas";
                reading.note(shard_key, what);
            }
        }
        (false, 0) if !reading.has(shard_key) => {
            reading.imply("--fsdp", strategy, "torchtitan shards over the GPUs that are left");
        }
        (false, _) => reading.set("--fsdp", strategy, shard_key),
    }
    for (key, option) in [
        ("tensor_parallel_degree", "--tp"),
        ("pipeline_parallel_degree", "--pp"),
        ("context_parallel_degree", "--cp"),
        ("expert_parallel_degree", "--ep"),
        ("expert_tensor_parallel_degree", "--etp"),
    ] {
        let key = parallel(reading, key);
        if reading.number(&key)?.is_some_and(|size| size > 1) {
            reading.count(&key, option);
        }
    }
    if reading.said("--tp").is_some() {
        let key = parallel(reading, "enable_sequence_parallel");
        if reading.flag(&key)? != Some(false) {
            reading.imply("--sp", true, "torchtitan's tensor parallel is sequence parallel");
        }
        let key = parallel(reading, "disable_loss_parallel");
        match reading.flag(&key)? {
            None => {
                reading.imply(
                    "--loss-parallel",
                    true,
                    "torchtitan's loss takes the logits as they are split",
                );
            }
            Some(disabled) => reading.set("--loss-parallel", !disabled, &key),
        }
    }
    for name in ["enable_sequence_parallel", "disable_loss_parallel"] {
        reading.pass(&[&parallel(reading, name)]);
    }
    reading.attempt(context_parallel);
    let key = &*parallel(reading, "pipeline_parallel_schedule");
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
                reading.unplanned(
                    "--schedule",
                    key,
                    &format!("the schedule {} is not planned", quoted(other)),
                );
            }
        }
    }
    if reading.said("--pp").is_some() {
        stages(reading)?;
    }
    let even = "stages of its own choice: planned even";
    for (name, what) in [
        ("enable_async_tensor_parallel", "asynchronous tensor parallel"),
        ("pipeline_parallel_split_points", even),
        ("pipeline_parallel_layers_per_stage", even),
    ] {
        reading.not_planned_if_set(&parallel(reading, name), what);
    }
    Ok(())
}

/// Whether gathered parameters stay until backward: of a pipeline they do unless told otherwise, so that not each micro-batch
/// gathers them (`apply_fsdp`).
fn stays_whole(reading: &mut Reading<'_>, is_pipeline: bool) -> Result<bool, Problem> {
    let key = "parallelism/fsdp_reshard_after_forward";
    match reading.text(key)? {
        Some("never") => Ok(true),
        Some("always") => {
            let what = "the last norm and the head resharded after forward too: planned whole up to backward";
            reading.note(key, what);
            Ok(false)
        }
        Some("default") | None => Ok(is_pipeline),
        Some(other) => {
            let problem = reading.problem(key, format!("no policy of torchtitan: {}", quoted(other)));
            Err(problem.mend("write default, always or never"))
        }
    }
}

/// The first and the last stage have a layer less each by default, for the embedding and the head.
fn stages(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let [first, last] = ["first", "last"].map(|end| format!("pipeline_parallel_{end}_stage_less_layers"));
    let [first, last] = [&first, &last].map(|name| parallel(reading, name));
    let degree = parallel(reading, "pipeline_parallel_degree");
    let less = [reading.number(&first)?.unwrap_or(1), reading.number(&last)?.unwrap_or(1)];
    if less != [0, 0] {
        let key = if reading.has(&first) { &first } else { &degree };
        let what = "fewer layers on the first and the last stage: planned even, and `--decoder-first-pipeline-num-layers` says \
                    how many the first has";
        reading.note_without("--decoder-first-pipeline-num-layers", key, what);
    }
    Ok(())
}

/// How keys and values come to the ranks that share a sequence, and how they share it.
fn context_parallel(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let keys = ["context_parallel_rotate_method", "context_parallel_load_balancer"];
    let keys = keys.map(|name| parallel(reading, name));
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
    let micro_key = &*parallel(reading, "pipeline_parallel_microbatch_size");
    let size = local.unwrap_or(8);
    // before 0.1 it was said how many they are, as many as the degree where it was left out
    let count_key = &*parallel(reading, "pipeline_parallel_microbatches");
    let by_degree = parallel(reading, "pipeline_parallel_degree").starts_with("experimental");
    let by_degree =
        by_degree.then(|| u64::try_from(degree(reading, "pipeline_parallel_degree")).ok()).flatten();
    let count = reading.number(count_key)?.or(by_degree);
    let is_by_count = reading.said("--pp").is_some() && !reading.has(micro_key);
    if let Some(count) = count.filter(|count| is_by_count && *count > 0 && size % count != 0) {
        let cause = format!("{count} micro-batches do not divide the local batch of {size}");
        return Err(reading.problem(key, cause).mend("use a multiple"));
    }
    let by_count = count.and_then(|count| size.checked_div(count));
    let micro = reading.number(micro_key)?.or(by_count).unwrap_or(1).max(1);
    if reading.said("--pp").is_some() {
        if size % micro != 0 {
            let cause = format!("micro-batches of {micro} do not divide the local batch of {size}");
            return Err(reading.problem(key, cause).mend("use a multiple"));
        }
        reading.imply("--micro-batch-size", micro, "pipeline_parallel_microbatch_size left out");
        if let Some(key) = [micro_key, count_key].into_iter().find(|key| reading.has(key)) {
            reading.set("--micro-batch-size", micro, key);
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
