//! Optimizers by the names that people's configs have for them: `OptimizerNames` in transformers' `training_args.py`, the
//! `type` of DeepSpeed's `optimizer`, torchtitan's and Megatron's.

use serde_json::Value;

/// What a name means here.
pub(crate) struct Named {
    pub(crate) kind: &'static str,
    pub(crate) implementation: Option<&'static str>,
    /// What of it the plan leaves out.
    pub(crate) not_planned: Option<&'static str>,
}

/// Unified memory beside torch's allocator, for the moments of every parameter of 100,000 numbers or more (`get_state_buffer` in
/// bitsandbytes' `optim/optimizer.py`, `get_paged` in its `functional.py`): it lies on the card while there is room.
const PAGED: &str = "pages of the optimizer state that the driver moves to the host where the card is full; planned on the card";

/// Which of those that are planned comes nearest to one that is not.
pub(super) fn near(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let is_adam = name.contains("adam");
    match () {
        () if is_adam && (name.contains("8bit") || name.contains("4bit")) => Some("adamw-8bit"),
        () if name.contains("lion") => Some("lion"),
        () if is_adam => Some("adamw"),
        () => None,
    }
}

/// The momentum among an optimizer's arguments: a map, or `momentum=0.9,nesterov=true` as transformers has it
/// (`_parse_optim_args` in `trainer_optimizer.py`).
pub(super) fn momentum(arguments: &Value) -> Option<f64> {
    let number = |value: &Value| value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    match arguments {
        Value::Object(arguments) => arguments.get("momentum").and_then(number),
        Value::String(text) => {
            let said = text.split(',').filter_map(|argument| argument.split_once('='));
            let mut said = said.filter(|(name, _)| name.trim() == "momentum");
            said.next_back().and_then(|(_, value)| value.trim().parse().ok())
        }
        _ => None,
    }
}

/// What is planned of an optimizer by that name.
pub(crate) fn of(name: &str) -> Option<Named> {
    let (kind, implementation, not_planned) = match name.to_ascii_lowercase().as_str() {
        "adamw_torch" => ("adamw", None, None),
        "adamw_torch_fused" => ("adamw", Some("fused"), None),
        "adamw_bnb_8bit" | "adamw_8bit" => ("adamw-8bit", None, None),
        "paged_adamw_8bit" => ("adamw-8bit", None, Some(PAGED)),
        "paged_adamw_32bit" => ("adamw-32bit", None, Some(PAGED)),
        "adafactor" => ("adafactor", None, Some("transformers' own Adafactor: torch.optim's is planned")),
        "sgd" => ("sgd", None, None),
        "lion_32bit" => ("lion", None, None),
        "paged_lion_32bit" => ("lion", None, Some(PAGED)),
        "muon" => ("muon", None, None),
        _ => return None,
    };
    Some(Named { kind, implementation, not_planned })
}
