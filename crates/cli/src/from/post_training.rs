//! Post-training, which no config is planned with: what plans it, or comes nearest.

/// What plans a step of post-training, or comes nearest to it; what is said of it `goes` to plan the training alone.
pub(super) fn by_post_training(kind: &str, goes: &str) -> String {
    let alone = format!("{goes} to plan a step of supervised training");
    match kind {
        "dpo" | "ppo" | "grpo" => {
            format!("`peakledger plan MODEL --post-training {kind}` plans it, without the file; or {alone}")
        }
        "gdpo" | "gspo" | "rloo" | "reinforce" => {
            format!(
                "the nearest is `peakledger plan MODEL --post-training grpo`, without the file; or {alone}"
            )
        }
        // a reference scores what is trained on, as of DPO, which has pairs
        "kto" | "ipo" | "bco" => {
            format!(
                "the nearest is `peakledger plan MODEL --post-training dpo`, which trains on pairs, without the file; or {alone}"
            )
        }
        "" => format!(
            "`peakledger plan MODEL --post-training grpo`, `ppo` or `dpo` plans one, without the file; or {alone}"
        ),
        _ => alone,
    }
}
