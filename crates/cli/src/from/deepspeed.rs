//! DeepSpeed's JSON (`deepspeed/runtime/config.py`, `zero/config.py`).

use super::found::ByModel;
use super::reading::Reading;
use peakledger_input::{Problem, quoted};
use peakledger_plan::config::Architecture;
use serde_json::Value;

pub(super) const SIGNS: &[&str] = &[
    "zero_optimization",
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "zero_allow_untested_optimizer",
    "bf16/enabled",
    "fp16/enabled",
];

pub(super) const PASSES: &[&str] = &[
    "steps_per_print",
    "wall_clock_breakdown",
    "scheduler",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "managed_gradient_accumulation",
    "use_data_before_expert_parallelism",
    "vocabulary_size",
    "memory_breakdown",
    "disable_allgather",
    "fp32_allreduce",
    "use_node_local_storage",
    "data_types/param_dtype",
    "autotuning",
    "elasticity",
    "nebula",
    "pipeline",
    "data_efficiency/enabled",
    "seq_parallel_communication_data_type",
    "prescale_gradients",
    "gradient_predivide_factor",
    "gradient_allreduce_op",
    "dump_state",
    "flops_profiler",
    "comms_logger",
    "monitor_config",
    "tensorboard",
    "wandb",
    "csv_monitor",
    "checkpoint",
    "dataloader_drop_last",
    "disable_python_gc",
    "log_level",
    "aio",
    "optimizer/params",
    "fp16/*",
    "bf16/*",
    "torch_autocast/lower_precision_safe_modules",
    "zero_optimization/stage3_gather_16bit_weights_on_model_save",
    "zero_optimization/gather_16bit_weights_on_model_save",
    "zero_optimization/stage3_gather_fp16_weights_on_model_save",
    "zero_optimization/offload_optimizer/*",
    "zero_optimization/offload_param/*",
    "zero_optimization/round_robin_gradients",
    "zero_optimization/ignore_unused_parameters",
    "zero_optimization/load_from_fp32_weights",
    "zero_optimization/elastic_checkpoint",
    // `zero/config.py` has it and nothing asks for it
    "zero_optimization/allgather_partitions",
    "zero_optimization/legacy_stage1",
    "zero_optimization/use_multi_rank_bucket_allreduce",
    "zero_optimization/pipeline_loading_checkpoint",
    "zero_optimization/override_module_apply",
    "zero_optimization/log_trace_cache_warnings",
    "zero_optimization/stage3_log_trace_cache_warnings",
    "zero_optimization/enable_sanity_checks",
    "zero_optimization/cpu_offload_use_pin_memory",
];

/// What of `zero_optimization` is planned as it is by default, and is noted where it is otherwise: the key, its default and what
/// it asks for else.
const SWITCHES: &[(&str, bool, &str)] = &[
    ("reduce_scatter", true, "gradients that are summed whole on every rank: planned as scattered"),
    ("contiguous_gradients", true, "gradients that are not copied side by side: planned so"),
    ("compute_grad_norm", true, "a step without the norm of the gradients: planned with it"),
    ("memory_efficient_linear", true, "torch's own linear function: planned as by default"),
    ("parameter_alignment", false, "parameters that are aligned in their partitions: planned side by side"),
    ("zero_quantized_weights", false, "quantized gathering of weights (ZeRO++)"),
    ("zero_quantized_nontrainable_weights", false, "quantized gathering of frozen weights (ZeRO++)"),
    ("zero_quantized_gradients", false, "quantized reduction of gradients (ZeRO++)"),
    (
        "use_all_reduce_for_fetch_params",
        false,
        "parameters that are fetched by an all-reduce: planned as gathered",
    ),
    (
        "stage3_use_all_reduce_for_fetch_params",
        false,
        "parameters that are fetched by an all-reduce: planned as gathered",
    ),
    ("allgather_sequential", false, "parameters that are gathered one by one: planned together"),
    ("stage3_allgather_sequential", false, "parameters that are gathered one by one: planned together"),
    (
        "save_muon_momentum_buffer_in_memory",
        false,
        "Muon's momentum on the card, though the optimizer is on the host",
    ),
];

/// A size that is counted in numbers: its keys, the stage from which on something reads it, what DeepSpeed has where it is left
/// out, and the option that plans it.
struct Size {
    keys: &'static [&'static str],
    from_stage: u64,
    usual: u64,
    option: Option<&'static str>,
    /// What transformers and accelerate fill in for `auto` (`trainer_config_finalize` in `transformers/integrations/deepspeed.py`,
    /// `_prepare_deepspeed` in `accelerate/accelerator.py`).
    auto: Option<ByModel>,
}

/// The square of the hidden size.
fn hidden_squared(model: &Architecture) -> Option<String> {
    Some(model.shape.hidden_size.checked_mul(model.shape.hidden_size)?.to_string())
}

/// Nine tenths of it, rounded down as Python's `int` does.
fn most_of_hidden_squared(model: &Architecture) -> Option<String> {
    let squared = model.shape.hidden_size.checked_mul(model.shape.hidden_size)?;
    Some((squared.checked_mul(9)? / 10).to_string())
}

/// Ten times the hidden size.
fn ten_hidden(model: &Architecture) -> Option<String> {
    Some(model.shape.hidden_size.checked_mul(10)?.to_string())
}

const SIZES: &[Size] = &[
    Size {
        keys: &["reduce_bucket_size"],
        from_stage: 1,
        usual: 500_000_000,
        option: Some("--zero-reduce-bucket-size"),
        auto: Some(hidden_squared),
    },
    Size { keys: &["allgather_bucket_size"], from_stage: 1, usual: 500_000_000, option: None, auto: None },
    Size {
        keys: &["stage3_prefetch_bucket_size", "prefetch_bucket_size"],
        from_stage: 3,
        usual: 50_000_000,
        option: Some("--zero-prefetch-bucket-size"),
        auto: Some(most_of_hidden_squared),
    },
    Size {
        keys: &["stage3_param_persistence_threshold", "param_persistence_threshold"],
        from_stage: 3,
        usual: 100_000,
        option: Some("--zero-param-persistence-threshold"),
        auto: Some(ten_hidden),
    },
    Size {
        keys: &["stage3_max_live_parameters", "max_live_parameters"],
        from_stage: 3,
        usual: 1_000_000_000,
        option: Some("--zero-max-live-parameters"),
        auto: None,
    },
    Size {
        keys: &["stage3_max_reuse_distance", "max_reuse_distance"],
        from_stage: 3,
        usual: 1_000_000_000,
        option: None,
        auto: None,
    },
    Size {
        keys: &["sub_group_size"],
        from_stage: 3,
        usual: 1_000_000_000,
        option: Some("--zero-sub-group-size"),
        auto: None,
    },
];

pub(super) fn read(reading: &mut Reading<'_>) -> Result<(), Problem> {
    reading.found.is_deepspeed = true;
    reading.count("train_micro_batch_size_per_gpu", "--micro-batch-size");
    reading.count("gradient_accumulation_steps", "--gradient-accumulation-steps");
    reading.samples("train_batch_size");
    reading.attempt(precision);
    reading.attempt(optimizer);
    if reading.is_auto("gradient_clipping") {
        reading.value("gradient_clipping");
        reading.ask(
            "--clip-grad-norm",
            "gradient_clipping",
            "`auto` is left to another file or to the command line",
        );
    } else if let Some(norm) = reading.amount("gradient_clipping")? {
        reading.set("--clip-grad-norm", norm > 0.0, "gradient_clipping");
    } else {
        reading.imply(
            "--clip-grad-norm",
            "true",
            "gradient_clipping left out: DeepSpeed clips to a norm of 1 since 0.19.3, before it not at all \
             (--clip-grad-norm=off)",
        );
    }
    match reading.peek("zero_optimization") {
        // as it was written once (`read_zero_config_deprecated`)
        Some(Value::Bool(shards)) => {
            reading.pass(&["zero_optimization"]);
            reading.set("--zero", u64::from(*shards), "zero_optimization");
        }
        _ => reading.attempt(|reading| reading.within("zero_optimization", zero)),
    }
    if reading.said("--zero").is_none_or(|stage| stage == "0") {
        // `allreduce_gradients` in `engine.py`, `fp16/fused_optimizer.py`
        let what = "stage 0, where DeepSpeed reduces gradients after backward in buffers of its own, and under bf16 or fp16 makes \
                    fp32 copies of them all at the update: planned as torch's DDP";
        reading.default_not_planned("--zero", "zero_optimization", what);
    }
    reading.within("activation_checkpointing", |reading| {
        reading.not_planned_if_set(
            "partition_activations",
            "checkpoints that are split over tensor parallel ranks",
        );
        reading.not_planned_if_set_without(
            "--offload",
            "cpu_checkpointing",
            "checkpoints on the host: `--offload activations` plans them",
        );
        reading.not_planned_if_set("contiguous_memory_optimization", "checkpoints in one buffer");
        reading.pass(&["number_checkpoints", "synchronize_checkpoint_boundary", "profile"]);
    });
    if let Some(size) = reading.number("tensor_parallel/autotp_size")?.filter(|size| *size > 1) {
        reading.set("--tp", size, "tensor_parallel/autotp_size");
    }
    if reading.number("sequence_parallel_size")?.is_some_and(|size| size > 1) {
        let problem = reading
            .problem("sequence_parallel_size", "DeepSpeed-Ulysses sequence parallelism is not planned");
        return Err(problem.mend("remove it, and say with `--cp N` that ranks share a sequence"));
    }
    for (key, what) in [
        ("communication_data_type", "another type in which gradients are sent: planned in their own"),
        ("sparse_gradients", "sparse gradients of the embedding: planned whole"),
        ("data_types/buffer_dtype", "another type of the buffers"),
        ("compression_training", "weights that are compressed while they are trained"),
        ("weight_quantization", "weights that are quantized"),
        ("hybrid_engine", "the hybrid engine's copies for generation"),
        ("progressive_layer_drop", "layers that are dropped"),
        ("curriculum_learning", "sequences that grow: planned at their whole length"),
        ("expert_parallel", "DeepSpeed's expert parallelism: `--ep` plans experts that are spread"),
        ("compile/enabled", "torch.compile"),
        ("compile/deepcompile", "DeepCompile"),
        ("amp/enabled", "apex's mixed precision"),
    ] {
        if is_enabled(reading, key) {
            reading.not_planned(key, what);
        }
    }
    reading.pass(&["compile/*", "amp/*", "hybrid_engine", "progressive_layer_drop", "curriculum_learning"]);
    reading.pass(&["compression_training", "weight_quantization", "expert_parallel"]);
    reading.pass(PASSES);
    Ok(())
}

/// Whether a key asks for something: a section that says whether it is enabled does by that.
fn is_enabled(reading: &Reading<'_>, key: &str) -> bool {
    match reading.peek(key) {
        None | Some(Value::Bool(false)) => false,
        Some(Value::Object(section)) => {
            section.get("enabled").map_or(!section.is_empty(), |enabled| enabled.as_bool() != Some(false))
        }
        Some(_) => true,
    }
}

/// bf16 and fp16 are weights and gradients in that type; the optimizer steps copies in fp32 (`bf16_optimizer.py`,
/// `stage_1_and_2.py`).
fn precision(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let mut is_open = false;
    if reading.is("fp16/enabled").unwrap_or(false) && reading.is("bf16/enabled").unwrap_or(false) {
        let problem = reading.problem("fp16/enabled", "bf16 is enabled too, and DeepSpeed takes one of them");
        return Err(problem.mend("keep one of the two"));
    }
    for (section, half) in [("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")] {
        let key = format!("{section}/enabled");
        if reading.is_auto(&key) {
            reading.value(&key);
            reading.ask("--precision", &key, "`auto` is left to another file or to the command line");
            is_open = true;
        } else if reading.is(&key)? {
            reading.set("--precision", half, &key);
            // `bf16_master_weights_and_grads`: the copies are in bf16 too, and of fp16 likewise
            if !reading.is(&format!("{section}/{half}_master_weights_and_grads"))? {
                reading.imply("--master-weights", "fp32", "DeepSpeed's optimizer steps fp32 copies");
            }
        }
    }
    is_open |= torch_autocast(reading)?;
    if reading.said("--precision").is_none() && !is_open {
        reading.imply("--precision", "fp32", "neither bf16 nor fp16 is enabled");
    }
    if reading.text("data_types/grad_accum_dtype")? == Some("fp32") {
        reading.set("--grad-dtype", "fp32", "data_types/grad_accum_dtype");
    }
    Ok(())
}

/// torch's autocast, under which weights stay as they were loaded and are stepped so (`torch_autocast.py`); whether it leaves the
/// precision open.
fn torch_autocast(reading: &mut Reading<'_>) -> Result<bool, Problem> {
    let key = "torch_autocast/enabled";
    // torch takes fp16 on CUDA where no type is said
    let dtype = reading.text("torch_autocast/dtype")?.unwrap_or("float16").trim_start_matches("torch.");
    // weights that bf16 or fp16 makes half are computed with as they are
    if !reading.is(key)? || reading.said("--precision").is_some() {
        return Ok(false);
    }
    if reading.number("zero_optimization/stage")?.unwrap_or(0) > 0 {
        let cause = "torch_autocast leaves weights as they are loaded, in fp32, and under ZeRO they are planned in half alone: the \
                     nearest are `bf16`, half weights with fp32 copies as of `bf16.enabled`, and `fp32`";
        reading.ask("--precision", key, cause);
        return Ok(true);
    }
    let half = if matches!(dtype, "bfloat16" | "bf16") { "bf16" } else { "fp16" };
    reading.set("--precision", format!("{half}-mixed"), key);
    reading.found.autocasts = true;
    Ok(false)
}

fn optimizer(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let key = "optimizer/type";
    let Some(name) = reading.text(key)? else { return Ok(()) };
    let kind = match name.to_ascii_lowercase().as_str() {
        "adam" | "adamw" => "adamw",
        "lion" => "lion",
        "muon" => "muon",
        "sgd" => "sgd",
        "adafactor" => "adafactor",
        _ => {
            reading.unplanned("--optimizer", key, &format!("the optimizer {} is not planned", quoted(name)));
            return Ok(());
        }
    };
    reading.set("--optimizer", kind, key);
    reading.momentum("optimizer/params");
    // deepspeed's FusedAdam, unless torch's is asked for (`_configure_basic_optimizer` in `runtime/engine.py`)
    if kind == "adamw" && !reading.is("optimizer/params/torch_adam")? {
        reading.imply("--optimizer-impl", "fused", "DeepSpeed runs its FusedAdam");
    }
    Ok(())
}

fn zero(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let stage = reading.number("stage")?;
    if let Some(stage) = stage {
        reading.set("--zero", stage, "stage");
    }
    let (mut parts, mut last) = (Vec::new(), "offload_optimizer");
    for (section, part) in [("offload_optimizer", "optimizer"), ("offload_param", "parameters")] {
        let key = format!("{section}/device");
        match reading.text(&key)? {
            Some("cpu") => {
                parts.push(part);
                let part_of_it = format!("{section}/ratio");
                // `_create_fp32_partitions` in `zero/stage3.py`
                if part == "optimizer"
                    && stage == Some(3)
                    && reading.amount(&part_of_it)?.is_some_and(|ratio| ratio < 1.0)
                {
                    let what = "a part of the optimizer that stays on the card: planned whole on the host";
                    reading.note_without("--offload", &part_of_it, what);
                }
            }
            Some("nvme") => {
                reading.not_planned(&key, "the file on disk behind the host: planned as on the host");
                parts.push(part);
            }
            Some("none") | None => continue,
            Some(other) => {
                let problem = reading.problem(&key, format!("no device of DeepSpeed: {}", quoted(other)));
                return Err(problem.mend("write cpu, nvme or none"));
            }
        }
        last = section;
        if part == "parameters" && stage.unwrap_or(0) < 3 {
            let cause =
                format!("parameters are offloaded by stage 3 alone, and the stage is {}", stage.unwrap_or(0));
            return Err(reading.problem(&key, cause).mend("use stage 3, or offload the optimizer"));
        }
    }
    // as it was written before 0.5
    for (key, part) in [("cpu_offload", "optimizer"), ("cpu_offload_param", "parameters")] {
        if reading.is(key)? && !parts.contains(&part) {
            parts.push(part);
            last = key;
        }
    }
    if !parts.is_empty() {
        reading.set("--offload", parts.join(","), last);
    }
    for (size, key) in SIZES.iter().flat_map(|size| size.keys.iter().map(move |key| (size, key))) {
        let usual = size.usual;
        let is_read = stage.unwrap_or(0) >= size.from_stage;
        if reading.is_auto(key) {
            let what = format!("`auto`, which nobody fills in: planned with DeepSpeed's default of {usual}");
            match (size.auto, size.option) {
                _ if !is_read => reading.pass(&[key]),
                (Some(auto), Some(option)) => reading.set_by_model(option, auto, key),
                (_, Some(option)) => reading.not_planned_without(option, key, &what),
                (_, None) => reading.not_planned(key, &what),
            }
            continue;
        }
        match (reading.number(key)?.filter(|asked| is_read && *asked != usual), size.option) {
            (Some(asked), Some(option)) => reading.set(option, asked, key),
            // it parts what is gathered after the update, all into one buffer that is there anyway
            (Some(_), None) if *key == "allgather_bucket_size" => {}
            (Some(_), None) => {
                reading.not_planned(key, &format!("planned with DeepSpeed's default of {usual}"));
            }
            (None, _) => {}
        }
    }
    let overlaps_unasked = stage == Some(3);
    let overlaps = reading.flag("overlap_comm")?.filter(|asked| *asked != overlaps_unasked);
    if let Some(overlaps) = overlaps.filter(|_| stage.is_some_and(|stage| stage > 0)) {
        reading.set("--zero-overlap-comm", overlaps, "overlap_comm");
    }
    for (key, usual, what) in SWITCHES {
        if reading.flag(key)?.is_some_and(|asked| asked != *usual) {
            reading.not_planned(key, what);
        }
    }
    for key in ["module_granularity_threshold", "stage3_module_granularity_threshold", "leaf_module"] {
        reading.not_planned_if_set(key, "modules that are gathered as one: planned as each is used");
    }
    for key in ["model_persistence_threshold", "stage3_model_persistence_threshold"] {
        reading
            .not_planned_if_set(key, "at most so many numbers that are kept whole: planned without a limit");
    }
    reading.not_planned_if_set("zeropp_loco_param", "errors of quantized gradients that are kept (LoCo)");
    reading.not_planned_if_set("zenflow", "ZenFlow's updates on the host");
    if reading.number("mics_shard_size")?.is_some_and(|size| size > 1) {
        reading.not_planned("mics_shard_size", "shards within a part of the ranks (MiCS): planned over all");
    }
    reading.pass(&["mics_hierarchical_params_gather"]);
    if reading.number("zero_hpz_partition_size")?.is_some_and(|size| size > 1) {
        reading.not_planned("zero_hpz_partition_size", "a second copy of the weights in each node (ZeRO++)");
    }
    Ok(())
}
