//! Files and standard input, read whole: refused by cause where they cannot be read, recognised where they are
//! something else than text.

use crate::locate;
use crate::problem::{Place, Problem};
use crate::system::in_plain_words;
use peakledger_core::Bytes;
use std::borrow::Cow;
use std::fs::{self, File, Metadata};
use std::io::{self, IsTerminal, Read};
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
    /// Each cause has its own sentence: no such file, a directory, no permission, not a regular file, a terminal, larger
    /// than the limit, changed while being read, empty, not text.
    pub fn open(path: &Path, limit: Limit) -> Result<Source, Problem> {
        let name = path.to_string_lossy().into_owned();
        let bytes = Regular::open(path, &name, limit)?.read()?;
        Source::from_bytes(name, bytes)
    }

    fn standard_input(limit: Limit) -> Result<Source, Problem> {
        let name = Input::Stdin.name();
        let input = io::stdin();
        if input.is_terminal() {
            let cause = "a terminal, so there is nothing to read";
            return Err(Problem::in_file(name, cause).mend("pipe a file into it, or name the file"));
        }
        let mut bytes = Vec::new();
        let most = limit.bytes.get().saturating_add(1);
        input.lock().take(most).read_to_end(&mut bytes).map_err(|error| unreadable(&name, &error))?;
        check_size(&name, bytes.len(), limit)?;
        if bytes.is_empty() {
            let problem = Problem::in_file(name, "nothing came");
            return Err(problem.mend("pipe a file into it, or name the file"));
        }
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

/// A regular file that is no larger than the limit, open, and what was known of it before it was read.
pub(crate) struct Regular<'a> {
    name: &'a str,
    pub(crate) file: File,
    pub(crate) before: Metadata,
}

impl<'a> Regular<'a> {
    pub(crate) fn open(path: &Path, name: &'a str, limit: Limit) -> Result<Regular<'a>, Problem> {
        // looked at before it is opened: to open a FIFO waits for a writer
        check_kind(name, &fs::metadata(path).map_err(|error| cannot_open(path, name, &error))?)?;
        let file = File::open(path).map_err(|error| cannot_open(path, name, &error))?;
        let before = file.metadata().map_err(|error| unreadable(name, &error))?;
        check_kind(name, &before)?;
        check_size(name, usize::try_from(before.len()).unwrap_or(usize::MAX), limit)?;
        Ok(Regular { name, file, before })
    }

    /// Whether the file is still what it was when it was opened, now that so many bytes of it were read.
    pub(crate) fn unchanged(&self, read: usize) -> bool {
        let before = &self.before;
        let same =
            |after: Metadata| after.len() == before.len() && after.modified().ok() == before.modified().ok();
        u64::try_from(read) == Ok(before.len()) && self.file.metadata().is_ok_and(same)
    }

    fn read(mut self) -> Result<Vec<u8>, Problem> {
        let name = self.name;
        let size = usize::try_from(self.before.len()).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(size.saturating_add(1)).is_err() {
            let cause = format!("no memory to read {} at once", Bytes::new(self.before.len()));
            return Err(Problem::in_file(name, cause).mend("close other programs, or use a smaller file"));
        }
        let most = self.before.len().saturating_add(1);
        (&mut self.file).take(most).read_to_end(&mut bytes).map_err(|error| unreadable(name, &error))?;
        if !self.unchanged(bytes.len()) {
            let problem = Problem::in_file(name, "the file changed while it was being read");
            return Err(problem.mend("wait until it is written, then try again"));
        }
        Ok(bytes)
    }
}

fn check_kind(name: &str, metadata: &Metadata) -> Result<(), Problem> {
    if metadata.is_dir() {
        return Err(Problem::in_file(name, "a directory, not a file").mend("name a file in it"));
    }
    if !metadata.is_file() {
        let problem = Problem::in_file(name, "not a regular file (a device, pipe or socket)");
        return Err(problem.mend("name a file, or pipe the data in and name it `-`"));
    }
    Ok(())
}

fn check_size(name: &str, size: usize, limit: Limit) -> Result<(), Problem> {
    if u64::try_from(size).is_ok_and(|size| size <= limit.bytes.get()) {
        return Ok(());
    }
    let cause = format!("larger than {} may be ({:.0})", limit.what, limit.bytes);
    Err(Problem::in_file(name, cause).mend("check that this is the right file"))
}

fn cannot_open(path: &Path, name: &str, error: &io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::NotFound if fs::symlink_metadata(path).is_ok() => {
            let problem = Problem::in_file(name, "a symbolic link to a file that does not exist");
            problem.mend("mend the link, or name the file itself")
        }
        io::ErrorKind::NotFound => Problem::in_file(name, "no such file")
            .mend("check the path; it is relative to the current folder"),
        io::ErrorKind::PermissionDenied => {
            Problem::in_file(name, "no permission to read it").mend("change the file's mode, or copy it")
        }
        io::ErrorKind::NotADirectory => {
            let problem = Problem::in_file(name, "no such file: a part of its path is a file, not a folder");
            problem.mend("check the path; it is relative to the current folder")
        }
        _ => unreadable(name, error),
    }
}

fn unreadable(name: &str, error: &io::Error) -> Problem {
    let (cause, mend) = in_plain_words(error);
    Problem::in_file(name, format!("cannot be read: {cause}")).mend(mend)
}

/// What a file that is no text of ours is, and what to do about it.
fn recognised(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    let found = match bytes {
        [0x1f, 0x8b, ..] => ("a gzip archive, not JSON", "unpack it first: `gunzip`"),
        [b'P', b'K', 3 | 5, 4 | 6, ..] => {
            ("a zip archive, not JSON", "unpack it first; a `.pt` or `.pth` file is a zip archive of tensors")
        }
        [0x80, 2..=5, ..] => ("a Python pickle, not JSON", "give the JSON file; a pickle is not opened here"),
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

    #[test]
    fn each_failure_of_the_system_has_its_own_sentence() {
        let said = |kind: io::ErrorKind| cannot_open(Path::new("x"), "x", &kind.into()).to_string();
        assert!(said(io::ErrorKind::PermissionDenied).starts_with("x: no permission to read it\n  help: "));
        assert!(said(io::ErrorKind::NotFound).starts_with("x: no such file\n  help: "));
        assert!(
            said(io::ErrorKind::NotADirectory)
                .contains("a part of its path is a file, not a folder\n  help: ")
        );
        let other = said(io::ErrorKind::Other);
        assert!(other.starts_with("x: cannot be read: ") && other.contains("\n  help: "), "{other}");
    }

    #[test]
    fn each_kind_of_path_has_its_own_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("big.json");
        fs::write(&file, "[ ]").unwrap();
        let open = |path: &Path, bytes: u64| {
            let limit = Limit { what: "a test", bytes: Bytes::new(bytes) };
            Source::open(path, limit).map(|s| s.text().to_owned()).map_err(|problem| problem.cause)
        };
        assert_eq!(open(&file, 3), Ok("[ ]".into()));
        assert_eq!(open(&file, 2), Err("larger than a test may be (2 B)".into()));
        assert_eq!(open(dir.path(), 9), Err("a directory, not a file".into()));
        assert_eq!(open(&dir.path().join("none"), 9), Err("no such file".into()));
        assert!(open(&file.join("below"), 9).unwrap_err().contains("a part of its path is a file"));
        #[cfg(unix)]
        {
            let link = dir.path().join("link");
            std::os::unix::fs::symlink(dir.path().join("gone"), &link).unwrap();
            assert!(open(&link, 9).unwrap_err().contains("symbolic link"));
            assert!(open(Path::new("/dev/zero"), 9).unwrap_err().contains("not a regular file"));
        }
    }
}
