//! Files and standard input, read whole: refused by cause where they cannot be read, recognised where they are
//! something else than text.

use crate::locate;
use crate::opened::{Opened, leads_to_pipe, passing, standard_input};
use crate::problem::{Place, Problem};
use peakledger_core::Bytes;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// How large a file of some kind may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What the file is to be, in a sentence: `a ledger`.
    pub what: &'static str,
    /// The largest size that is read.
    pub bytes: Bytes,
}

/// Ledgers: up to 4 GiB.
pub const LEDGER_LIMIT: Limit = Limit { what: "a ledger", bytes: Bytes::new(4 << 30) };
/// Model configs and options: up to 16 MiB.
pub const CONFIG_LIMIT: Limit = Limit { what: "a config", bytes: Bytes::new(16 << 20) };

/// What an argument of the command line names. Decided here alone, so that no file by the name of `-` is ever mistaken for
/// standard input or the other way round: that file is `./-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Standard input, `-` on the command line.
    Stdin,
    /// The file at a path.
    File(PathBuf),
}

impl Input {
    /// What the argument names.
    pub fn of(argument: impl Into<PathBuf>) -> Input {
        match argument.into() {
            path if path.as_os_str() == "-" => Input::Stdin,
            path => Input::File(path),
        }
    }

    /// What the user calls it.
    pub fn name(&self) -> Cow<'_, str> {
        match self {
            Input::Stdin => Cow::Borrowed("standard input"),
            Input::File(path) => path.to_string_lossy(),
        }
    }

    /// Whether it passes by and cannot be read again: standard input, and a pipe by whatever name.
    pub fn passes_once(&self) -> bool {
        self.path().is_none_or(leads_to_pipe)
    }

    /// Its path, if it is a file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Input::Stdin => None,
            Input::File(path) => Some(path),
        }
    }
}

/// The text of one input, and what the user calls it.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    text: String,
    /// Where the text begins: after a byte order mark, if there is one.
    start: usize,
}

impl Source {
    /// Reads a file or standard input.
    ///
    /// # Errors
    /// As [`open`](Source::open).
    pub fn read(input: &Input, limit: Limit) -> Result<Source, Problem> {
        match input {
            Input::Stdin => Source::standard_input(limit),
            Input::File(path) => Source::open(path, limit),
        }
    }

    /// Reads the file at a path.
    ///
    /// # Errors
    /// Each cause has its own sentence: no such file, a directory, no permission, a device or a socket, a pipe that nobody
    /// writes to, a terminal, larger than the limit, changed while being read, empty, not text.
    pub fn open(path: &Path, limit: Limit) -> Result<Source, Problem> {
        let name = path.to_string_lossy().into_owned();
        let bytes = match Opened::at(path, &name, limit)? {
            Opened::Regular(file) => file.read()?,
            Opened::Pipe(pipe) => passing(&name, pipe, limit)?,
        };
        Source::from_bytes(name, bytes)
    }

    fn standard_input(limit: Limit) -> Result<Source, Problem> {
        let name = Input::Stdin.name();
        let bytes = passing(&name, standard_input(&name)?.lock(), limit)?;
        Source::from_bytes(name, bytes)
    }

    /// A source from bytes that were read elsewhere.
    ///
    /// # Errors
    /// The bytes are empty or not text.
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> Result<Source, Problem> {
        let name = name.into();
        if bytes.is_empty() {
            let problem = Problem::in_file(name, "an empty file");
            return Err(problem.mend("it was not written to its end: write or copy it again"));
        }
        if let Some((cause, mend)) = recognised(&bytes) {
            return Err(Problem::in_file(name, cause).mend(mend));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Source::from_text(name, text)),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let (line, column) = locate::line_column(error.as_bytes(), at);
                let place = Place::Text { line, column, pointer: String::new() };
                let problem = Problem::in_file(name, format!("not UTF-8 text (byte {at})")).at(place);
                Err(problem.mend("save the file as UTF-8"))
            }
        }
    }

    /// A source from text.
    pub fn from_text(name: impl Into<String>, text: impl Into<String>) -> Source {
        let text = text.into();
        let start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        Source { name: name.into(), text, start }
    }

    /// What the user calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text, without a byte order mark.
    pub fn text(&self) -> &str {
        self.text.get(self.start..).unwrap_or_default()
    }

    /// Where the value at a JSON pointer is; of a key that appears several times, the last. The start of the file
    /// where there is no such value.
    pub fn place_of(&self, pointer: &str) -> Place {
        self.place_at(locate::value(self.text(), pointer).unwrap_or(0), pointer)
    }

    /// A problem with the value at a JSON pointer.
    pub fn problem_at(&self, pointer: &str, cause: impl Into<String>) -> Problem {
        self.problem(cause).at(self.place_of(pointer))
    }

    /// A problem with the file as a whole.
    pub fn problem(&self, cause: impl Into<String>) -> Problem {
        Problem::in_file(self.name.clone(), cause)
    }

    pub(crate) fn place_at(&self, offset: usize, pointer: &str) -> Place {
        let (line, column) = locate::line_column(self.text().as_bytes(), offset);
        Place::Text { line, column, pointer: pointer.to_owned() }
    }
}

/// What a file that is no text of ours is, and what to do about it.
fn recognised(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    let found = match bytes {
        [0x1f, 0x8b, ..] => ("a gzip archive, not JSON", "unpack it first: `gunzip`"),
        [b'P', b'K', 3 | 5, 4 | 6, ..] => {
            ("a zip archive, not JSON", "unpack it first; a `.pt` or `.pth` file is a zip archive of tensors")
        }
        [0x80, 2..=5, ..] => (
            "a Python pickle, not JSON",
            "give the JSON file; a memory snapshot, which is a pickle, goes to `peakledger read FILE`",
        ),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => ("UTF-16 text, not UTF-8", "save the file as UTF-8"),
        _ => {
            let text = bytes.trim_ascii_start();
            let starts = |with: &str| {
                text.get(..with.len()).is_some_and(|head| head.eq_ignore_ascii_case(with.as_bytes()))
            };
            if starts("<!doctype") || starts("<html") || starts("<head") {
                ("an HTML page, not JSON", "download the raw file: this is the page that shows it")
            } else if starts("version https://git-lfs.github.com/spec") {
                ("a git-lfs pointer, not the file itself", "fetch the file: `git lfs pull`")
            } else {
                return None;
            }
        }
    };
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(bytes: &[u8]) -> String {
        Source::from_bytes("x.json", bytes.to_vec()).unwrap_err().to_string()
    }

    #[test]
    fn names_what_is_no_json() {
        assert_eq!(
            says(b""),
            "x.json: an empty file\n  help: it was not written to its end: write or copy it again"
        );
        assert!(says(b"\n<!DOCTYPE html><html>").contains("an HTML page"));
        assert!(says(b"version https://git-lfs.github.com/spec/v1\noid").contains("git lfs pull"));
        assert!(says(b"\x80\x04\x95rest").contains("pickle"));
        assert!(says(b"PK\x03\x04rest").contains("zip"));
        assert!(says(b"\x1f\x8b\x08").contains("gzip"));
        assert!(says(b"\xff\xfe[\0").contains("UTF-16"));
        assert!(says(b"[\n  \"\xc3\x28\"]").starts_with("x.json:2:4: not UTF-8 text (byte 5)"));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_text() {
        let source = Source::from_bytes("x", b"\xef\xbb\xbf{}".to_vec()).unwrap();
        assert_eq!(source.text(), "{}");
        assert_eq!(source.place_of(""), Place::Text { line: 1, column: 1, pointer: String::new() });
    }
}
