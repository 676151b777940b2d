//! Optimizers by the names that people's configs have for them: `OptimizerNames` in transformers' `training_args.py`, the
//! `type` of DeepSpeed's `optimizer`, torchtitan's and Megatron's.

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
