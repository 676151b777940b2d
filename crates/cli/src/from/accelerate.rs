//! accelerate's YAML (`ClusterConfig` in `commands/config/config_args.py`, the keys that `commands/config/cluster.py` asks for).

use super::fsdp;
use super::reading::Reading;
use peakledger_input::{Problem, quoted};

pub(super) const SIGNS: &[&str] = &["distributed_type", "compute_environment"];

pub(super) const PASSES: &[&str] = &[
    "compute_environment",
    "debug",
    "machine_rank",
    "gpu_ids",
    "main_process_ip",
    "main_process_port",
    "main_training_function",
    "rdzv_backend",
    "same_network",
    "enable_cpu_affinity",
    "use_cpu",
    "downcast_bf16",
    "tpu_*",
    "command_file",
    "commands",
    "mpirun_config",
];

pub(super) fn read(reading: &mut Reading<'_>) -> Result<(), Problem> {
    reading.count("num_processes", "--gpus");
    if let (Some(machines @ 2..), Some(gpus)) =
        (reading.number("num_machines")?, reading.number("num_processes")?)
        && gpus % machines == 0
    {
        reading.set("--gpus-per-node", gpus / machines, "num_machines");
    }
    match reading.text("mixed_precision")?.map(str::to_ascii_lowercase).as_deref() {
        Some("bf16") => reading.set("--precision", "bf16-mixed", "mixed_precision"),
        Some("fp16") => reading.set("--precision", "fp16-mixed", "mixed_precision"),
        Some("fp8") => reading.unplanned("--precision", "mixed_precision", "fp8 is not planned"),
        said => {
            reading.pass(&["mixed_precision"]);
            let why = if said.is_some() { "mixed_precision is no" } else { "mixed_precision left out: no" };
            reading.imply("--precision", "fp32", why);
        }
    }
    let kind = reading.text("distributed_type")?.unwrap_or("NO").to_ascii_uppercase();
    match kind.as_str() {
        "NO" => reading.set("--gpus", 1, "distributed_type"),
        "MULTI_GPU" => {}
        "FSDP" => {
            reading.set("--fsdp", "full_shard", "distributed_type");
            if !reading.within("fsdp_config", |reading| reading.has("fsdp_auto_wrap_policy")) {
                let what = "the whole model as one unit, where nothing says which are wrapped: the decoder layers are planned";
                reading.note("fsdp_config", what);
            }
            fsdp::read(reading, "fsdp_config", 1, fsdp::By::Accelerate)?;
        }
        "DEEPSPEED" => reading.within("deepspeed_config", of_deepspeed)?,
        "MEGATRON_LM" => {
            reading.within("megatron_lm_config", of_megatron)?;
            megatrons_types(reading);
        }
        other => {
            let problem = reading.problem("distributed_type", format!("{} is not planned", quoted(other)));
            return Err(problem.mend("planned are NO, MULTI_GPU, FSDP, DEEPSPEED and MEGATRON_LM"));
        }
    }
    // what belongs to another type is not looked at
    reading.pass_unread(&["fsdp_config", "deepspeed_config", "megatron_lm_config"]);
    reading.attempt(|reading| reading.within("parallelism_config", parallelism));
    reading.not_planned_if_set("fp8_config", "fp8");
    let backend = reading.text("dynamo_config/dynamo_backend")?.map(str::to_ascii_uppercase);
    if backend.is_some_and(|backend| backend != "NO") {
        reading.not_planned("dynamo_config/dynamo_backend", "torch.compile");
    }
    reading.pass(&["dynamo_config/*"]);
    reading.pass(PASSES);
    Ok(())
}

/// DeepSpeed's config, where no file has it as accelerate's `DeepSpeedPlugin` makes it.
fn of_deepspeed(reading: &mut Reading<'_>) -> Result<(), Problem> {
    reading.found.is_deepspeed = true;
    if let Some(path) = reading.text("deepspeed_config_file")? {
        reading.further("deepspeed_config_file", path);
    } else {
        reading.imply("--zero", 2, "zero_stage left out: accelerate takes 2");
        let why = "gradient_clipping left out: accelerate clips to a norm of 1";
        reading.imply("--clip-grad-norm", true, why);
    }
    if let Some(stage) = reading.number("zero_stage")? {
        reading.set("--zero", stage, "zero_stage");
    }
    let mut parts = Vec::new();
    for (key, part) in [("offload_optimizer_device", "optimizer"), ("offload_param_device", "parameters")] {
        if reading.text(key)?.is_some_and(|device| device == "cpu" || device == "nvme") {
            parts.push(part);
            reading.set("--offload", parts.join(","), key);
        }
    }
    reading.count("gradient_accumulation_steps", "--gradient-accumulation-steps");
    if let Some(norm) = reading.amount("gradient_clipping")? {
        reading.set("--clip-grad-norm", norm > 0.0, "gradient_clipping");
    }
    reading.pass(&["zero3_*", "deepspeed_*", "offload_*"]);
    Ok(())
}

fn of_megatron(reading: &mut Reading<'_>) -> Result<(), Problem> {
    reading.imply("--stack", "megatron", "distributed_type MEGATRON_LM");
    reading.count("megatron_lm_tp_degree", "--tp");
    reading.count("megatron_lm_pp_degree", "--pp");
    reading.count("megatron_lm_num_micro_batches", "--gradient-accumulation-steps");
    if reading.is("megatron_lm_sequence_parallelism")? {
        reading.set("--sp", true, "megatron_lm_sequence_parallelism");
    }
    if reading.is("megatron_lm_recompute_activations")? {
        reading.set("--recompute", "selective", "megatron_lm_recompute_activations");
    }
    if reading.is("megatron_lm_use_distributed_optimizer")? {
        reading.set("--zero", 1, "megatron_lm_use_distributed_optimizer");
    }
    let why = "megatron_lm_gradient_clipping left out: accelerate clips to a norm of 1";
    reading.imply("--clip-grad-norm", true, why);
    if let Some(norm) = reading.amount("megatron_lm_gradient_clipping")? {
        reading.set("--clip-grad-norm", norm > 0.0, "megatron_lm_gradient_clipping");
    }
    Ok(())
}

/// Under Megatron mixed precision is its own half type (`set_mixed_precision` of `MegatronLMPlugin`).
fn megatrons_types(reading: &mut Reading<'_>) {
    let half = match reading.said("--precision") {
        Some("bf16-mixed") => "bf16",
        Some("fp16-mixed") => "fp16",
        _ => return,
    };
    reading.set("--precision", half, "mixed_precision");
    reading.imply("--master-weights", "fp32", "Megatron's optimizer steps fp32 copies");
    if half == "bf16" {
        reading.imply("--grad-dtype", "fp32", "with bf16 Megatron sums gradients in fp32");
    } else {
        reading.note("mixed_precision", "gradients summed in the half type: planned in fp32");
    }
}

/// `parallelism_config` (`accelerate/parallelism_config.py`): FSDP within `dp_shard_size` ranks, copies of it beside.
fn parallelism(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let mut size = |name: &str| -> Result<u64, Problem> {
        let key = format!("parallelism_config_{name}");
        Ok(reading.number(&key)?.or(reading.number(name)?).unwrap_or(1))
    };
    let (replicas, shards) = (size("dp_replicate_size")?, size("dp_shard_size")?);
    let (tp, cp, sp) = (size("tp_size")?, size("cp_size")?, size("sp_size")?);
    let key = |reading: &Reading<'_>, name: &str| {
        let prefixed = format!("parallelism_config_{name}");
        if reading.has(&prefixed) { prefixed } else { name.to_owned() }
    };
    if sp > 1 {
        let key = key(reading, "sp_size");
        let problem = reading.problem(&key, "DeepSpeed-Ulysses sequence parallelism is not planned");
        return Err(problem.mend("remove it, and say with `--cp N` that ranks share a sequence"));
    }
    for (option, name, size) in [("--tp", "tp_size", tp), ("--cp", "cp_size", cp)] {
        if size > 1 {
            let key = key(reading, name);
            reading.set(option, size, &key);
        }
    }
    if cp > 1 {
        let key = key(reading, "cp_comm_strategy");
        match reading.text(&key)? {
            Some("allgather") | None => {}
            Some("alltoall") => reading.set("--cp-rotate-method", "alltoall", &key),
            Some(other) => {
                let problem = reading.problem(&key, format!("no way of torch's: {}", quoted(other)));
                return Err(problem.mend("write allgather or alltoall"));
            }
        }
    }
    if replicas.max(shards) > 1 {
        let key = key(reading, if shards > 1 { "dp_shard_size" } else { "dp_replicate_size" });
        reading.set("--dp", replicas.saturating_mul(shards), &key);
        if replicas > 1 && shards > 1 {
            reading.set("--fsdp", "hybrid_shard", &key);
            reading.set("--dp-shard-size", shards, &key);
        }
    }
    reading.pass(&["parallelism_config_cp_*", "cp_*", "parallelism_config_sp_*", "sp_*"]);
    Ok(())
}
