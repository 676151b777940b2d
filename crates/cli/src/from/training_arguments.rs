//! Hugging Face `TrainingArguments` as JSON or YAML (transformers' `training_args.py`), with what scripts and TRL put beside
//! them (`ModelConfig` of TRL; what its trainers imply is in `trl.rs`).

use super::reading::Reading;
use super::{deepspeed, fsdp, trl};
use peakledger_input::{Problem, quoted};
use peakledger_plan::config::Architecture;
use serde_json::Value;

pub(super) const SIGNS: &[&str] = &[
    "per_device_train_batch_size",
    "per_gpu_train_batch_size",
    "output_dir",
    "num_train_epochs",
    "per_device_eval_batch_size",
    "optim",
    "gradient_checkpointing",
    "max_grad_norm",
];

/// What of the training arguments cannot change the memory of a step.
pub(super) const PASSES: &[&str] = &[
    "output_dir",
    "overwrite_output_dir",
    "logging_dir",
    "do_train",
    "do_eval",
    "do_predict",
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_*",
    "weight_decay",
    "adam_*",
    "optim_args",
    "optim_target_modules",
    "enable_jit_checkpoint",
    "logging_*",
    "log_*",
    "report_to",
    "run_name",
    "project",
    "trackio_*",
    "wandb_*",
    "disable_tqdm",
    "eval_*",
    "evaluation_strategy",
    "per_device_eval_batch_size",
    "prediction_loss_only",
    "include_for_metrics",
    "include_num_input_tokens_seen",
    "include_tokens_per_second",
    "batch_eval_metrics",
    "fp16_full_eval",
    "bf16_full_eval",
    "fp16_opt_level",
    "half_precision_backend",
    "tf32",
    "save_*",
    "load_best_model_at_end",
    "metric_for_best_model",
    "greater_is_better",
    "push_to_hub",
    "push_to_hub_*",
    "hub_*",
    "seed",
    "data_seed",
    "full_determinism",
    "dataloader_*",
    "remove_unused_columns",
    "label_names",
    "group_by_length",
    "length_column_name",
    "train_sampling_strategy",
    "ignore_data_skip",
    "resume_from_checkpoint",
    "restore_callback_states_from_checkpoint",
    "ddp_backend",
    "ddp_timeout",
    "ddp_find_unused_parameters",
    "ddp_broadcast_buffers",
    "ddp_static_graph",
    "local_rank",
    "debug",
    "skip_memory_metrics",
    "use_cache",
    "average_tokens_across_devices",
    "gradient_checkpointing_kwargs",
    "activation_checkpointing_kwargs",
    "accelerator_config",
    "torch_compile_backend",
    "torch_compile_mode",
    "liger_kernel_config",
    "no_cuda",
    "use_cpu",
    "past_index",
    "model_revision",
    "trust_remote_code",
    "lora_alpha",
    "lora_task_type",
    "use_rslora",
    "bnb_4bit_quant_storage",
    "dataset_*",
    "dataset",
    "packing",
    "packing_strategy",
    "padding_free",
    "truncation_mode",
    "shuffle_dataset",
    "eos_token",
    "pad_token",
    "chat_template_path",
    "completion_only_loss",
    "assistant_only_loss",
];

pub(super) fn read(reading: &mut Reading<'_>) -> Result<(), Problem> {
    for key in ["model_name_or_path", "model_name"] {
        reading.model(key);
    }
    for key in ["max_length", "max_seq_length", "block_size", "model_max_length"] {
        reading.count(key, "--seq-len");
    }
    reading.attempt(trainer);
    reading.attempt(precision);
    reading.attempt(weights);
    trl::other_training(reading);
    if trl::is_supervised(reading) {
        reading.attempt(trl::supervised);
    }
    match reading.text("attn_implementation")? {
        Some("eager") => reading.set("--attention", "eager", "attn_implementation"),
        Some("sdpa" | "flash_attention_2") => reading.set("--attention", "sdpa", "attn_implementation"),
        Some(_) => reading.not_planned_without("--attention", "attn_implementation", "planned as sdpa"),
        None => {}
    }
    reading.attempt(peft);
    reading.pass(PASSES);
    Ok(())
}

/// What `Trainer` does with its arguments, types aside.
pub(super) fn trainer(reading: &mut Reading<'_>) -> Result<(), Problem> {
    if !reading.has("per_device_train_batch_size") && !reading.has("per_gpu_train_batch_size") {
        reading.imply("--micro-batch-size", 8, "per_device_train_batch_size left out");
    }
    for key in ["per_gpu_train_batch_size", "per_device_train_batch_size"] {
        reading.count(key, "--micro-batch-size");
    }
    reading.imply("--gradient-accumulation-steps", 1, "gradient_accumulation_steps left out");
    reading.count("gradient_accumulation_steps", "--gradient-accumulation-steps");
    if reading.has("optim") {
        reading.optimizer("optim");
    } else {
        // since torch 2.8
        reading.imply("--optimizer", "adamw", "optim left out");
        reading.imply("--optimizer-impl", "fused", "optim left out");
    }
    reading.attempt(clipping);
    for key in ["gradient_checkpointing", "activation_checkpointing"] {
        match reading.flag(key)? {
            Some(true) => reading.set("--recompute", "full", key),
            Some(false) => reading.set("--recompute", "none", key),
            None => {}
        }
    }
    if reading.is("use_liger_kernel")? {
        reading.set("--fused-loss", true, "use_liger_kernel");
        reading
            .not_planned("use_liger_kernel", "Liger's norms, rope and SwiGLU: transformers' own are planned");
    }
    reading.imply("--loss-in-model", true, "Trainer passes the labels to the model");
    if reading.is("activation_offloading")? {
        reading.set("--offload", "activations", "activation_offloading");
    }
    reading.not_planned_if_set("torch_compile", "torch.compile");
    reading.not_planned_if_set("neftune_noise_alpha", "noise on the embeddings");
    reading
        .not_planned_if_set("label_smoothing_factor", "the smoothed loss, which keeps the logits once more");
    reading.not_planned_if_set(
        "auto_find_batch_size",
        "another batch size than is said, where that does not fit",
    );
    if reading.number("ddp_bucket_cap_mb")?.is_some_and(|size| size != 25) {
        reading.not_planned("ddp_bucket_cap_mb", "planned with DDP's own buckets of 25 MiB");
    }
    reading.not_planned_if_set("torch_empty_cache_steps", "emptying the cache between steps");
    reading.attempt(fsdp::of_trainer);
    reading.attempt(nested_deepspeed);
    reading.not_planned_if_set("parallelism_config", "the meshes of accelerate: give its YAML too");
    Ok(())
}

/// `max_grad_norm`, as `Trainer` has it.
pub(super) fn clipping(reading: &mut Reading<'_>) -> Result<(), Problem> {
    match reading.amount("max_grad_norm")? {
        Some(norm) => reading.set("--clip-grad-norm", norm > 0.0, "max_grad_norm"),
        None => reading.imply("--clip-grad-norm", true, "max_grad_norm left out"),
    }
    Ok(())
}

/// The type of the weights: what is said, else what `from_pretrained` takes since transformers 5, that of the model's config. TRL
/// asks it for fp32 (`ModelConfig.dtype` in `trainer/model_config.py`, `create_model_from_path` in `trainer/utils.py`).
fn weights(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let keys = ["dtype", "torch_dtype"];
    if let Some((dtype, key)) = dtype(reading, &keys)? {
        reading.set("--weights-dtype", dtype, key);
    } else if let Some(key) = keys.iter().find(|key| reading.is_auto(key)) {
        reading.set_by_model("--weights-dtype", saved_in, key);
    } else if trl::is_supervised(reading) {
        reading.imply("--weights-dtype", "fp32", "dtype left out: TRL then loads the model in float32");
    } else {
        let why = "dtype left out: transformers 5 then loads the model in its config's own type";
        reading.imply_by_model("--weights-dtype", saved_in, why);
    }
    Ok(())
}

/// The type that a model was saved in.
fn saved_in(model: &Architecture) -> Option<String> {
    model.dtype.map(|dtype| dtype.as_str().to_owned())
}

/// `bf16` and `fp16` are autocast, the weights as they are. TRL takes bf16 where neither is said (`_BaseConfig`).
fn precision(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let (bf16, fp16) = (reading.is("bf16")?, reading.is("fp16")?);
    match (bf16, fp16) {
        (true, true) => {
            let problem = reading.problem("fp16", "both bf16 and fp16 are asked for");
            return Err(problem.mend("keep one of the two"));
        }
        (true, false) => reading.set("--precision", "bf16-mixed", "bf16"),
        (false, true) => reading.set("--precision", "fp16-mixed", "fp16"),
        (false, false) if trl::is_supervised(reading) && !reading.has("bf16") => {
            reading.imply("--precision", "bf16-mixed", "bf16 left out: TRL then takes it");
        }
        (false, false) => reading.imply("--precision", "fp32", "neither bf16 nor fp16 is true"),
    }
    Ok(())
}

/// The type under one of the keys, as options have it.
pub(super) fn dtype<'k>(
    reading: &mut Reading<'_>,
    keys: &[&'k str],
) -> Result<Option<(&'static str, &'k str)>, Problem> {
    for key in keys {
        let name = reading.text(key)?.map(|name| name.trim_start_matches("torch."));
        match name {
            None | Some("auto") => {}
            Some("bfloat16" | "bf16") => return Ok(Some(("bf16", key))),
            Some("float16" | "fp16" | "half") => return Ok(Some(("fp16", key))),
            Some("float32" | "fp32" | "float") => return Ok(Some(("fp32", key))),
            Some(other) => {
                let problem = reading.problem(key, format!("the type {} is not planned", quoted(other)));
                return Err(problem.mend("write float32, bfloat16 or float16"));
            }
        }
    }
    Ok(None)
}

/// What TRL's `ModelConfig` has for peft and bitsandbytes.
fn peft(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let rank = reading.number("lora_r")?.unwrap_or(16);
    let dropout = reading.amount("lora_dropout")?.unwrap_or(0.05);
    let targets = reading.words("lora_target_modules")?;
    let save = reading.words("lora_modules_to_save")?.unwrap_or_default();
    let (four, eight) = (reading.is("load_in_4bit")?, reading.is("load_in_8bit")?);
    let nested = reading.is("use_bnb_nested_quant")?;
    if let Some("fp4") = reading.text("bnb_4bit_quant_type")? {
        reading.not_planned_without(
            "--quantize",
            "bnb_4bit_quant_type",
            "fp4: nf4 is planned, which takes the same",
        );
    }
    if reading.is("use_peft")? {
        let targets = targets.as_deref();
        // on quantized weights TRL casts all that is trained (`trainer/sft_trainer.py`)
        let dtype = if four || eight { Some("bf16") } else { None };
        Adapters { rank, dropout, dtype, targets, save: &save, save_dtype: dtype }.say(reading, "use_peft");
        if targets.is_none() {
            reading.ask("--lora", "use_peft", "which modules have adapters is left to the model's family");
        }
        reading.not_planned_if_set("use_dora", "DoRA's magnitudes: LoRA is planned");
    }
    if four {
        reading.set("--quantize", if nested { "nf4-double" } else { "nf4" }, "load_in_4bit");
    } else if eight {
        reading.set("--quantize", "int8", "load_in_8bit");
    }
    Ok(())
}

/// Adapters as a config asks for them.
pub(super) struct Adapters<'a> {
    pub(super) rank: u64,
    pub(super) dropout: f64,
    /// The type of theirs, where it is not fp32.
    pub(super) dtype: Option<&'static str>,
    /// The modules that have one; without any, all linear ones.
    pub(super) targets: Option<&'a [String]>,
    /// Modules that are trained beside them.
    pub(super) save: &'a [String],
    /// The type of these, where it is not the weights'.
    pub(super) save_dtype: Option<&'static str>,
}

impl Adapters<'_> {
    /// `--lora`, by the key that asks for adapters.
    pub(super) fn say(&self, reading: &mut Reading<'_>, key: &str) {
        let all = |targets: &[String]| targets.iter().any(|name| name == "all" || name == "all-linear");
        let targets = match self.targets {
            Some(targets) if !targets.is_empty() && !all(targets) => targets.join("+"),
            _ => "all-linear".to_owned(),
        };
        let mut value = format!("r={}", self.rank);
        if self.dropout > 0.0 {
            value += &format!(",dropout={}", self.dropout);
        }
        value += &self.dtype.map(|dtype| format!(",dtype={dtype}")).unwrap_or_default();
        value += &format!(",targets={targets}");
        if !self.save.is_empty() {
            value += &format!(",save={}", self.save.join("+"));
            value += &self.save_dtype.map(|dtype| format!(",save_dtype={dtype}")).unwrap_or_default();
        }
        reading.set("--lora", value, key);
    }
}

/// `deepspeed`: the config itself, or the path of its file.
pub(super) fn nested_deepspeed(reading: &mut Reading<'_>) -> Result<(), Problem> {
    match reading.peek("deepspeed") {
        None => Ok(()),
        Some(Value::Object(_)) => reading.within("deepspeed", deepspeed::read),
        Some(Value::String(path)) => {
            reading.further("deepspeed", path);
            Ok(())
        }
        Some(_) => Err(reading
            .problem("deepspeed", "neither a path nor a config")
            .mend("write the path of its JSON")),
    }
}
