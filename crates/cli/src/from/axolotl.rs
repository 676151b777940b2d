//! Axolotl's YAML (`AxolotlInputConfig` in `utils/schemas/config.py` and its parts; `loaders/model.py` for types).

use super::fsdp;
use super::post_training::by_post_training;
use super::reading::Reading;
use super::training_arguments::{Adapters, clipping, nested_deepspeed};
use peakledger_input::{Problem, quoted};
use serde_json::Value;

pub(super) const SIGNS: &[&str] = &["base_model", "sequence_len", "micro_batch_size"];

pub(super) const PASSES: &[&str] = &[
    "base_model_config",
    "base_model_ignore_patterns",
    "cls_model_config",
    "model_type",
    "type_of_model",
    "revision_of_model",
    "tokenizer_*",
    "trust_remote_code",
    "is_*",
    "strict",
    "resume_from_checkpoint",
    "auto_resume_from_checkpoints",
    "datasets",
    "test_datasets",
    "pretraining_dataset",
    "dataset_*",
    "shuffle_*",
    "skip_prepare_dataset",
    "num_dataset_shards_to_save",
    "val_set_size",
    "chat_template",
    "chat_template_*",
    "default_system_message",
    "eot_tokens",
    "special_tokens",
    "train_on_inputs",
    "group_by_length",
    "excess_length_strategy",
    "min_sample_len",
    "sample_packing_*",
    "eval_*",
    "evals_per_epoch",
    "do_*",
    "bench_*",
    "metric_for_best_model",
    "greater_is_better",
    "saves_per_epoch",
    "save_*",
    "logging_*",
    "loss_watchdog_*",
    "early_stopping_patience",
    "load_best_model_at_end",
    "wandb_*",
    "use_wandb",
    "mlflow_*",
    "use_mlflow",
    "comet_*",
    "use_comet",
    "trackio_*",
    "use_tensorboard",
    "output_dir",
    "hub_*",
    "hf_*",
    "push_dataset_to_hub",
    "num_epochs",
    "max_steps",
    "warmup_*",
    "learning_rate",
    "lr_*",
    "embedding_lr*",
    "cosine_*",
    "loraplus_*",
    "weight_decay",
    "adam_*",
    "seed",
    "tf32",
    "ddp_timeout",
    "ddp_broadcast_buffers",
    "local_rank",
    "device",
    "dataloader_*",
    "include_tokens_per_second",
    "include_tkps",
    "profiler_*",
    "gradient_checkpointing_kwargs",
    "lora_alpha",
    "lora_model_dir",
    "lora_fan_in_fan_out",
    "peft_use_rslora",
    "peft_init_lora_weights",
    "low_cpu_mem_usage",
    "remove_unused_columns",
    "debug",
    "gc_steps",
    "heads_k_stride",
    "ring_attn_func",
    "torch_compile_*",
    "save_safetensors",
    "fsdp_final_state_dict_type",
    "pad_to_multiple_of",
    "rl_beta",
    "dpo_*",
    "kto_*",
    "orpo_*",
    "simpo_*",
    "trl",
    "lora_on_cpu",
    "max_packed_sequence_len",
    "multipack_real_batches",
    "total_num_tokens",
    "total_supervised_tokens",
    "curriculum_sampling",
    "gpu_memory_limit",
    "use_ray",
    "ray_*",
];

pub(super) fn read(reading: &mut Reading<'_>) -> Result<(), Problem> {
    reading.attempt(other_steps);
    reading.model("base_model");
    if !reading.has("sequence_len") {
        reading.imply("--seq-len", 512, "sequence_len left out");
    }
    reading.count("sequence_len", "--seq-len");
    reading.imply("--micro-batch-size", 1, "micro_batch_size left out");
    reading.count("micro_batch_size", "--micro-batch-size");
    reading.imply("--gradient-accumulation-steps", 1, "gradient_accumulation_steps left out");
    reading.count("gradient_accumulation_steps", "--gradient-accumulation-steps");
    // its accumulation is 1 before `normalize_config` would divide (`HyperparametersConfig` in `utils/schemas/training.py`)
    let what = "a batch that Axolotl makes no accumulation of: planned with gradient_accumulation_steps alone, 1 where it is left out";
    reading.not_planned_if_set("batch_size", what);
    reading.attempt(types);
    reading.attempt(adapters);
    if reading.has("optimizer") {
        reading.optimizer("optimizer");
    } else {
        reading.imply("--optimizer", "adamw", "optimizer left out");
        reading.imply("--optimizer-impl", "fused", "optimizer left out");
    }
    reading.momentum("optim_args");
    reading.attempt(clipping);
    reading.attempt(recompute);
    reading.attempt(attention);
    reading.attempt(loss);
    reading.attempt(many_gpus);
    reading.not_planned_if_set("torch_compile", "torch.compile");
    for key in ["neftune_noise_alpha", "noisy_embedding_alpha"] {
        reading.not_planned_if_set(key, "noise on the embeddings");
    }
    for key in ["overrides_of_model_config", "overrides_of_model_kwargs"] {
        reading.not_planned_if_set(key, "another model than its own config has");
    }
    for key in
        ["flash_attn_cross_entropy", "flash_attn_rms_norm", "flash_attn_fuse_mlp", "flash_attn_fuse_qkv"]
    {
        reading.not_planned_if_set(key, "flash-attn's kernels: transformers' own modules are planned");
    }
    for key in [
        "unsloth_cross_entropy_loss",
        "unsloth_lora_mlp",
        "unsloth_lora_qkv",
        "unsloth_lora_o",
        "unsloth_rms_norm",
        "unsloth_rope",
    ] {
        reading.not_planned_if_set(key, "Unsloth's kernels: transformers' own modules are planned");
    }
    if reading.peek("batch_flattening").is_some_and(|value| value.as_bool() != Some(false)) {
        reading.not_planned("batch_flattening", "batches without padding: planned as rows that are full");
    }
    reading.pass(&["batch_flattening"]);
    reading.not_planned_if_set("use_pose", "positions that are skipped");
    reading.not_planned_if_set("tiled_mlp", "MLPs that run in tiles of the sequence");
    reading.not_planned_if_set_without(
        "--offload",
        "layer_offloading",
        "layers that wait on the host: `--offload parameters` plans them",
    );
    reading.not_planned_if_set(
        "auto_find_batch_size",
        "another batch size than is said, where that does not fit",
    );
    reading.not_planned_if_set("resize_token_embeddings_to_32x", "rows that are added to the embedding");
    reading.not_planned_if_set("added_tokens_overrides", "rows that are added to the embedding");
    reading.not_planned_if_set("tokens", "rows that are added to the embedding");
    reading.not_planned_if_set_without(
        "--freeze",
        "unfrozen_parameters",
        "training of these alone: `--freeze` plans what is frozen",
    );
    reading.pass(&["sample_packing", "eval_sample_packing", "pad_to_sequence_len"]);
    reading.pass(PASSES);
    Ok(())
}

/// What is another step than the one that is planned.
fn other_steps(reading: &mut Reading<'_>) -> Result<(), Problem> {
    if let Some(kind) = reading.text("rl")? {
        let cause = format!(
            "{} trains on more than one model or on what is generated, and configs are planned for supervised training alone",
            quoted(kind)
        );
        let problem = reading.problem("rl", cause).mend(by_post_training(kind, "remove it"));
        reading.refuse(problem);
    }
    for key in ["reward_model", "process_reward_model"] {
        if reading.is(key)? {
            let problem = reading.problem(key, "a reward model has another head, which is not planned");
            reading.refuse(problem.mend("remove it to plan a step of supervised training"));
        }
    }
    if reading.is("fp8")? {
        reading.unplanned("--precision", "fp8", "fp8 is not planned");
    }
    reading.not_planned_if_set("qat", "quantization-aware training");
    Ok(())
}

/// The model is loaded in the half type and computed under autocast (`resolve_dtype` in `utils/config/__init__.py`).
fn types(reading: &mut Reading<'_>) -> Result<(), Problem> {
    if reading.peek("bf16").and_then(Value::as_str) == Some("full") {
        reading.value("bf16");
        reading.set("--precision", "bf16", "bf16");
        reading.pass(&["fp16", "bfloat16"]);
        return Ok(());
    }
    // on cards that have it, unless fp16 is said
    let bf16 = reading.is_auto("bf16") || !reading.has("bf16");
    let fp16 = reading.is("fp16")?;
    // `bfloat16` is autocast too (`_configure_precision_settings` in `core/builders/base.py`)
    let bfloat16 = reading.is("bfloat16")?;
    let key = if bfloat16 { Some("bfloat16") } else { reading.has("bf16").then_some("bf16") };
    let float16 = reading.is("float16")?;
    let by_bits = reading.is("load_in_8bit")?;
    reading.pass(&["float32"]);
    if bfloat16 || bf16 && !fp16 || (!bf16 && reading.is("bf16")?) {
        match key {
            Some(key) => reading.set("--precision", "bf16-mixed", key),
            None => reading.imply("--precision", "bf16-mixed", "bf16 left out: auto"),
        }
        reading.imply("--weights-dtype", "bf16", "Axolotl loads the model in bf16");
    } else if fp16 {
        reading.set("--precision", "fp16-mixed", "fp16");
        reading.imply("--weights-dtype", "fp16", "Axolotl loads the model in fp16");
    } else if float16 {
        // the model is in half, and no autocast is around it (`_configure_precision_settings`)
        reading.set("--precision", "fp16", "float16");
    } else if by_bits {
        reading.set("--precision", "fp16", "load_in_8bit");
    } else {
        reading.imply("--precision", "fp32", "neither bf16 nor fp16 is true");
    }
    reading.value("bf16");
    Ok(())
}

fn adapters(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let rank = reading.number("lora_r")?;
    let dropout = reading.amount("lora_dropout")?.unwrap_or(0.0);
    let listed = reading.words("lora_target_modules")?;
    let targets = targets(reading, listed)?;
    let save = reading.words("lora_modules_to_save")?.unwrap_or_default();
    let (four, eight) = (reading.is("load_in_4bit")?, reading.is("load_in_8bit")?);
    match reading.text("adapter")? {
        None if four || eight => {
            let key = if four { "load_in_4bit" } else { "load_in_8bit" };
            reading.ask("--lora", key, "quantized weights are frozen, and no adapter is asked for");
        }
        None => return Ok(()),
        Some(adapter @ ("lora" | "qlora")) => {
            bits(reading, adapter, [four, eight]);
            match (rank, targets) {
                (Some(rank), Some(targets)) => {
                    let targets = Some(&*targets);
                    let adapters =
                        Adapters { rank, dropout, dtype: None, targets, save: &save, save_dtype: None };
                    adapters.say(reading, "adapter");
                    kernels(reading, eight)?;
                }
                (None, _) => {
                    reading.ask("--lora", "adapter", "the rank of the adapters, `lora_r`, is left out");
                }
                (_, None) => {
                    let cause = "neither lora_target_modules nor lora_target_linear says which modules have adapters, and Axolotl \
                                 then gives them to none";
                    reading.ask("--lora", "adapter", cause);
                }
            }
        }
        Some(other) => {
            reading.unplanned("--lora", "adapter", &format!("the adapter {} is not planned", quoted(other)));
        }
    }
    if four {
        // `loaders/model.py` sets bnb_4bit_use_double_quant, and after prepare_model_for_kbit_training casts norms,
        // embedding and head back where there are adapters
        reading.set("--quantize", "nf4-double", "load_in_4bit");
    } else if eight {
        reading.set("--quantize", "int8", "load_in_8bit");
    }
    reading.not_planned_if_set("peft_use_dora", "DoRA's magnitudes: LoRA is planned");
    reading.not_planned_if_set("lora_layers_to_transform", "adapters in some layers alone: planned in all");
    reading.not_planned_if_set("peft_layers_to_transform", "adapters in some layers alone: planned in all");
    reading.not_planned_if_set("lora_mlp_kernel", "Axolotl's kernels of LoRA: peft's modules are planned");
    reading.not_planned_if_set("lora_qkv_kernel", "Axolotl's kernels of LoRA: peft's modules are planned");
    reading.not_planned_if_set("lora_o_kernel", "Axolotl's kernels of LoRA: peft's modules are planned");
    reading.not_planned_if_set("relora", "ReLoRA");
    reading.not_planned_if_set("gptq", "weights that GPTQ packed");
    reading.not_planned_if_set_without(
        "--quantize",
        "bnb_config_kwargs",
        "another way to quantize: nf4 with double quantization is planned",
    );
    Ok(())
}

/// Modules that have adapters: those that are listed, all linear ones beside them, or none (`_build_peft_lora_config` in
/// `loaders/adapter.py`).
fn targets(reading: &mut Reading<'_>, listed: Option<Vec<String>>) -> Result<Option<Vec<String>>, Problem> {
    let listed = listed.filter(|names| !names.is_empty());
    reading.not_planned_if_set_without(
        "--lora",
        "lora_target_parameters",
        "adapters on parameters of experts: planned without",
    );
    if !reading.is("lora_target_linear")? {
        return Ok(listed);
    }
    let is_beside =
        |name: &&String| ["embed", "wte", "wpe", "lm_head"].iter().any(|part| name.contains(part));
    let beside: Vec<String> = listed.iter().flatten().filter(is_beside).cloned().collect();
    if !beside.is_empty() {
        let what =
            format!("adapters on {} beside those on all linear modules: planned without", beside.join(", "));
        reading.note_without("--lora", "lora_target_modules", &what);
    }
    Ok(Some(vec!["all-linear".to_owned()]))
}

/// Asks what is packed where the adapter and its bits do not go together: `qlora` is of 4 bits, and `lora` of 8 or none
/// (`_set_quantization_config` in `loaders/model.py`, `validate_qlora` in `utils/schemas/peft.py`).
fn bits(reading: &mut Reading<'_>, adapter: &str, [four, eight]: [bool; 2]) {
    let (key, cause) = match (adapter, four, eight) {
        ("lora", true, false) => {
            ("load_in_4bit", "4 bits are of `adapter: qlora`, and with `lora` Axolotl packs nothing by them")
        }
        ("qlora", false, false) => {
            ("adapter", "`qlora` needs `load_in_4bit: true`, without which Axolotl refuses it")
        }
        ("qlora", _, true) => ("load_in_8bit", "`qlora` is of 4 bits, and Axolotl refuses 8"),
        _ => return,
    };
    reading.unplanned("--quantize", key, cause);
}

/// Axolotl runs its own kernels of LoRA unless one is said not to (`check_auto_enable_lora_kernels` in `utils/schemas/config.py`).
fn kernels(reading: &mut Reading<'_>, eight: bool) -> Result<(), Problem> {
    let keys = ["lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel"];
    let is_said = keys.iter().any(|key| reading.has(key));
    reading.pass(&["lora_embedding_kernel"]);
    if !is_said && !eight && !reading.is("trust_remote_code")? {
        let what = "Axolotl's kernels of LoRA, which it runs unless lora_mlp_kernel, lora_qkv_kernel and lora_o_kernel are \
                    false: peft's modules are planned";
        reading.note("adapter", what);
    }
    Ok(())
}

fn recompute(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let key = "gradient_checkpointing";
    match reading.value(key) {
        Some(Value::String(way)) if matches!(way.as_str(), "offload" | "unsloth") => {
            reading.set("--recompute", "full", key);
            reading.set("--offload", "activations", key);
        }
        Some(Value::String(way)) if way == "offload_disk" => {
            reading.set("--recompute", "full", key);
            reading.not_planned_without("--offload", key, "checkpoints on disk: planned on the card");
        }
        _ => match reading.flag(key)? {
            Some(true) => reading.set("--recompute", "full", key),
            Some(false) => reading.set("--recompute", "none", key),
            None => {}
        },
    }
    reading.not_planned_if_set_without(
        "--recompute",
        "selective_checkpointing",
        "which ops are kept: `--recompute selective` keeps products and attention",
    );
    if reading.peek("activation_offloading").is_some_and(Value::is_string) {
        reading.not_planned_without(
            "--offload",
            "activation_offloading",
            "this way to move activations to the host: `--offload activations` plans one",
        );
    } else if reading.is("activation_offloading")? {
        reading.set("--offload", "activations", "activation_offloading");
    }
    Ok(())
}

fn attention(reading: &mut Reading<'_>) -> Result<(), Problem> {
    for (key, planned) in
        [("eager_attention", "eager"), ("sdp_attention", "sdpa"), ("flash_attention", "sdpa")]
    {
        if reading.is(key)? {
            reading.set("--attention", planned, key);
        }
    }
    match reading.text("attn_implementation")? {
        Some("eager") => reading.set("--attention", "eager", "attn_implementation"),
        Some("sdpa" | "flash_attention_2") => reading.set("--attention", "sdpa", "attn_implementation"),
        Some(_) => reading.not_planned_without("--attention", "attn_implementation", "planned as sdpa"),
        None => {}
    }
    for key in ["xformers_attention", "flex_attention", "sage_attention", "s2_attention"] {
        reading.not_planned_if_set_without("--attention", key, "planned as sdpa");
    }
    Ok(())
}

fn loss(reading: &mut Reading<'_>) -> Result<(), Problem> {
    reading.imply("--loss-in-model", true, "Trainer passes the labels to the model");
    let plugins = reading.words("plugins")?.unwrap_or_default();
    let cuts = plugins.iter().any(|plugin| plugin.contains("cut_cross_entropy"));
    if cuts && reading.flag("cut_cross_entropy")? != Some(false) {
        reading.set("--fused-loss", true, "plugins");
        reading.not_planned("plugins", "Cut Cross Entropy's kernel: Liger's fused loss is planned");
    }
    if reading.is("liger_fused_linear_cross_entropy")? {
        reading.set("--fused-loss", true, "liger_fused_linear_cross_entropy");
    }
    for key in ["liger_rope", "liger_rms_norm", "liger_layer_norm", "liger_glu_activation", "liger_swiglu"] {
        reading.not_planned_if_set(key, "transformers' own module is planned");
    }
    reading.not_planned_if_set(
        "liger_cross_entropy",
        "Liger's cross entropy of whole logits: torch's is planned",
    );
    reading.not_planned_if_set("chunked_cross_entropy", "the loss in chunks of the sequence");
    reading.not_planned_if_set("use_eaft", "another loss over the logits: the plain one is planned");
    reading.pass(&["cut_cross_entropy", "liger_use_token_scaling", "eaft_*"]);
    Ok(())
}

fn many_gpus(reading: &mut Reading<'_>) -> Result<(), Problem> {
    reading.attempt(nested_deepspeed);
    let version = reading.number("fsdp_version")?.unwrap_or(if reading.has("fsdp") { 1 } else { 2 });
    if reading.has("fsdp") || reading.has("fsdp_config") {
        let key = if reading.has("fsdp_config") { "fsdp_config" } else { "fsdp" };
        reading.set("--fsdp", "full_shard", key);
        // its own `fsdp2_prepare_model` makes nothing fp32 (`monkeypatch/accelerate/fsdp2.py`)
        let is_its_own = |key: &str| reading.peek(key).and_then(Value::as_u64) == Some(2);
        reading.found.shards_as_loaded = reading.has("fsdp_config")
            && (is_its_own("fsdp_version") || is_its_own("fsdp_config/fsdp_version"));
        if reading.found.shards_as_loaded {
            reading.imply("--fsdp-wrap", "accelerate-1.13", "Axolotl wraps as accelerate 1.13 does");
        }
        for item in reading.words("fsdp")?.unwrap_or_default() {
            match item.as_str() {
                "offload" => reading.set("--offload", "parameters", "fsdp"),
                "shard_grad_op" | "hybrid_shard" => reading.set("--fsdp", item, "fsdp"),
                _ => {}
            }
        }
        fsdp::read(reading, "fsdp_config", version, fsdp::By::Trainer)?;
    }
    for (key, option) in [
        ("tensor_parallel_size", "--tp"),
        ("context_parallel_size", "--cp"),
        ("sequence_parallel_degree", "--cp"),
    ] {
        if reading.number(key)?.is_some_and(|size| size > 1) {
            reading.count(key, option);
            if option == "--cp" {
                reading.note(key, "ring-flash-attn's attention over a shared sequence: torch's is planned");
            }
        }
    }
    let (shards, replicas) = (reading.number("dp_shard_size")?, reading.number("dp_replicate_size")?);
    let (shards, replicas) = (shards.unwrap_or(1), replicas.unwrap_or(1));
    if shards.max(replicas) > 1 {
        let key = if shards > 1 { "dp_shard_size" } else { "dp_replicate_size" };
        reading.set("--dp", shards.saturating_mul(replicas), key);
        if shards > 1 && replicas > 1 {
            reading.set("--fsdp", "hybrid_shard", key);
            reading.set("--dp-shard-size", shards, key);
        }
    }
    if reading.number("ddp_bucket_cap_mb")?.is_some_and(|size| size != 25) {
        reading.not_planned("ddp_bucket_cap_mb", "planned with DDP's own buckets of 25 MiB");
    }
    Ok(())
}
