//! "Did you mean" for models and cards: of the same series or the same class, or nothing.
//!
//! Names that look alike are often other things: a Llama 4 is no Llama 3.1, an RTX 4060 no RTX 4090. So a word is taken for
//! the beginning of names, all of which are said; for a name with more around it; for a size that its series does not have;
//! or for a slip of the hand in which no number changes.

use peakledger_input::misspelt_name;

/// Names of a list that are said at most.
const MOST: usize = 12;

/// What a name that is not known may stand for, as a sentence and a space; empty where nothing is near.
pub(super) fn meant(word: &str, names: &[&str]) -> String {
    let word = plain(word);
    if letters(&word).len() < 2 {
        return String::new();
    }
    let same = names.iter().find(|name| letters(name) == letters(&word));
    let longer = || {
        let of = |is_of: &dyn Fn(&str) -> bool| {
            names.iter().copied().filter(|name| is_of(name)).collect::<Vec<_>>()
        };
        let begun = |name: &str| name.strip_prefix(word.as_str()).is_some_and(|rest| rest.starts_with('-'));
        let within = |name: &str| name.match_indices('-').any(|(at, _)| begun(&name[at + 1..]));
        // the first digits of a number are another number
        let goes_on = |rest: &str| word.ends_with(is_digit) && rest.starts_with(is_digit);
        let cut_off =
            |name: &str| letters(name).strip_prefix(&letters(&word)).is_some_and(|rest| !goes_on(rest));
        let lists = [of(&begun), of(&cut_off), of(&within)];
        lists.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
    };
    if let Some(name) = same {
        return format!("did you mean `{name}`? ");
    }
    match longer().as_slice() {
        [] => {}
        [name] => return format!("did you mean `{name}`? "),
        names => return format!("did you mean one of {}? ", listed(names)),
    }
    match misspelt_name(&word, names.iter().copied()) {
        Some(name) => format!("did you mean `{name}`? "),
        None => String::new(),
    }
}

/// The same of a model, whose name has a series and a size, and which others are tuned from.
pub(super) fn meant_model(word: &str, names: &[&str]) -> String {
    let said = meant(word, names);
    if !said.is_empty() {
        return said;
    }
    let word = plain(word);
    let (series, sizes) = series_and_sizes(&word);
    let is_around = |name: &&str| {
        let (of, parts) = (word.split('-').collect::<Vec<_>>(), name.split('-').collect::<Vec<_>>());
        of.windows(parts.len()).any(|run| run == parts) && series_and_sizes(name).1 == sizes
    };
    if let Some(base) = names.iter().copied().filter(is_around).max_by_key(|name| name.len()) {
        return format!("if its shapes are those of `{base}`, name that; ");
    }
    let others: Vec<&str> = names.iter().copied().filter(|name| series_and_sizes(name).0 == series).collect();
    match others.as_slice() {
        [] => String::new(),
        others => format!("of this series there are {}; ", listed(others)),
    }
}

fn listed(names: &[&str]) -> String {
    let shown: Vec<String> = names.iter().take(MOST).map(|name| format!("`{name}`")).collect();
    let rest = names.len().saturating_sub(MOST);
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    shown.join(", ") + &more
}

/// The parts of a name that are no sizes, and those that are: `8b`, `30b` and `a3b`, `8x7b`, `135m`.
fn series_and_sizes(name: &str) -> (Vec<&str>, Vec<&str>) {
    let is_size = |part: &&str| {
        let digits = part.strip_suffix(['b', 'm']).map(|digits| digits.trim_start_matches('a'));
        digits.is_some_and(|digits| {
            digits.starts_with(is_digit) && digits.chars().all(|c| is_digit(c) || c == '.' || c == 'x')
        })
    };
    name.split('-').partition(|part| !is_size(part))
}

fn is_digit(c: char) -> bool {
    c.is_ascii_digit()
}

fn plain(name: &str) -> String {
    name.trim().to_ascii_lowercase().replace([' ', '_'], "-")
}

/// The letters and digits of a name, in lower case: what tells one name from another.
pub(super) fn letters(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{cards, models};

    fn model(word: &str) -> String {
        meant_model(word, &models().iter().map(|model| model.name.as_str()).collect::<Vec<_>>())
    }

    fn card(word: &str) -> String {
        meant(word, &cards().map(|card| card.name.as_str()).collect::<Vec<_>>())
    }

    #[test]
    fn a_series_is_all_of_its_sizes() {
        let said = model("qwen3");
        assert_eq!(
            said,
            "did you mean one of `qwen3-0.6b`, `qwen3-1.7b`, `qwen3-4b`, `qwen3-8b`, `qwen3-14b`, `qwen3-32b`, \
             `qwen3-30b-a3b`, `qwen3-235b-a22b`? "
        );
        assert!(model("qwen").ends_with(" more? "), "a long list is cut");
        assert_eq!(model("mistral-7b"), "did you mean one of `mistral-7b-v0.1`, `mistral-7b-v0.3`? ");
        assert_eq!(
            model("qwen3-9b"),
            said.replace("did you mean one of", "of this series there are").replace('?', ";")
        );
    }

    #[test]
    fn a_name_is_written_in_many_ways() {
        for word in
            ["Llama3.1-8B", "llama-3-1-8b", "llama_3.1_8b", "llama-3.1-8", "lama-3.1-8b", "lllama-3.1-8b"]
        {
            assert_eq!(model(word), "did you mean `llama-3.1-8b`? ", "{word}");
        }
        for word in ["meta-llama-3.1-8b", "llama-3.1-8b-instruct-mine", "hermes-3-llama-3.1-8b"] {
            assert_eq!(model(word), "if its shapes are those of `llama-3.1-8b`, name that; ", "{word}");
        }
        assert_eq!(model("deepseek-r1-0528-qwen3-8b"), "if its shapes are those of `qwen3-8b`, name that; ");
    }

    #[test]
    fn another_generation_is_another_model() {
        for word in
            ["llama-4", "llama-4-scout", "qwen3.5-9b", "gpt-oss-20b", "gemma-4-1b", "qwen4-8b", "bert", "x"]
        {
            assert_eq!(model(word), "", "{word}");
        }
    }

    #[test]
    fn another_class_is_another_card() {
        for (word, said) in [
            ("rtx 4060", "did you mean `rtx-4060-ti-16gb`? "),
            ("4060", "did you mean `rtx-4060-ti-16gb`? "),
            ("gtx 4090", "did you mean `rtx-4090`? "),
            ("a100-80bg", "did you mean `a100-80gb`? "),
            ("h100-80", "did you mean `h100-80gb`? "),
            ("rtx 4090 ti", ""),
            ("rtx-3050", ""),
            ("p4", ""),
            ("h10", ""),
            ("b300", ""),
            ("mi300x", ""),
        ] {
            assert_eq!(card(word), said, "{word}");
        }
    }
}
