//! peft's `adapter_config.json` (`LoraConfig` in `peft/tuners/lora/config.py`, 0.18): the adapters of a run, and the model that
//! they belong to.

use super::reading::Reading;
use super::training_arguments::Adapters;
use peakledger_input::{Problem, quoted};

pub(super) const SIGNS: &[&str] = &["peft_type"];

const PASSES: &[&str] = &[
    "auto_mapping",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "lora_alpha",
    "alpha_pattern",
    "use_rslora",
    "ensure_weight_tying",
    "layers_pattern",
    "megatron_core",
    "peft_version",
    "revision",
    "runtime_config",
    "task_type",
];

pub(super) fn read(reading: &mut Reading<'_>) -> Result<(), Problem> {
    reading.model("base_model_name_or_path");
    reading.attempt(adapters);
    reading.not_planned_if_set("use_dora", "DoRA's magnitudes: LoRA is planned");
    reading.not_planned_if_set("use_qalora", "QA-LoRA's pooled inputs: LoRA is planned");
    reading.not_planned_if_set("rank_pattern", "adapters of other ranks in some modules: all have `r`");
    reading.not_planned_if_set("layers_to_transform", "adapters in some layers alone: planned in all");
    reading.not_planned_if_set("exclude_modules", "modules without an adapter: planned in all targets");
    reading.not_planned_if_set(
        "layer_replication",
        "layers that are stacked again: those of the model are planned",
    );
    reading.not_planned_if_set("bias", "biases that are trained: planned as frozen");
    reading.not_planned_if_set("lora_bias", "a bias in each adapter");
    reading.not_planned_if_set("target_parameters", "adapters of parameters: those of modules are planned");
    reading.not_planned_if_set("trainable_token_indices", "rows of the embedding that are trained");
    reading.not_planned_if_set("alora_invocation_tokens", "adapters that wait for a word: they always run");
    reading.not_planned_if_set("arrow_config", "adapters that are routed to: one is planned");
    reading.not_planned_if_set(
        "megatron_config",
        "adapters of Megatron's layers: those of linear modules are planned",
    );
    reading.pass(PASSES);
    Ok(())
}

fn adapters(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let rank = reading.number("r")?.unwrap_or(8);
    let dropout = reading.amount("lora_dropout")?.unwrap_or(0.0);
    let save = reading.words("modules_to_save")?.unwrap_or_default();
    match reading.text("peft_type")? {
        None | Some("LORA") => {}
        Some(other) => {
            reading.pass(&["target_modules"]);
            reading.unplanned(
                "--lora",
                "peft_type",
                &format!("adapters of the type {} are not planned", quoted(other)),
            );
            return Ok(());
        }
    }
    // peft takes one text for a pattern, unless it is this
    let pattern =
        reading.peek("target_modules").and_then(|value| value.as_str()).filter(|text| *text != "all-linear");
    if let Some(pattern) = pattern {
        reading.pass(&["target_modules"]);
        let cause = format!("the pattern {}, which modules it means is not looked up", quoted(pattern));
        reading.unplanned("--lora", "target_modules", &cause);
        return Ok(());
    }
    let targets = reading.words("target_modules")?.filter(|targets| !targets.is_empty());
    if targets.is_none() {
        reading.ask("--lora", "peft_type", "which modules have adapters is left to the model's family");
        return Ok(());
    }
    let targets = targets.as_deref();
    Adapters { rank, dropout, dtype: None, targets, save: &save, save_dtype: None }.say(reading, "peft_type");
    Ok(())
}
