//! "Did you mean": the known word that a mistyped one most resembles.

/// How alike two words must be (Jaro-Winkler, 0 to 1) for one to be offered in place of the other.
const ALIKE: f64 = 0.8;
/// Longer words are no typing mistakes, and comparing them takes the product of both lengths.
const LONGEST: usize = 64;

/// The candidate nearest to `word`, if one is near. The first of equally near ones.
pub fn near<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let word = plain(word);
    let mut best: Option<(f64, &'a str)> = None;
    for candidate in candidates {
        let score = likeness(&word, &plain(candidate));
        if score >= ALIKE && best.is_none_or(|(highest, _)| score > highest) {
            best = Some((score, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// The candidate that `word` is a slip of the hand for, if one is: few letters differ. Where words are alike and mean
/// different things, as options and the fields of a config do, [`near`] is too generous.
pub fn misspelt<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let word = plain(word);
    let most = (word.chars().count() / 4).max(1);
    let mut best: Option<(usize, &'a str)> = None;
    for candidate in candidates.into_iter().filter(|candidate| candidate.len() <= 2 * LONGEST) {
        let letters = strsim::osa_distance(&word, &plain(candidate));
        if letters <= most && best.is_none_or(|(fewest, _)| letters < fewest) {
            best = Some((letters, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// The same of names whose numbers tell them apart, as those of models, families and cards do: a slip of the hand changes
/// none of them, and of a short name every letter counts.
pub fn misspelt_name<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const SHORT: usize = 4;
    if word.len() <= SHORT {
        return None;
    }
    let numbers = |name: &str| -> Vec<String> {
        let runs = name.split(|c: char| !c.is_ascii_digit());
        runs.filter(|run| !run.is_empty()).map(str::to_owned).collect()
    };
    let of_word = numbers(word);
    misspelt(word, names.into_iter().filter(|name| numbers(name) == of_word))
}

/// A part of a compound name counts for a little less than the whole: `byts` means `size_bytes`.
fn likeness(word: &str, candidate: &str) -> f64 {
    let whole = strsim::jaro_winkler(word, candidate);
    let parts = candidate.split('_').filter(|part| part.len() > 3 && part.len() < candidate.len());
    parts.map(|part| 0.95 * strsim::jaro_winkler(word, part)).fold(whole, f64::max)
}

#[cfg(test)]
mod tests {
    use super::{misspelt, misspelt_name, near};

    #[test]
    fn offers_what_was_meant_and_nothing_far_off() {
        let fields = ["name", "category", "size_mb", "size_bytes", "start_phase", "end_phase", "device"];
        assert_eq!(near("byts", fields), Some("size_bytes"));
        assert_eq!(near("Catgory", fields), Some("category"));
        assert_eq!(near("size-mb", fields), Some("size_mb"));
        assert_eq!(near("colour", fields), None);
        assert_eq!(near("foward", ["load", "forward", "loss", "backward"]), Some("forward"));
        assert_eq!(near("tpu", ["gpu", "cpu"]), None, "another device is not a typing mistake");
        assert_eq!(near(&"name".repeat(100), fields), None);
    }

    #[test]
    fn a_slip_of_the_hand_is_not_another_word() {
        assert_eq!(misspelt("adamx", ["sgd", "adamw"]), Some("adamw"));
        assert_eq!(misspelt("adamw8bit", ["sgd", "adamw"]), None);
        let fields = ["hidden_act", "intermediate_sze", "vocab_size"];
        assert_eq!(misspelt("intermediate_size", fields), Some("intermediate_sze"));
        assert_eq!(misspelt("hidden_size", fields), None);
        assert_eq!(misspelt(&"name".repeat(100), fields), None);
    }

    #[test]
    fn a_slip_of_the_hand_changes_no_number() {
        let families = ["llama", "qwen2", "qwen3", "gemma2", "gpt_neox"];
        assert_eq!(misspelt_name("llaam", families), Some("llama"));
        assert_eq!(misspelt_name("qewn3", families), Some("qwen3"));
        assert_eq!(misspelt_name("gpt-neox", families), Some("gpt_neox"));
        for other in ["qwen4", "qwen2_vl", "gemma", "gpt2", "l4"] {
            assert_eq!(misspelt_name(other, families), None, "{other}");
        }
    }
}
