//! `fsdp_config` as accelerate, transformers and Axolotl write it: the same keys, with or without `fsdp_` before them
//! (`FullyShardedDataParallelPlugin` in accelerate's `utils/dataclasses.py`).

use super::reading::Reading;
use peakledger_input::{Problem, quoted};
use serde_json::Value;

/// What accelerate runs unless `fsdp_version` says 2.
const FSDP1: &str = "FSDP1's flat parameters: FSDP2 is planned, which shards parameter by parameter";

/// What no longer holds with this option is said of FSDP alone.
const SHARDED_OTHERWISE: &str = "--zero";

/// What accelerate does beside `MixedPrecisionPolicy` (`prepare_model`).
const AUTOCAST: &str =
    "accelerate's autocast around the model that FSDP shards: planned with FSDP's own casts alone";

/// Both spellings of a key.
const fn spellings<'a>(with: &'a str, without: &'a str) -> [&'a str; 2] {
    [with, without]
}

const PASSES: &[&str] = &[
    "state_dict_type",
    "final_state_dict_type",
    "cpu_ram_efficient_loading",
    "cpu_offload_pin_memory",
    "sync_module_states",
    "use_orig_params",
    "transformer_layer_cls_to_wrap",
    "transformer_cls_names_to_wrap",
    "limit_all_gathers",
    "xla*",
    "forward_prefetch",
    "min_num_params",
    "state_dict_config",
    "optim_state_dict_config",
];

/// Who reads the keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// `accelerate launch`, which hands them on as variables of the environment.
    Accelerate,
    /// transformers' `TrainingArguments`, and who fills them.
    Trainer,
}

/// Reads the config that `key` names, in which `version` of FSDP is taken where it says nothing.
pub(super) fn read(reading: &mut Reading<'_>, key: &str, version: u64, by: By) -> Result<(), Problem> {
    let keys = spellings("fsdp_version", "version");
    let is_said = reading.within(key, |reading| keys.iter().any(|key| reading.has(key)));
    let is_first = reading.within(key, |reading| config(reading, version, by))?;
    let key = if reading.has(key) { key } else { "fsdp" };
    if reading.said("--fsdp").is_none() {
        return Ok(());
    }
    reading.found.reduces_as_computed = true;
    if version == 1 && !is_said {
        reading.note_without(SHARDED_OTHERWISE, key, FSDP1);
    }
    if is_first {
        reading.imply("--fsdp-wrap", "layers", "FSDP1's root holds all that is in no layer");
    }
    if ["mixed_precision", "bf16", "fp16"].iter().any(|key| is_on(reading.peek(key))) {
        reading.note_without(SHARDED_OTHERWISE, key, AUTOCAST);
    }
    Ok(())
}

/// Whether a key asks for mixed precision.
fn is_on(value: Option<&Value>) -> bool {
    match value {
        Some(Value::String(text)) => !matches!(text.to_ascii_lowercase().as_str(), "no" | "false" | "full"),
        Some(value) => value.as_bool() == Some(true),
        None => false,
    }
}

/// Reads its keys; says whether it is FSDP1's.
fn config(reading: &mut Reading<'_>, version: u64, by: By) -> Result<bool, Problem> {
    let mut is_first = version == 1;
    for key in spellings("fsdp_version", "version") {
        if let Some(version) = reading.number(key)? {
            is_first = version == 1;
            if is_first {
                reading.not_planned_without(SHARDED_OTHERWISE, key, FSDP1);
            }
        }
    }
    let strategies = spellings("fsdp_sharding_strategy", "sharding_strategy");
    let reshards = spellings("fsdp_reshard_after_forward", "reshard_after_forward");
    // FSDP2 looks at `reshard_after_forward` alone, and FSDP1 where accelerate launches it at the strategy alone
    // (`__post_init__`)
    let [read, unread]: [&[&str]; 2] = match (is_first, by) {
        (false, _) => [&reshards, &strategies],
        (true, By::Accelerate) => [&strategies, &reshards],
        (true, By::Trainer) => [&[strategies[0], strategies[1], reshards[0], reshards[1]], &[]],
    };
    for key in read {
        strategy(reading, key, is_first)?;
    }
    for key in unread {
        let asked = reading.value(key).map(named);
        let planned = reading.said("--fsdp");
        if asked.is_some_and(|asked| option(&asked) != planned.map(Some)) {
            let what = if is_first {
                "FSDP1 takes fsdp_sharding_strategy, FULL_SHARD where it is left out, and not this: planned so"
            } else {
                "FSDP2 takes fsdp_reshard_after_forward, true where it is left out, and not this: planned so"
            };
            reading.note_without("--fsdp", key, what);
        }
    }
    for key in ["fsdp_offload_params", "offload_params", "fsdp_cpu_offload", "cpu_offload"] {
        if reading.is(key)? {
            reading.set("--offload", "parameters", key);
        }
    }
    for key in spellings("fsdp_activation_checkpointing", "activation_checkpointing") {
        if reading.is(key)? {
            reading.set("--recompute", "full", key);
        }
    }
    for key in spellings("fsdp_activation_checkpointing_offload", "activation_checkpointing_offload") {
        if reading.is(key)? {
            let parts = reading
                .said("--offload")
                .map_or("activations".to_owned(), |said| format!("{said},activations"));
            reading.set("--offload", parts, key);
        }
    }
    for key in spellings("fsdp_auto_wrap_policy", "auto_wrap_policy") {
        let policy = reading.text(key)?.map(str::to_ascii_uppercase);
        if policy.is_some_and(|policy| policy != "TRANSFORMER_BASED_WRAP") {
            reading.not_planned(key, "other units than the decoder layers: those are planned");
        }
    }
    for key in spellings("fsdp_backward_prefetch", "backward_prefetch") {
        let prefetch = reading.text(key)?.map(str::to_ascii_uppercase);
        if is_first && prefetch.is_some_and(|prefetch| prefetch != "BACKWARD_PRE") {
            reading.not_planned(key, "planned with the next unit fetched early, as FSDP2 does");
        }
    }
    for key in spellings("fsdp_mixed_precision_policy", "mixed_precision_policy") {
        reading.not_planned_if_set(key, "types of FSDP's own: planned with those of the precision");
    }
    for key in spellings("fsdp_ignored_modules", "ignored_modules") {
        reading.not_planned_if_set(key, "modules that stay whole: planned sharded");
    }
    reading.pass(PASSES);
    let prefixed: Vec<String> = PASSES.iter().map(|key| format!("fsdp_{key}")).collect();
    reading.pass(&prefixed.iter().map(String::as_str).collect::<Vec<_>>());
    Ok(is_first)
}

/// A sharding strategy: FSDP1's name or number, or whether FSDP2 reshards after forward.
fn strategy(reading: &mut Reading<'_>, key: &str, is_first: bool) -> Result<(), Problem> {
    let Some(name) = reading.value(key).map(named) else { return Ok(()) };
    match option(&name) {
        Some(Some(option)) => reading.set("--fsdp", option, key),
        Some(None) => reading.take_back("--fsdp"),
        None => {
            let which = if is_first { "FSDP1" } else { "FSDP2" };
            let cause = format!("the {which} strategy {} is not planned", quoted(&name));
            reading.unplanned("--fsdp", key, &cause);
        }
    }
    Ok(())
}

/// What a strategy is called.
fn named(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned).to_ascii_uppercase()
}

/// The value of `--fsdp` that a strategy is, nothing for one that shards nothing; or nothing where none is planned.
fn option(strategy: &str) -> Option<Option<&'static str>> {
    Some(match strategy {
        "FULL_SHARD" | "TRUE" | "1" => Some("full_shard"),
        "SHARD_GRAD_OP" | "FALSE" | "2" => Some("shard_grad_op"),
        "HYBRID_SHARD" | "4" => Some("hybrid_shard"),
        "NO_SHARD" | "3" => None,
        _ => return None,
    })
}

/// `fsdp` and `fsdp_config` of `TrainingArguments` (`_process_fsdp_args`).
pub(super) fn of_trainer(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let items: Vec<String> = match reading.value("fsdp") {
        Some(Value::Bool(true)) => vec!["full_shard".to_owned()],
        Some(Value::String(text)) => text.split_whitespace().map(str::to_owned).collect(),
        Some(Value::Array(list)) => list.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    };
    if items.is_empty() {
        reading.pass(&["fsdp_config"]);
        return Ok(());
    }
    reading.set("--fsdp", "full_shard", "fsdp");
    let of_old = reading.peek("fsdp").is_some_and(|fsdp| !fsdp.is_boolean());
    let has_version = ["version", "fsdp_version"];
    let has_version = reading.within("fsdp_config", |reading| has_version.iter().any(|key| reading.has(key)));
    if of_old && !has_version {
        let what =
            "FSDP1, which transformers 4 runs by these words: planned as FSDP2, which transformers 5 does";
        reading.note_without(SHARDED_OTHERWISE, "fsdp", what);
    }
    for item in items {
        match item.as_str() {
            "full_shard" | "auto_wrap" => {}
            "shard_grad_op" | "hybrid_shard" => reading.set("--fsdp", item, "fsdp"),
            "offload" => reading.set("--offload", "parameters", "fsdp"),
            "no_shard" => reading.take_back("--fsdp"),
            other => {
                reading.unplanned(
                    "--fsdp",
                    "fsdp",
                    &format!("the strategy {} is not planned", quoted(other)),
                );
            }
        }
    }
    reading.pass(&["fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params"]);
    read(reading, "fsdp_config", 2, By::Trainer)
}
