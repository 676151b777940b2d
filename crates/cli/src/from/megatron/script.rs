//! A launch script's words: `--key value`, whatever else is in it. No shell is run; a variable is what the script gives it in
//! plain digits or letters, if it does so once.

use peakledger_input::{Fields, Source};
use serde_json::Value;
use std::collections::BTreeMap;

/// Whether a text is a list of arguments or a script with some.
pub(in crate::from) fn is_arguments(text: &str) -> bool {
    let is_option = |word: &str| {
        word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
    };
    let mut lines =
        text.lines().map(str::trim_start).filter(|line| !line.starts_with('#') || line.starts_with("#!"));
    lines.any(|line| {
        line.starts_with("#!")
            || is_option(line)
            || line.split_whitespace().any(is_option) && !line.contains(": ")
    })
}

/// The words of each line that is no comment.
fn words_of(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(at, line)| {
        let line = comment_cut(line).trim_end().trim_end_matches('\\');
        line.split_whitespace().map(move |word| (at + 1, word))
    })
}

/// A line up to its comment.
fn comment_cut(line: &str) -> &str {
    match line.char_indices().find(|(at, c)| {
        *c == '#' && line.get(..*at).is_some_and(|before| before.ends_with([' ', '\t']) || before.is_empty())
    }) {
        Some((at, _)) => line.get(..at).unwrap_or(line),
        None => line,
    }
}

/// Its `--key value` pairs. Of several values the words are joined; a key without one is true; of a key that is there several
/// times the last holds, as in argparse.
pub(in crate::from) fn fields(source: Source) -> Fields {
    let text = source.text().to_owned();
    let variables = variables(&text);
    let mut found: Vec<(String, Vec<String>, usize)> = Vec::new();
    let mut takes = false;
    for (line, word) in words_of(&text) {
        let word = word.trim_matches(['"', '\'', '(', ')', ';']);
        let option =
            word.strip_prefix("--").filter(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()));
        match option {
            Some(name) => {
                let (name, value) =
                    name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
                let values = value.map(|value| vec![resolved(value, &variables)]).unwrap_or_default();
                takes = value.is_none();
                found.push((name.to_owned(), values, line));
            }
            // the end of a list, the program, other commands, and lists that are put in here
            None if is_end(word) => takes = false,
            None if takes => {
                if let Some((_, values, _)) = found.last_mut() {
                    values.push(resolved(word, &variables));
                }
            }
            None => {}
        }
    }
    let valued = found.into_iter().map(|(name, values, line)| {
        let value = if values.is_empty() { Value::Bool(true) } else { Value::String(values.join(" ")) };
        (name, value, line)
    });
    Fields::of(source, valued)
}

/// What is no value of the option before it.
fn is_end(word: &str) -> bool {
    let is_program = word.ends_with(".py") || word == "python" || word == "python3";
    word.is_empty()
        || is_list(word)
        || is_assignment(word)
        || is_program
        || word.contains(['|', '&', '>', '<'])
}

/// `${GPT_ARGS[@]}`
fn is_list(word: &str) -> bool {
    word.starts_with('$') && word.contains("[@]") || word.starts_with("$@")
}

/// `NAME=…`
fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| is_name(name))
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// What the script gives its variables, where it does so once and in plain words.
fn variables(text: &str) -> BTreeMap<&str, Option<&str>> {
    let mut variables = BTreeMap::new();
    for line in text.lines() {
        let line = comment_cut(line).trim();
        let line = line.strip_prefix("export ").unwrap_or(line);
        let Some((name, value)) = line.split_once('=').filter(|(name, _)| is_name(name)) else { continue };
        let value = value.trim_matches(['"', '\'', ';']);
        let is_plain = !value.is_empty()
            && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte));
        let value = is_plain.then_some(value);
        variables.entry(name).and_modify(|known: &mut Option<&str>| *known = None).or_insert(value);
    }
    variables
}

/// A word with the variable that it is, if the script says what that is.
fn resolved(word: &str, variables: &BTreeMap<&str, Option<&str>>) -> String {
    let name = word.strip_prefix('$').map(|name| name.trim_start_matches('{').trim_end_matches('}'));
    let value = name.and_then(|name| variables.get(name).copied().flatten());
    value.unwrap_or(word).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        let fields = fields(Source::from_text("run.sh", text));
        Value::Object(fields.root().clone()).to_string()
    }

    #[test]
    fn words_after_an_option_are_its_values() {
        let text = "#!/bin/bash\nTP=2\nPP=2\nPP=4\nARGS=(\n    --tensor-model-parallel-size $TP \\\n    --swiglu # a flag\n    --cp-comm-type p2p a2a\n    --pipeline-model-parallel-size ${PP}\n    --lr 1e-4\n)\ntorchrun --nproc_per_node=8 --nnodes 2 \\\n  pretrain_gpt.py ${ARGS[@]} --bf16 \"${OTHER[@]}\" 2>&1 | tee log\n";
        assert_eq!(
            read(text),
            r#"{"bf16":true,"cp-comm-type":"p2p a2a","lr":"1e-4","nnodes":"2","nproc_per_node":"8","pipeline-model-parallel-size":"${PP}","swiglu":true,"tensor-model-parallel-size":"2"}"#
        );
    }

    #[test]
    fn a_config_is_no_list_of_arguments() {
        assert!(is_arguments("--num-layers 2\n"));
        assert!(is_arguments("python pretrain_gpt.py --num-layers 2"));
        assert!(is_arguments("#!/bin/sh\necho\n"));
        assert!(!is_arguments("run: python --x\nb: 1\n"));
        assert!(!is_arguments("# --x\na: 1\n"));
        assert!(!is_arguments("[training]\nseq_len = 1\n"));
        assert!(!is_arguments("---\na: 1\n"));
    }
}
