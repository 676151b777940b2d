//! What is wrong with the arguments, in the form of every other problem: the option, the cause and the mend.

use crate::other_words;
use crate::parsers::{FREEZE, LORA, OFFLOAD, RECOMPUTE};
use crate::report;
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use peakledger_input::{Place, Problem, misspelt, quoted};
use std::error::Error;
use std::ffi::OsString;

/// Who takes the arguments.
#[derive(Clone, Copy)]
pub(crate) enum Asker<'a> {
    /// The binary itself.
    Binary,
    /// A verb.
    Verb(&'a str),
    /// What takes the options of a step: a candidate, say.
    Step(&'a str),
}

impl Asker<'_> {
    fn name(self) -> String {
        match self {
            Asker::Binary => "`peakledger`".to_owned(),
            Asker::Verb(verb) => format!("`peakledger {verb}`"),
            Asker::Step(who) => who.to_owned(),
        }
    }

    /// Where its options are listed.
    fn list(self) -> String {
        match self {
            Asker::Binary => "`peakledger --help` lists what there is".to_owned(),
            Asker::Verb(verb) => format!("`peakledger {verb} --help` lists what there is"),
            Asker::Step(who) => format!("{who} takes the options of a step"),
        }
    }
}

/// Answers arguments that are none, or a request for help, with an exit code. The verb is the first of the arguments.
pub(crate) fn answer(error: &clap::Error, command: &Command, verb: Option<&OsString>) -> u8 {
    if is_answer(error) {
        let _closed = error.print(); // nobody is left to tell where the stream is closed
    } else {
        report(&problem(error, command, verb));
    }
    if error.use_stderr() { 2 } else { 0 }
}

/// What is wrong with arguments, the first of which is the verb.
pub(crate) fn problem(error: &clap::Error, command: &Command, verb: Option<&OsString>) -> Problem {
    match verb.and_then(|word| command.find_subcommand(word)) {
        Some(verb) => explained(error, verb, Asker::Verb(verb.get_name())),
        None => explained(error, command, Asker::Binary),
    }
}

/// Whether it is what was asked for and no error.
fn is_answer(error: &clap::Error) -> bool {
    let kind = error.kind();
    matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
        || kind == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
}

/// What clap found, in the form and the words of this project.
pub(crate) fn explained(error: &clap::Error, command: &Command, asker: Asker<'_>) -> Problem {
    let texts = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.as_str()],
        Some(ContextValue::Strings(texts)) => texts.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let text = |kind| texts(kind).first().copied().unwrap_or_default();
    let argument = text(ContextKind::InvalidArg);
    let option = bare(argument);
    let value = text(ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::UnknownArgument if !option.starts_with('-') => {
            let cause = format!("{} takes no such argument", asker.name());
            Problem::in_option(clipped(option), cause).mend(asker.list())
        }
        ErrorKind::UnknownArgument => unknown(option, command, asker),
        ErrorKind::InvalidSubcommand => {
            let word = text(ContextKind::InvalidSubcommand);
            let verbs: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            let problem = Problem::in_option(clipped(word), "not a command of `peakledger`");
            problem.mend(match other_words::verb(word) {
                Some(ours) => format!("{ours}; the commands are {}", listed(&verbs)),
                None => choice(word, &verbs),
            })
        }
        ErrorKind::InvalidValue => {
            let known = texts(ContextKind::ValidValue);
            let cause = match value {
                "" => "its value is missing".to_owned(),
                value => format!("{} is none of its values", quoted(value)),
            };
            let meant = other_words::value(option, value);
            Problem::in_option(option, cause).mend(match (option, known.as_slice()) {
                (_, known) if meant.is_some() => with_values(meant.unwrap_or_default(), known),
                ("--lora", _) => LORA.to_owned(),
                ("--recompute", _) => RECOMPUTE.to_owned(),
                ("--offload", _) => OFFLOAD.to_owned(),
                ("--freeze", _) => FREEZE.to_owned(),
                (_, []) => format!("write it as `{}`", plain(argument)),
                (_, known) => choice(value, known),
            })
        }
        ErrorKind::ValueValidation => {
            let problem = error.source().and_then(|why| {
                why.downcast_ref::<Problem>().cloned().or_else(|| {
                    let mend = format!("`--help` says how `{option}` is written");
                    let cause = format!("{} is not understood: {why}", quoted(value));
                    Some(Problem::anywhere(cause).mend(mend))
                })
            });
            let problem = problem.unwrap_or_else(|| Problem::anywhere(format!("{} is none", quoted(value))));
            problem.at(Place::Option(option.to_owned()))
        }
        ErrorKind::MissingRequiredArgument => {
            let missing: Vec<String> =
                texts(ContextKind::InvalidArg).iter().map(|text| format!("`{}`", plain(text))).collect();
            let cause = format!("{} needs {}", asker.name(), missing.join(" and "));
            let values = command.get_positionals().flat_map(|positional| positional.get_possible_values());
            let values: Vec<String> = values.map(|value| format!("`{}`", value.get_name())).collect();
            let usage = match error.get(ContextKind::Usage) {
                Some(ContextValue::StyledStr(usage)) => usage.to_string(),
                _ => String::new(),
            };
            Problem::anywhere(cause).mend(match usage.trim_start_matches("Usage:").trim() {
                _ if !values.is_empty() => format!("choose one of {}", values.join(", ")),
                "" => "add what is missing".to_owned(),
                usage => format!("it is written `{}`", usage.replace(['<', '>'], "")),
            })
        }
        ErrorKind::ArgumentConflict => {
            let others: Vec<String> =
                texts(ContextKind::PriorArg).iter().map(|prior| format!("`{}`", bare(prior))).collect();
            match others.iter().any(|other| *other == format!("`{option}`")) || others.is_empty() {
                true => Problem::in_option(option, "given twice").mend("keep one of the two"),
                false => {
                    let cause = format!("it does not go with {}", others.join(" and "));
                    Problem::in_option(option, cause).mend("keep one of the two")
                }
            }
        }
        ErrorKind::TooManyValues => {
            let cause = format!("it takes no value, and {} is one", quoted(value));
            Problem::in_option(option, cause).mend("leave the value out")
        }
        ErrorKind::InvalidUtf8 => {
            Problem::anywhere("an argument is not UTF-8 text").mend("only names of files may be other bytes")
        }
        _ => {
            let said = error.to_string();
            let first = said.lines().next().unwrap_or_default().trim_start_matches("error: ");
            Problem::anywhere(first).mend(asker.list())
        }
    }
}

/// Whether each part of the word begins one of the name, in order: `grad-accum` is short for `gradient-accumulation-steps`.
fn abbreviates(word: &str, name: &str) -> bool {
    let mut parts = name.split('-');
    word.split(['-', '_']).all(|short| short.len() > 2 && parts.any(|part| part.starts_with(short)))
}

/// An option that nobody has, or not here.
fn unknown(option: &str, command: &Command, asker: Asker<'_>) -> Problem {
    let names: Vec<&str> = command
        .get_arguments()
        .flat_map(|arg| arg.get_long_and_visible_aliases().unwrap_or_default())
        .filter(|name| *name != "help" && *name != "version")
        .collect();
    let cause = format!("{} has no such option", asker.name());
    let word = option.trim_start_matches('-');
    if let Some(mend) = other_words::option(word, |name| names.contains(&name)) {
        return Problem::in_option(clipped(option), cause).mend(mend);
    }
    // the whole of a word and more: `--batch-size` means `--micro-batch-size`, `--seq-length` means `--seq-len`
    let is_part = |part: &str, whole: &str| {
        2 * part.len() >= whole.len() && (whole.starts_with(part) || whole.ends_with(part))
    };
    let longer = || names.iter().copied().filter(|name| is_part(name, word) || is_part(word, name));
    let short_for = || names.iter().copied().filter(|name| abbreviates(word, name));
    let meant = misspelt(word, names.iter().copied())
        .or_else(|| short_for().min_by_key(|name| name.len()))
        .or_else(|| longer().max_by_key(|name| name.len()));
    Problem::in_option(clipped(option), cause).mend(match meant {
        Some(meant) => format!("did you mean `--{meant}`? {}", capital(&asker.list())),
        None => asker.list(),
    })
}

/// What is to be written for a word of another tool, and the words that there are.
fn with_values(meant: String, known: &[&str]) -> String {
    match known {
        [] => meant,
        known => format!("{meant}; its values are {}", listed(known)),
    }
}

fn listed(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// The words that there are, and which of them was meant where one was.
fn choice(word: &str, known: &[&str]) -> String {
    let listed = listed(known);
    // every letter is a slip of the hand away from every other
    match misspelt(word, known.iter().copied()).filter(|_| word.len() > 1) {
        Some(meant) => format!("did you mean `{meant}`? They are {listed}"),
        None => format!("choose one of {listed}"),
    }
}

/// The option alone, of one that is shown with its value.
fn bare(argument: &str) -> &str {
    argument.split([' ', '=', '[']).next().unwrap_or(argument).trim_matches(['<', '>'])
}

/// An argument without the brackets that say that it is one.
fn plain(argument: &str) -> String {
    argument.replace(['<', '>'], "")
}

/// The first letters of a word that may be very long.
fn clipped(word: &str) -> String {
    quoted(word).trim_matches('`').to_owned()
}

fn capital(sentence: &str) -> String {
    match sentence.strip_prefix("a ") {
        Some(rest) => format!("A {rest}"),
        None => sentence.to_owned(),
    }
}
