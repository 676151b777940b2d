//! Keys that are slips for others, or other libraries' names for them.

use super::Reader;
use peakledger_input::{Problem, misspelt, quoted};

/// Shapes by the names that other libraries and people have for them.
const OTHER_NAMES: &[(&str, &[&str])] = &[
    (
        "num_key_value_heads",
        &["num_kv_heads", "n_kv_heads", "kv_heads", "num_query_groups", "num_kv_attention_heads"],
    ),
    ("head_dim", &["head_size", "d_head", "attention_head_size", "attention_head_dim", "kv_channels"]),
    (
        "tie_word_embeddings",
        &["tie_embeddings", "tied_embeddings", "tie_weights", "tie_embedding", "tie_lm_head"],
    ),
    ("sliding_window", &["window_size", "attention_window"]),
    ("max_position_embeddings", &["max_seq_len", "max_sequence_length", "max_seq_length", "seq_length"]),
];

/// Keys of configs that are like others and mean something else.
fn is_known(key: &str) -> bool {
    const KNOWN: &[&str] = &[
        "sliding_window",
        "use_sliding_window",
        "_sliding_window_pattern",
        "qk_head_dim",
        "v_head_dim",
        "q_head_dim",
    ];
    KNOWN.contains(&key)
}

impl Reader<'_> {
    /// Refuses a key that nobody asks for where one is left out that it is a slip for, or another library's name for it: the
    /// family's default would be planned in its place.
    pub(crate) fn refuse_slips(&self) -> Result<(), Problem> {
        let asked = self.asked.borrow();
        let unknown: Vec<&str> = self
            .fields
            .keys()
            .map(String::as_str)
            .filter(|key| !asked.contains(key) && !is_known(key))
            .collect();
        for key in asked.iter().filter(|key| !self.fields.contains_key(**key)) {
            let others = OTHER_NAMES.iter().filter(|(own, _)| own == key).flat_map(|(_, others)| *others);
            let other = others.copied().find(|other| unknown.contains(other));
            if let Some(found) = misspelt(key, unknown.iter().copied()).or(other) {
                let cause = format!("{} is no key of it, and `{key}` is left out", quoted(found));
                let mend = format!("did you mean `{key}`? Write it so, or remove the key");
                return Err(self.at(found, &cause, &mend));
            }
        }
        Ok(())
    }
}
