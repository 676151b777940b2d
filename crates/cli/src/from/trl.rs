//! TRL's configs (`trainer/*_config.py` and those under `experimental`, 1.16): what tells them, what `SFTConfig` implies that
//! `TrainingArguments` do not, and whose training is another than supervised.

use super::post_training::by_post_training;
use super::reading::Reading;
use peakledger_input::{Problem, quoted};
use serde_json::Value;

/// Keys that TRL's scripts read and those of transformers do not.
const KEYS: &[&str] = &[
    "use_peft",
    "lora_r",
    "load_in_4bit",
    "load_in_8bit",
    "max_length",
    "packing",
    "eval_packing",
    "activation_offloading",
    "dataset_text_field",
    "assistant_only_loss",
    "completion_only_loss",
    "padding_free",
    "packing_strategy",
    "model_init_kwargs",
    "chat_template_path",
    "loss_type",
];

/// The loss by which supervised training goes.
const SUPERVISED: &[&str] = &["nll", "chunked_nll", "dft"];

/// A trainer of post-training: its name, what `--post-training` calls it or what is near it, its own keys and its losses. Those
/// with the most telling keys first: others' keys are in their configs too.
struct Trainer {
    name: &'static str,
    kind: &'static str,
    keys: &'static [&'static str],
    losses: &'static [&'static str],
}

const TRAINERS: &[Trainer] = &[
    Trainer {
        name: "a distillation",
        kind: "distillation",
        keys: &["teacher_model_name_or_path", "teacher_model_server_url", "teacher_model_kind", "seq_kd"],
        losses: &[],
    },
    Trainer {
        name: "KTO",
        kind: "kto",
        keys: &["desirable_weight", "undesirable_weight"],
        losses: &["kto", "apo_zero_unpaired"],
    },
    Trainer {
        name: "CPO",
        kind: "cpo",
        keys: &["cpo_alpha", "simpo_gamma", "tpo_alpha"],
        losses: &["simpo", "alphapo"],
    },
    Trainer {
        name: "RLOO",
        kind: "rloo",
        keys: &["rloo_k", "normalize_advantages", "reward_clip_range"],
        losses: &[],
    },
    Trainer {
        name: "PPO",
        kind: "ppo",
        keys: &["num_ppo_epochs", "cliprange", "cliprange_value", "vf_coef", "kl_coef", "whiten_rewards"],
        losses: &[],
    },
    Trainer {
        name: "online DPO",
        kind: "online_dpo",
        keys: &["missing_eos_penalty", "reward_model_path"],
        losses: &[],
    },
    Trainer {
        name: "DPO",
        kind: "dpo",
        keys: &[
            "precompute_ref_log_probs",
            "precompute_ref_batch_size",
            "rpo_alpha",
            "ld_alpha",
            "f_divergence_type",
            "discopop_tau",
            "use_weighting",
            "reference_free",
        ],
        losses: &[
            "sigmoid",
            "sigmoid_norm",
            "hinge",
            "ipo",
            "exo_pair",
            "nca_pair",
            "robust",
            "bco_pair",
            "sppo_hard",
            "aot",
            "aot_unpaired",
            "apo_zero",
            "apo_down",
            "discopop",
        ],
    },
    Trainer { name: "a reward model", kind: "reward", keys: &["center_rewards_coefficient"], losses: &[] },
    Trainer {
        name: "GRPO",
        kind: "grpo",
        keys: &[
            "num_generations",
            "num_iterations",
            "steps_per_generation",
            "generation_batch_size",
            "scale_rewards",
            "reward_weights",
            "importance_sampling_level",
            "mask_truncated_completions",
            "use_vllm",
        ],
        losses: &["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"],
    },
    // what several have
    Trainer {
        name: "post-training",
        kind: "",
        keys: &["max_completion_length", "max_prompt_length", "beta", "sync_ref_model"],
        losses: &[],
    },
];

/// Whether a config is one of TRL's supervised training.
pub(super) fn is_supervised(reading: &Reading<'_>) -> bool {
    KEYS.iter().any(|key| reading.has(key))
}

/// Refuses what trains on more than one model or on what is generated: the first key that tells it.
pub(super) fn other_training(reading: &mut Reading<'_>) {
    let losses = losses(reading);
    let told = TRAINERS.iter().find_map(|trainer| {
        let key = trainer.keys.iter().find(|key| reading.has(key));
        let by_loss =
            || losses.iter().any(|loss| trainer.losses.contains(&loss.as_str())).then_some(&"loss_type");
        key.or_else(by_loss).map(|key| (trainer, *key))
    });
    let Some((Trainer { name, kind, .. }, key)) = told else { return };
    let cause = format!(
        "{} is of {name} in TRL, which trains on more than tokens that are given, and configs are planned for supervised \
         training alone",
        quoted(key)
    );
    let problem = reading.problem(key, cause).mend(by_post_training(kind, "remove its keys"));
    reading.refuse(problem);
}

/// The words of `loss_type`, which is one or a list of them.
fn losses(reading: &Reading<'_>) -> Vec<String> {
    let words = match reading.peek("loss_type") {
        Some(Value::String(loss)) => vec![loss.clone()],
        Some(Value::Array(losses)) => {
            losses.iter().filter_map(|loss| loss.as_str().map(str::to_owned)).collect()
        }
        _ => Vec::new(),
    };
    words.into_iter().filter(|loss| !SUPERVISED.contains(&loss.as_str())).collect()
}

/// What `SFTConfig` has where a file says nothing: its length, checkpoints, and a loss without whole logits.
pub(super) fn supervised(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let lengths = ["max_length", "max_seq_length", "block_size", "model_max_length"];
    if reading.is_null("max_length") {
        reading.ask("--seq-len", "max_length", "no sequence is cut, and how long they are is not said");
    } else if !lengths.iter().any(|key| reading.has(key)) {
        reading.imply("--seq-len", 1024, "max_length left out: TRL then cuts sequences at 1024");
    }
    reading.imply("--recompute", "full", "gradient_checkpointing left out: TRL then checkpoints every layer");
    reading.pass(&["loss_type", "eval_packing", "pad_to_multiple_of"]);
    reading.not_planned_if_set_without(
        "--recompute",
        "gradient_checkpointing_kwargs/selective",
        "attention that is kept: planned as computed again, and `--recompute selective` keeps the products too",
    );
    // the smoothed loss takes whole logits (`compute_loss`, `trainer/sft_trainer.py`)
    if reading.amount("label_smoothing_factor")?.is_none_or(|factor| factor == 0.0) {
        reading.imply("--fused-loss", true, "TRL's loss makes no whole logits since 1.7");
        let what = "TRL's head and loss in tiles of 4096 tokens by 32768 words: Liger's fused loss, which comes nearest, is \
                    planned; TRL before 1.7 has whole logits (`--fused-loss=off`)";
        reading.default_not_planned("--fused-loss", "loss_type", what);
    }
    Ok(())
}
