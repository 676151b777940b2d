//! LLaMA-Factory's YAML (`src/llamafactory/hparams`; `model/adapter.py` and `model/patcher.py` for types): the training
//! arguments of transformers, and its own.

use super::post_training::by_post_training;
use super::reading::Reading;
use super::training_arguments::{self, Adapters, trainer};
use peakledger_input::{Problem, quoted};

pub(super) const SIGNS: &[&str] = &[
    "finetuning_type",
    "cutoff_len",
    "template",
    "quantization_bit",
    "lora_target",
    "lora_rank",
    "dist_config",
    "kernel_config",
];

const PASSES: &[&str] = &[
    "template",
    "dataset",
    "dataset_*",
    "eval_dataset",
    "media_dir",
    "train_on_prompt",
    "mask_history",
    "streaming",
    "buffer_size",
    "mix_strategy",
    "interleave_probs",
    "overwrite_cache",
    "preprocessing_*",
    "max_samples",
    "ignore_pad_token_for_loss",
    "val_size",
    "packing",
    "tool_format",
    "default_system",
    "enable_thinking",
    "preserve_thinking",
    "tokenized_path",
    "data_shared_file_system",
    "cache_dir",
    "use_fast_tokenizer",
    "split_special_tokens",
    "model_revision",
    "low_cpu_mem_usage",
    "use_reentrant_gc",
    "use_kv_cache",
    "infer_*",
    "hf_hub_token",
    "ms_hub_token",
    "om_hub_token",
    "print_param_status",
    "trust_remote_code",
    "lora_alpha",
    "loraplus_*",
    "use_rslora",
    "create_new_adapter",
    "compute_accuracy",
    "disable_shuffling",
    "early_stopping_steps",
    "plot_loss",
    "include_effective_tokens_per_second",
    "use_swanlab",
    "swanlab_*",
    "ray_*",
    "vllm_*",
    "sglang_*",
    "export_*",
    "image_*",
    "video_*",
    "freeze_vision_tower",
    "freeze_multi_modal_projector",
    "predict_with_generate",
    "quantization_device_map",
    "rope_scaling",
    "train_from_scratch",
    // of stages that are refused
    "pref_*",
    "dpo_label_smoothing",
    "kto_*",
    "simpo_gamma",
    "ppo_*",
    "ref_model*",
    "reward_model*",
    // which layers are frozen is asked for
    "freeze_trainable_*",
    "freeze_extra_modules",
    "moe_aux_loss_coef",
];

/// Keys that the arguments of its version 1 have and those before had not (`v1/config`).
const OF_VERSION_1: &[&str] = &[
    "model",
    "model_class",
    "dist_config",
    "kernel_config",
    "peft_config",
    "quant_config",
    "optim_config",
    "init_config",
    "train_dataset",
    "micro_batch_size",
    "enable_activation_checkpointing",
];

pub(super) fn read(reading: &mut Reading<'_>) -> Result<(), Problem> {
    if let Some(key) = OF_VERSION_1.iter().find(|key| reading.has(key)) {
        let cause = format!(
            "{} is of LLaMA-Factory's version 1, whose arguments are not read: they have other names and other defaults",
            quoted(key)
        );
        let mend = "say it by options, without the file: `peakledger plan MODEL --batch N --seq LENGTH`";
        return Err(reading.problem(key, cause).mend(mend));
    }
    reading.attempt(stage);
    reading.model("model_name_or_path");
    if !reading.has("cutoff_len") {
        reading.imply("--seq-len", 2048, "cutoff_len left out");
    }
    reading.count("cutoff_len", "--seq-len");
    reading.attempt(trainer);
    if reading.is("enable_liger_kernel")? {
        reading.set("--fused-loss", true, "enable_liger_kernel");
        reading.not_planned(
            "enable_liger_kernel",
            "Liger's norms, rope and SwiGLU: transformers' own are planned",
        );
    }
    recompute(reading)?;
    match reading.text("flash_attn")? {
        Some("disabled") => reading.set("--attention", "eager", "flash_attn"),
        Some("auto" | "sdpa" | "fa2" | "fa3") => reading.set("--attention", "sdpa", "flash_attn"),
        Some(_) => reading.not_planned_without("--attention", "flash_attn", "planned as sdpa"),
        None => {}
    }
    reading.attempt(|reading| {
        let is_lora = finetuning(reading)?;
        types(reading, is_lora)
    });
    reading.attempt(other_optimizers);
    reading.not_planned_if_set("use_unsloth", "Unsloth's kernels: transformers' own modules are planned");
    reading.not_planned_if_set_without(
        "--offload",
        "use_unsloth_gc",
        "Unsloth's checkpoints on the host: `--offload activations` plans them",
    );
    reading.not_planned_if_set("use_kt", "KTransformers' experts on the host");
    reading.not_planned_if_set("upcast_layernorm", "norms in fp32");
    reading.not_planned_if_set("upcast_lmhead_output", "the logits once more in fp32");
    reading.not_planned_if_set("resize_vocab", "rows that are added to the embedding");
    for key in ["use_dft_loss", "use_eaft_loss"] {
        reading.not_planned_if_set(key, "another loss over the logits: the plain one is planned");
    }
    reading.not_planned_if_set("use_asft_loss", "a reference model that is asked beside: planned without");
    reading.not_planned_if_set("shift_attn", "shifted sparse attention");
    // `SFTDataCollatorWith4DAttentionMask` in `data/collator.py`
    reading.not_planned_if_set(
        "neat_packing",
        "masks of packed sequences, a number for each two tokens unless flash_attn is fa2: planned without",
    );
    reading.not_planned_if_set("mixture_of_depths", "layers that pass some tokens by");
    if reading.is("fp8")? {
        reading.unplanned("--precision", "fp8", "fp8 is not planned");
    }
    reading.pass(&["fp8_*"]);
    reading.pass(PASSES);
    reading.pass(training_arguments::PASSES);
    Ok(())
}

/// The stage: what else than supervised training is another step than is planned of a config.
fn stage(reading: &mut Reading<'_>) -> Result<(), Problem> {
    match reading.text("stage")? {
        None | Some("sft" | "pt") => {}
        Some("rm") => {
            let problem =
                reading.problem("stage", "the stage `rm` trains a reward model, whose head is not planned");
            reading.refuse(problem.mend("write sft, whose step differs by its head and its loss"));
        }
        Some(stage) => {
            let problem = reading.problem("stage", format!("the stage {} is not planned", quoted(stage)));
            reading.refuse(problem.mend(by_post_training(stage, "write sft")));
        }
    }
    Ok(())
}

/// LLaMA-Factory checkpoints every layer as it loads the model, unless told not to, and the trainer does where its arguments say so
/// (`prepare_model_for_training` in `model/model_utils/checkpointing.py`).
fn recompute(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let by_trainer = reading.said("--recompute") == Some("full");
    if by_trainer {
        reading.pass(&["disable_gradient_checkpointing"]);
    } else if reading.is("disable_gradient_checkpointing")? {
        reading.set("--recompute", "none", "disable_gradient_checkpointing");
    } else {
        reading.take_back("--recompute");
        reading.imply("--recompute", "full", "LLaMA-Factory checkpoints every layer");
    }
    Ok(())
}

/// What is trained; whether that is adapters.
fn finetuning(reading: &mut Reading<'_>) -> Result<bool, Problem> {
    let rank = reading.number("lora_rank")?.unwrap_or(8);
    let dropout = reading.amount("lora_dropout")?.unwrap_or(0.0);
    let targets = reading.words("lora_target")?;
    let save = reading.words("additional_target")?.unwrap_or_default();
    let pure = reading.is("pure_bf16")?;
    let bits = reading.number("quantization_bit")?;
    let double = reading.flag("double_quantization")?.unwrap_or(true);
    let is_lora = match reading.text("finetuning_type")? {
        None | Some("lora") => {
            let key = if reading.has("finetuning_type") { "finetuning_type" } else { "lora_rank" };
            // what is trained is made fp32 (`_setup_lora_tuning` in `model/adapter.py`)
            let (targets, save_dtype) = (targets.as_deref(), if pure { None } else { Some("fp32") });
            Adapters { rank, dropout, dtype: None, targets, save: &save, save_dtype }.say(reading, key);
            true
        }
        Some("full") => false,
        Some("freeze") => {
            reading.ask(
                "--freeze",
                "finetuning_type",
                "which layers are frozen depends on how many the model has",
            );
            if !pure {
                let what = "frozen weights in the half type: planned in fp32, as those that are trained";
                reading.note_without("--weights-dtype", "finetuning_type", what);
            }
            false
        }
        Some(other) => {
            let problem = reading.problem("finetuning_type", format!("{} is not planned", quoted(other)));
            return Err(problem.mend("planned are lora, freeze and full"));
        }
    };
    match bits {
        None => {}
        Some(4) => {
            reading.set("--quantize", if double { "nf4-double" } else { "nf4" }, "quantization_bit");
        }
        Some(8) => reading.set("--quantize", "int8", "quantization_bit"),
        Some(bits) => {
            let problem = reading.problem("quantization_bit", format!("{bits} bits are not planned"));
            return Err(problem.mend("planned are 4 and 8"));
        }
    }
    if reading.text("quantization_method")?.is_some_and(|method| method != "bnb" && method != "bitsandbytes")
    {
        reading.not_planned_without("--quantize", "quantization_method", "bitsandbytes' is planned");
    }
    reading.pass(&["quantization_type"]);
    reading.not_planned_if_set("use_dora", "DoRA's magnitudes: LoRA is planned");
    reading.not_planned_if_set("pissa_init", "PiSSA's other base weights: LoRA is planned");
    reading.not_planned_if_set("use_llama_pro", "blocks that are added to the model");
    Ok(is_lora)
}

/// Weights are loaded in the half type; those that are trained are made fp32, unless `pure_bf16` (`init_adapter`).
fn types(reading: &mut Reading<'_>, is_lora: bool) -> Result<(), Problem> {
    let (bf16, fp16, pure) = (reading.is("bf16")?, reading.is("fp16")?, reading.is("pure_bf16")?);
    if pure {
        reading.set("--precision", "bf16", "pure_bf16");
        return Ok(());
    }
    let half = if bf16 { "bf16" } else { "fp16" };
    if bf16 || fp16 {
        reading.set("--precision", format!("{half}-mixed"), half);
        if is_lora {
            reading.imply("--weights-dtype", half, "LLaMA-Factory loads the model in the half type");
        }
    } else {
        reading.ask(
            "--precision",
            "bf16",
            "neither bf16 nor fp16 is true, so the checkpoint's own type is computed in",
        );
    }
    Ok(())
}

/// Optimizers that have switches of their own.
fn other_optimizers(reading: &mut Reading<'_>) -> Result<(), Problem> {
    if reading.is("use_muon")? {
        reading.set("--optimizer", "muon", "use_muon");
    }
    for key in ["use_galore", "use_apollo", "use_badam", "use_adam_mini"] {
        if reading.is(key)? {
            reading.unplanned("--optimizer", key, "its optimizer is not planned");
        }
    }
    reading.pass(&["galore_*", "apollo_*", "badam_*"]);
    Ok(())
}
