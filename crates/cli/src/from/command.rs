//! The command line that says what files said.

use super::found::Setting;
use crate::args::Model;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command};
use peakledger_core::printable;

/// What is left out of it: where the options came from.
const ABOUT_FILES: [&str; 3] = ["files", "from_kind", "print_options"];

/// The options that the command line has, each as it is written, with its value if it has one.
pub(super) fn given(matches: &ArgMatches, command: &Command) -> Vec<(String, Option<String>)> {
    let mut given = Vec::new();
    let options = command.get_arguments().filter(|arg| !ABOUT_FILES.contains(&arg.get_id().as_str()));
    for (arg, long) in options.filter_map(|arg| Some((arg, arg.get_long()?))) {
        let id = arg.get_id().as_str();
        let is_known = matches.try_contains_id(id).unwrap_or(false);
        if !is_known || matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        let option = format!("--{long}");
        if matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse) {
            given.push((option, None));
            continue;
        }
        for value in matches.get_raw(id).into_iter().flatten() {
            let value = value.to_string_lossy().into_owned();
            // true or false, whichever word was said for it
            let flag = matches.try_get_one::<bool>(id).ok().flatten().map(bool::to_string);
            given.push((option.clone(), Some(flag.unwrap_or(value))));
        }
    }
    given
}

/// The line: the model, what files said, and what the command line said itself. A config that is nowhere in a file is
/// written into one first.
pub(super) fn line(
    verb: &str,
    model: &Model,
    settings: &[Setting],
    given: &[(String, Option<String>)],
) -> String {
    let mut words = vec!["peakledger".to_owned(), verb.to_owned()];
    let before = match model.config() {
        None => {
            words.push(in_shell(&model.name()));
            String::new()
        }
        Some(config) => {
            words.push("model.json".to_owned());
            format!("cat > model.json <<'END'\n{}\nEND\n", config.text())
        }
    };
    for setting in settings {
        words.extend(written(setting.option, Some(&setting.value)));
    }
    for (option, value) in given {
        words.extend(written(option, value.as_deref()));
    }
    before + &words.join(" ")
}

/// An option as it can be typed: one that may stand without a value takes it after `=` alone.
pub(super) fn written(option: &str, value: Option<&str>) -> Vec<String> {
    match value {
        None | Some("true") => vec![option.to_owned()],
        Some("false") => vec![format!("{option}=false")],
        Some(value) if option == "--hold-outputs" => vec![format!("{option}={value}")],
        Some(value) => vec![option.to_owned(), in_shell(value)],
    }
}

/// A word as a shell takes it; what no terminal is to be given is escaped.
pub(crate) fn in_shell(word: &str) -> String {
    let word = printable(word);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./:=,+@%-".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
