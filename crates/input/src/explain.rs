//! What serde_json says, in the words of this project: the cause without serde's grammar, and the mend.

use crate::locate;
use crate::near::near;
use crate::problem::{Problem, clipped, quoted};
use crate::source::Source;

/// Explains text that is not JSON: the byte where it stops being so, the cause and the mend.
pub(crate) fn syntax(text: &str, at: usize, error: &serde_json::Error) -> (usize, String, &'static str) {
    if error.is_eof() {
        let cause = "the file ends in the middle of a value".to_owned();
        return (at, cause, "it may be cut off: copy or write it again");
    }
    if let Some((at, cause, mend)) = foreign(text, at) {
        return (at, cause, mend);
    }
    let (cause, mend) = match &*without_place(error) {
        "trailing characters" => ("more text after the end of the value", "keep one value in a file"),
        "trailing comma" => ("a comma without a value after it", "remove the comma"),
        "recursion limit exceeded" => {
            ("nested deeper than 128 levels", "no config or ledger is: check that it is the right file")
        }
        "key must be a string" => ("a key without quotes", "put keys into double quotes"),
        "number out of range" => ("a number that is out of range", "numbers go up to 1.8e308"),
        "invalid number" => (
            "a number that JSON does not write so",
            "write digits, none of them a leading zero, as in `0.5`, `-3` or `1e-3`",
        ),
        "control character (\\u0000-\\u001F) found while parsing a string" => {
            ("a raw line break or control character in a string", "write it as an escape such as `\\n`")
        }
        "expected `:`" => NO_COLON,
        "expected `,` or `]`" => {
            ("a list goes on without a comma", "put a comma between two entries, or `]` after the last")
        }
        "expected `,` or `}`" => {
            ("an object goes on without a comma", "put a comma between two entries, or `}` after the last")
        }
        "expected ident" => (
            "a word that JSON does not have",
            "the words are `true`, `false` and `null`; text stands in double quotes",
        ),
        "expected value" => (
            "no value where one belongs",
            "write a number, text in double quotes, a list, an object, `true`, `false` or `null`",
        ),
        "invalid escape" => (
            "an escape that JSON does not have",
            "write a backslash as `\\\\`, a line break as `\\n`, any character as `\\u00e9`",
        ),
        "unexpected end of hex escape"
        | "lone leading surrogate in hex escape"
        | "invalid unicode code point" => (
            "an escape `\\u…` that is half a character",
            "write both halves, as in `\\ud83d\\ude00`, or the character itself",
        ),
        said => return (at, format!("not JSON: {said}"), "check the file with `python -m json.tool`"),
    };
    (at, cause.to_owned(), mend)
}

const NO_COLON: (&str, &str) = ("a key without a colon after it", "put `:` between the key and its value");

/// Words of Python and JavaScript that people and their programs leave in JSON.
fn foreign(text: &str, at: usize) -> Option<(usize, String, &'static str)> {
    const NO_NUMBER: &str = "JSON has no such number: write a number, or leave the field out (Python: \
                             `json.dump(…, allow_nan=False)` finds where it comes from)";
    let words = [
        ("-Infinity", NO_NUMBER),
        ("Infinity", NO_NUMBER),
        ("-NaN", NO_NUMBER),
        ("NaN", NO_NUMBER),
        ("nan", NO_NUMBER),
        ("inf", NO_NUMBER),
        ("True", "write `true`"),
        ("False", "write `false`"),
        ("None", "write `null`"),
        ("//", "JSON has no comments: remove it"),
        ("/*", "JSON has no comments: remove it"),
        ("#", "JSON has no comments: remove it"),
        ("'", "JSON takes double quotes"),
    ];
    // serde_json may stop one byte into the word, after a minus or a first letter that could have been `null`
    for from in [at.saturating_sub(1), at] {
        let rest = text.get(from..).unwrap_or_default();
        if let Some((word, mend)) = words.iter().find(|(word, _)| rest.starts_with(word)) {
            return Some((from, format!("{} is not JSON", quoted(word)), mend));
        }
    }
    None
}

/// Explains a value that is JSON but not what was asked for.
pub(crate) fn data(source: &Source, pointer: &str, error: &serde_json::Error) -> Problem {
    let said = without_place(error);
    if let Some(name) = said.strip_prefix("duplicate field ").map(unquote) {
        return duplicate(source, pointer, name);
    }
    if let Some(rest) = said.strip_prefix("missing field ") {
        let mend = format!("add {}", quoted(unquote(rest)));
        return source.problem_at(pointer, format!("{} is missing", quoted(unquote(rest)))).mend(mend);
    }
    for kind in ["field", "variant"] {
        // the word is the file's and may hold anything; what is known is ours and comes last
        let unknown = said.strip_prefix(&format!("unknown {kind} "));
        let ends = ["`, expected ", "`, there are no "];
        let unknown = unknown.and_then(|rest| ends.iter().find_map(|end| rest.rsplit_once(end)));
        if let Some((word, known)) = unknown {
            return unknown_word(source, pointer, kind, word.strip_prefix('`').unwrap_or(word), known);
        }
    }
    let kinds = ["invalid type: ", "invalid value: "];
    let wrong = kinds.iter().find_map(|kind| said.strip_prefix(kind));
    match wrong.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, expected)) => wrong_type(source, pointer, found, expected),
        None => source.problem_at(pointer, said).mend("write a value of the kind that belongs here"),
    }
}

/// What is wrong with a key that has no colon after it: that, before anything that the key says.
fn without_colon(source: &Source, key: usize, pointer: &str) -> Option<Problem> {
    let at = locate::missing_colon(source.text(), key)?;
    let (cause, mend) = NO_COLON;
    Some(source.problem(cause).at(source.place_at(at, pointer)).mend(mend))
}

fn duplicate(source: &Source, pointer: &str, name: &str) -> Problem {
    let mut whole = pointer.to_owned();
    locate::push_word(&mut whole, name);
    let places = locate::keys(source.text(), pointer, name);
    let cause = format!("the key {} appears twice", quoted(name));
    if let Some(problem) = places.get(1).and_then(|second| without_colon(source, *second, &whole)) {
        return problem;
    }
    match places.as_slice() {
        [first, second, ..] => {
            let (line, column) = locate::line_column(source.text().as_bytes(), *first);
            let problem = source.problem(format!("{cause} (first in line {line}, column {column})"));
            problem.at(source.place_at(*second, &whole))
        }
        _ => source.problem_at(pointer, cause),
    }
    .mend("keep one of the two")
}

fn unknown_word(source: &Source, pointer: &str, kind: &str, word: &str, known: &str) -> Problem {
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    let mend = match near(word, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None if known.is_empty() => "remove it".to_owned(),
        None => {
            format!("known are {}", known.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(", "))
        }
    };
    if kind == "field" {
        let parent = pointer.rsplit_once('/').map_or("", |(parent, _)| parent);
        let key = locate::keys(source.text(), parent, word).first().copied();
        if let Some(problem) = key.and_then(|key| without_colon(source, key, pointer)) {
            return problem;
        }
        let place = key.map_or_else(|| source.place_of(pointer), |at| source.place_at(at, pointer));
        return source.problem(format!("unknown field {}", quoted(word))).at(place).mend(mend);
    }
    let what = field_of(pointer).unwrap_or_else(|| "value".to_owned());
    source.problem_at(pointer, format!("unknown {what} {}", quoted(word))).mend(mend)
}

fn wrong_type(source: &Source, pointer: &str, found: &str, expected: &str) -> Problem {
    let subject = field_of(pointer).map_or_else(|| "the value".to_owned(), |field| quoted(&field));
    let negative = ["integer `-", "floating point `-"].iter().any(|number| found.starts_with(number));
    let number = expected_in_words(expected);
    let size = found.strip_prefix("floating point ").and_then(|number| unquote(number).parse::<f64>().ok());
    if expected == "u64" && size.is_some_and(|size| size >= 18_446_744_073_709_551_616.0) {
        let problem = source.problem_at(pointer, format!("{subject} does not fit into 64 bits"));
        return problem.mend("write a whole number below 2^64");
    }
    let cause = match found_in_words(found) {
        found if negative && number == COUNT => format!("{subject} is negative ({found})"),
        found => format!("{subject} is {found}, but takes {number}"),
    };
    let mend = match found.strip_prefix("string \"").and_then(|text| text.strip_suffix('"')) {
        Some(text) if number.contains("number") && text.parse::<f64>().is_ok() => {
            "remove the quotes".to_owned()
        }
        Some("true" | "false") if number == BOOLEAN => "remove the quotes".to_owned(),
        _ if negative && number == COUNT => "it is 0 or more".to_owned(),
        _ => format!("write {number}"),
    };
    source.problem_at(pointer, cause).mend(mend)
}

const COUNT: &str = "a whole number of 0 or more";
const BOOLEAN: &str = "`true` or `false`";

fn expected_in_words(expected: &str) -> String {
    match expected {
        "f64" | "f32" => "a number".to_owned(),
        "u8" | "u16" | "u32" | "u64" | "usize" => COUNT.to_owned(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".to_owned(),
        "a boolean" => BOOLEAN.to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "an object".to_owned(),
        "string or map" => "a string".to_owned(),
        _ if expected.starts_with("a nonzero u") => "a whole number of 1 or more".to_owned(),
        _ if expected.starts_with("struct ") => "an object".to_owned(),
        _ if expected.starts_with("enum ") || expected.starts_with("variant ") => "a string".to_owned(),
        _ => expected.to_owned(),
    }
}

fn found_in_words(found: &str) -> String {
    let literal = |kind: &str| found.strip_prefix(kind).map(unquote);
    if let Some(text) = found.strip_prefix("string ") {
        return format!("the string {}", clipped(text));
    }
    if let Some(number) = literal("integer ").or_else(|| literal("floating point ")) {
        return number.to_owned();
    }
    if let Some(boolean) = literal("boolean ") {
        return quoted(boolean);
    }
    match found {
        "map" => "an object".to_owned(),
        "sequence" => "a list".to_owned(),
        "null" | "unit value" => "`null`".to_owned(),
        _ => found.to_owned(),
    }
}

/// The name of the field that a pointer ends in, if it ends in a name and not in a place of a list.
fn field_of(pointer: &str) -> Option<String> {
    locate::words(pointer).last().filter(|word| word.parse::<usize>().is_err())
}

/// The message without the `at line 3 column 7` that serde_json puts after it.
fn without_place(error: &serde_json::Error) -> String {
    let said = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    said.strip_suffix(&place).unwrap_or(&said).to_owned()
}

/// The word between backticks, of which it may have some itself.
fn unquote(word: &str) -> &str {
    word.strip_prefix('`').and_then(|word| word.strip_suffix('`')).unwrap_or(word)
}
