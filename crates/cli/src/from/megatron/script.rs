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
            || comment_cut(line).split_whitespace().any(is_option) && !line.contains(": ")
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

/// An option where it stands.
struct Said {
    name: String,
    values: Vec<String>,
    line: usize,
    /// The line of the condition that it hangs on, its own or that of a variable that is its value.
    condition: Option<usize>,
}

/// Its `--key value` pairs. Of several values the words are joined; a key without one is true; of a key that is there several
/// times the last holds, as in argparse.
pub(in crate::from) fn fields(source: Source) -> Fields {
    let said = options(source.text());
    let valued: Vec<_> = said.into_iter().map(|said| (said.name, value(&said.values), said.line)).collect();
    Fields::of(source, valued)
}

fn value(values: &[String]) -> Value {
    if values.is_empty() { Value::Bool(true) } else { Value::String(values.join(" ")) }
}

/// An option that hangs on a condition, which nobody evaluates.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Conditional {
    pub(super) name: String,
    /// The line of the condition.
    pub(super) line: usize,
    /// What else it may be: another value elsewhere in the script.
    pub(super) other: Option<String>,
}

/// The options that a condition decides: those that stand within one, unless the same stands outside of all.
pub(super) fn conditionals(text: &str) -> Vec<Conditional> {
    let said = options(text);
    let mut by_name: BTreeMap<&str, Vec<&Said>> = BTreeMap::new();
    said.iter().for_each(|it| by_name.entry(&it.name).or_default().push(it));
    let mut by_name: Vec<(&str, Vec<&Said>)> = by_name.into_iter().collect();
    by_name.sort_by_key(|(_, places)| places.first().map(|first| first.line));
    let mut found = Vec::new();
    for (name, places) in by_name {
        let Some((last, before)) = places.split_last() else { continue };
        let Some(line) = places.iter().rev().find_map(|place| place.condition) else { continue };
        let other = before.iter().rev().find(|place| place.values != last.values);
        // what stands after all conditions holds whatever they say
        if last.condition.is_none() || other.is_none() && places.iter().any(|place| place.condition.is_none())
        {
            continue;
        }
        let other = other.map(|place| place.values.join(" "));
        found.push(Conditional { name: name.to_owned(), line, other });
    }
    found
}

fn options(text: &str) -> Vec<Said> {
    let variables = variables(text);
    let mut found: Vec<Said> = Vec::new();
    let mut takes = false;
    for Word { line, text: raw, condition } in words_of(text) {
        let word = raw.trim_matches(['"', '\'', '(', ')', ';']);
        let option =
            word.strip_prefix("--").filter(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()));
        match option {
            Some(name) => {
                let (name, value) =
                    name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
                takes = value.is_none();
                found.push(Said { name: name.to_owned(), values: Vec::new(), line, condition });
                if let (Some(value), Some(said)) = (value, found.last_mut()) {
                    said.take(value, &variables);
                }
            }
            // the end of a list, the program, other commands, and lists that are put in here
            None if is_end(word) => takes = false,
            None if takes => {
                if let Some(said) = found.last_mut() {
                    said.take(word, &variables);
                }
            }
            None => {}
        }
        takes &= !closes(raw);
    }
    found
}

impl Said {
    /// Takes a word as a value.
    fn take(&mut self, word: &str, variables: &BTreeMap<&str, Variable<'_>>) {
        let name = word.strip_prefix('$').map(|name| name.trim_start_matches('{').trim_end_matches('}'));
        let variable = name.and_then(|name| variables.get(name));
        match variable.and_then(|variable| variable.value.zip(Some(variable.condition))) {
            Some((value, condition)) => {
                self.values.push(value.to_owned());
                self.condition = self.condition.or(condition);
            }
            None => self.values.push(word.to_owned()),
        }
    }
}

/// A word of a script.
struct Word<'a> {
    line: usize,
    text: &'a str,
    /// The line of the innermost condition that it hangs on.
    condition: Option<usize>,
}

/// The words of each line that is no comment.
fn words_of(text: &str) -> Vec<Word<'_>> {
    let mut found = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut continues = false;
    for (at, line) in text.lines().enumerate().map(|(at, line)| (at + 1, comment_cut(line).trim_end())) {
        let words = line.trim_end_matches('\\').split_whitespace();
        // a test that the rest of its line hangs on: `[ -n "$X" ] && ARGS="…"`
        let trimmed = line.trim_start();
        let hangs = !continues
            && (trimmed.starts_with("[ ") || trimmed.starts_with("[[ ") || trimmed.starts_with("test "))
            && (line.contains("&&") || line.contains("||"));
        let mut is_command = !continues;
        for word in words {
            let bare = word.trim_end_matches(';');
            if is_command && matches!(bare, "if" | "case") {
                open.push(at);
            }
            if is_command && matches!(bare, "fi" | "esac") {
                open.pop();
            }
            let condition = open.last().copied().or(hangs.then_some(at));
            found.push(Word { line: at, text: given(word), condition });
            is_command = word.ends_with(';') || matches!(bare, "then" | "else" | "do" | "{" | "&&" | "||");
        }
        continues = line.ends_with('\\');
    }
    found
}

/// What a variable is given, where that begins with an option: `ARGS="--bf16` of `ARGS="--bf16 --swiglu"`.
fn given(word: &str) -> &str {
    let value = word.split_once('=').filter(|_| is_assignment(word)).map(|(_, value)| value);
    value.filter(|value| value.trim_start_matches(['"', '\'', '(']).starts_with("--")).unwrap_or(word)
}

/// Whether a word ends what was opened before it: a string or a list.
fn closes(word: &str) -> bool {
    let count = |c: char| word.matches(c).count();
    let is_odd = |c: char| count(c) % 2 == 1;
    is_odd('"') && !word.starts_with('"')
        || is_odd('\'') && !word.starts_with('\'')
        || count(')') > count('(')
        || word.ends_with(';')
}

/// What is no value of the option before it.
fn is_end(word: &str) -> bool {
    let is_program = word.ends_with(".py") || word == "python" || word == "python3";
    let is_shells = matches!(
        word,
        "if" | "then" | "else" | "elif" | "fi" | "case" | "esac" | "for" | "while" | "do" | "done" | "export"
    );
    word.is_empty()
        || is_list(word)
        || is_assignment(word)
        || is_program
        || is_shells
        || word.contains(['|', '&', '>', '<'])
}

/// `${GPT_ARGS[@]}`
fn is_list(word: &str) -> bool {
    word.starts_with('$') && word.contains("[@]") || word.starts_with("$@")
}

/// `NAME=…`
fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| is_name(name.trim_end_matches('+')))
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// What a script gives a variable.
struct Variable<'a> {
    /// Where it does so once and in plain words.
    value: Option<&'a str>,
    /// The line of the condition that it does so within.
    condition: Option<usize>,
}

/// What the script gives its variables.
fn variables(text: &str) -> BTreeMap<&str, Variable<'_>> {
    let conditions: BTreeMap<usize, Option<usize>> =
        words_of(text).into_iter().map(|word| (word.line, word.condition)).collect();
    let mut variables: BTreeMap<&str, Variable<'_>> = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let line = comment_cut(line).trim();
        let line = line.strip_prefix("export ").unwrap_or(line);
        let Some((name, value)) = line.split_once('=').filter(|(name, _)| is_name(name)) else { continue };
        let value = value.trim_matches(['"', '\'', ';']);
        let is_plain = !value.is_empty()
            && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte));
        let condition = conditions.get(&(at + 1)).copied().flatten();
        let variable = Variable { value: is_plain.then_some(value), condition };
        variables.entry(name).and_modify(|known| known.value = None).or_insert(variable);
    }
    variables
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
    fn words_of_the_shell_are_no_values() {
        let text = "ARGS=\"--seq-length 4096\"\nif true; then\n  ARGS=\"$ARGS --micro-batch-size 4\"\nfi\nfor x in 1; do\n  \
                    ARGS+=(--bf16)\ndone\nMORE=(\n  \"--fp8-format hybrid\"\n  --moe-layer-freq ([0]*3+[1]*58)\n)\n";
        assert_eq!(
            read(text),
            r#"{"bf16":true,"fp8-format":"hybrid","micro-batch-size":"4","moe-layer-freq":"[0]*3+[1]*58","seq-length":"4096"}"#
        );
    }

    #[test]
    fn what_hangs_on_a_condition() {
        let found = |text: &str| {
            let said = conditionals(text).into_iter().map(|said| {
                let other = said.other.map(|other| format!(" or {other}")).unwrap_or_default();
                format!("{}:{}{other}", said.line, said.name)
            });
            said.collect::<Vec<_>>().join(" ")
        };
        let text = "A=\"--bf16 --swiglu\"\nif [ $R -eq 1 ]; then\n  A=\"$A --recompute-num-layers 1\"\nfi\n";
        assert_eq!(found(text), "2:recompute-num-layers");
        let text = "if [ $O == adam ]; then\n A=\"--optimizer adam\"\nelse\n A=\"--optimizer sgd\"\nfi\nrun --bf16\n";
        assert_eq!(found(text), "1:optimizer or adam");
        // the same whatever is true, and what comes after all
        assert_eq!(found("A=--bf16\nif x; then\n A=--bf16\nfi\n"), "");
        assert_eq!(found("if x; then\n A=\"--lr 1\"\nfi\nrun --lr 2\n"), "");
        assert_eq!(found("[[ -n $X ]] && A=--bf16\ncd x && run --swiglu\n"), "1:bf16");
        assert_eq!(found("case $X in\n a) A=--bf16 ;;\nesac\nrun --swiglu\n"), "1:bf16");
        assert_eq!(
            found("if x; then\n TP=2\nfi\nrun --tensor-model-parallel-size $TP\n"),
            "1:tensor-model-parallel-size"
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
