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
    "chat_template",
    "preprocessing_num_workers",
    // what transformers 4 wrote beside
    "per_gpu_eval_batch_size",
    "dispatch_batches",
    "fp16_backend",
    "fsdp_min_num_params",
    "fsdp_transformer_layer_cls_to_wrap",
    "include_inputs_for_metrics",
    "jit_mode_eval",
    "mp_parameters",
    "ray_scope",
    "tpu_*",
    "use_ipex",
    "use_legacy_prediction_loop",
    "use_mps_device",
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
    for key in ["model_init_kwargs/attn_implementation", "attn_implementation"] {
        match reading.text(key)? {
            Some("eager") => reading.set("--attention", "eager", key),
            Some("sdpa" | "flash_attention_2") => reading.set("--attention", "sdpa", key),
            Some(_) => reading.not_planned_without("--attention", key, "planned as sdpa"),
            None => {}
        }
    }
    reading.pass(&[
        "model_init_kwargs/use_cache",
        "model_init_kwargs/revision",
        "model_init_kwargs/trust_remote_code",
    ]);
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
    if reading.is("adafactor")? {
        // transformers 4's own switch, which is before the name
        reading.pass(&["optim"]);
        reading.optimizer_called("adafactor", "adafactor");
    } else if reading.has("optim") {
        reading.optimizer("optim");
    } else {
        // since torch 2.8
        reading.imply("--optimizer", "adamw", "optim left out");
        reading.imply("--optimizer-impl", "fused", "optim left out");
    }
    reading.momentum("optim_args");
    reading.attempt(clipping);
    reading.attempt(accelerator);
    for key in ["gradient_checkpointing", "activation_checkpointing"] {
        match reading.flag(key)? {
            Some(true) => reading.set("--recompute", "full", key),
            Some(false) => reading.set("--recompute", "none", key),
            None => {}
        }
    }
    reading.attempt(liger);
    reading.imply("--loss-in-model", true, "Trainer passes the labels to the model");
    if reading.is("activation_offloading")? {
        reading.set("--offload", "activations", "activation_offloading");
    }
    // a backend or a mode alone switches it on (`__post_init__`)
    for key in ["torch_compile", "torch_compile_backend", "torch_compile_mode", "torchdynamo"] {
        reading.not_planned_if_set(key, "torch.compile");
    }
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

/// Liger's kernels, each of which `liger_kernel_config` may say; without a word the loss is fused (`_apply_liger_kernel_to_instance`).
fn liger(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let mut asked = None;
    // `use_liger` is TRL's own name before 0.17
    for key in ["use_liger", "use_liger_kernel"] {
        if reading.is(key)? {
            asked = Some(key);
        }
    }
    let Some(key) = asked else {
        reading.pass(&["liger_kernel_config"]);
        return Ok(());
    };
    let fuses = reading.flag("liger_kernel_config/fused_linear_cross_entropy")?;
    match fuses {
        // TRL's own loss makes no whole logits either
        Some(false) if trl::is_supervised(reading) => {}
        Some(fuses) => reading.set("--fused-loss", fuses, "liger_kernel_config/fused_linear_cross_entropy"),
        None => reading.set("--fused-loss", true, key),
    }
    let what = "Liger's cross entropy of whole logits: torch's is planned";
    reading.not_planned_if_set("liger_kernel_config/cross_entropy", what);
    let others = "liger_kernel_config";
    let others = reading.peek(others).and_then(Value::as_object).into_iter().flatten();
    let off = |name: &str| others.clone().any(|(key, value)| key == name && value.as_bool() == Some(false));
    if !["rms_norm", "rope", "swiglu"].into_iter().all(off) {
        reading.not_planned(key, "Liger's norms, rope and SwiGLU: transformers' own are planned");
    }
    reading.pass(&["liger_kernel_config/*"]);
    Ok(())
}

/// `accelerator_config` (`AcceleratorConfig` in `trainer_pt_utils.py`): what of accelerate's loader and accumulation changes a step.
fn accelerator(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let key = "accelerator_config";
    if reading.peek(key).is_some_and(Value::is_string) {
        reading.not_planned(key, "what another file says of accelerate's loader and accumulation");
        return Ok(());
    }
    reading
        .count("accelerator_config/gradient_accumulation_kwargs/num_steps", "--gradient-accumulation-steps");
    let syncs = "accelerator_config/gradient_accumulation_kwargs/sync_each_batch";
    if reading.is(syncs)? {
        reading.set("--sync-each-batch", true, syncs);
    }
    let splits = "accelerator_config/split_batches";
    if reading.is(splits)? {
        let number = |option: &str| reading.said(option)?.parse::<u64>().ok();
        let batch = number("--micro-batch-size");
        let steps = number("--gradient-accumulation-steps");
        let samples = batch.zip(steps).and_then(|(batch, steps)| batch.checked_mul(steps));
        // of it each process has a part: what is left is for how many there are
        if let Some(samples) = samples {
            reading.take_back("--micro-batch-size");
            reading.found.samples = Some((samples, reading.origin(splits)));
        }
    }
    reading.pass(&["accelerator_config/gradient_accumulation_kwargs/*", "accelerator_config/*"]);
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
    let keys = ["dtype", "torch_dtype", "model_init_kwargs/dtype", "model_init_kwargs/torch_dtype"];
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
    let targets = reading.words("lora_target_modules")?.filter(|targets| !targets.is_empty());
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
    let is_dora = reading.is("use_dora")?;
    if reading.is("use_peft")? {
        if is_dora {
            reading.note("use_dora", "DoRA's magnitudes: LoRA is planned");
        }
        // on quantized weights TRL casts all that is trained (`trainer/sft_trainer.py`)
        let dtype = if four || eight { Some("bf16") } else { None };
        let adapters = |targets| Adapters { rank, dropout, dtype, targets, save: &save, save_dtype: dtype };
        if targets.is_some() {
            adapters(targets.as_deref()).say(reading, "use_peft");
        } else {
            // `TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING` in peft's `utils/constants.py`
            let usual = ["q_proj", "v_proj"].map(str::to_owned);
            let cause = format!(
                "lora_target_modules is left out, and peft then takes what it has for the model's family: of a llama or qwen `--lora {}`",
                adapters(Some(&usual)).value()
            );
            reading.ask("--lora", "use_peft", &cause);
        }
        reading.not_planned_if_set(
            "lora_target_parameters",
            "adapters on parameters of experts: planned without",
        );
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
        let of_pattern = ['*', '+', '|', '(', ')', '[', ']', '\\', '^', '$', '?'];
        let pattern = self.targets.unwrap_or_default().iter().find(|target| target.contains(of_pattern));
        if let Some(pattern) = pattern {
            let cause = format!(
                "which modules have adapters is said by the regular expression {}, which is not read: \
                 `--lora r=16,targets=q_proj+v_proj` names them",
                quoted(pattern)
            );
            reading.unplanned("--lora", key, &cause);
            return;
        }
        let is_of_a_layer = |target: &&String| {
            target.split('.').any(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit()))
        };
        if let Some(target) = self.targets.unwrap_or_default().iter().find(is_of_a_layer) {
            let cause = format!(
                "adapters in some layers alone ({}) are not planned: `--lora r=16,targets=q_proj+v_proj` has them in all",
                quoted(target)
            );
            reading.unplanned("--lora", key, &cause);
            return;
        }
        reading.set("--lora", self.value(), key);
    }

    /// The value of `--lora`.
    fn value(&self) -> String {
        let all = |targets: &[String]| targets.iter().any(|name| name == "all" || name == "all-linear");
        let targets = match self.targets {
            Some(targets) if !targets.is_empty() && !all(targets) => {
                targets.iter().map(|target| last_name(target)).collect::<Vec<_>>().join("+")
            }
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
        value
    }
}

/// The end of a path such as `self_attn.q_proj`, unless modules elsewhere in a layer are called so too.
fn last_name(path: &str) -> &str {
    match path.rsplit_once('.') {
        Some((_, name)) if !matches!(name, "c_proj" | "dense") => name,
        _ => path,
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
