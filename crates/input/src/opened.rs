//! What a path leads to, open: a regular file, whose size is known before it is read, or a pipe, which passes by once as
//! standard input does. Whatever else there is (a folder, a device, a socket) is refused before it is opened.

use crate::problem::Problem;
use crate::source::Limit;
use crate::system::in_plain_words;
use peakledger_core::Bytes;
use std::fs::{self, File, Metadata};
use std::io::{self, IsTerminal, Read, Stdin};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long a named pipe waits for who writes to it: a shell starts both ends at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is read.
pub(crate) enum Opened<'a> {
    /// A file on a disk.
    Regular(Regular<'a>),
    /// What another program writes: `<(…)` of a shell, `/dev/stdin`, a named pipe.
    Pipe(File),
}

impl<'a> Opened<'a> {
    /// Opens what a path leads to.
    pub(crate) fn at(path: &Path, name: &'a str, limit: Limit) -> Result<Opened<'a>, Problem> {
        let found = fs::metadata(path).map_err(|error| cannot_open(path, name, &error))?;
        match is_pipe(&found) {
            true => Ok(Opened::Pipe(open_pipe(path, name)?)),
            false => Ok(Opened::Regular(Regular::open(path, name, limit)?)),
        }
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
        // looked at before it is opened: to open a device may do something
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

    pub(crate) fn read(mut self) -> Result<Vec<u8>, Problem> {
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

/// Standard input, unless somebody would have to type into it.
pub(crate) fn standard_input(name: &str) -> Result<Stdin, Problem> {
    let input = io::stdin();
    if input.is_terminal() {
        let cause = "a terminal, so there is nothing to read";
        return Err(Problem::in_file(name, cause).mend("pipe a file into it, or name the file"));
    }
    Ok(input)
}

/// The whole of what passes by once.
pub(crate) fn passing(name: &str, input: impl Read, limit: Limit) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    let most = limit.bytes.get().saturating_add(1);
    input.take(most).read_to_end(&mut bytes).map_err(|error| unreadable(name, &error))?;
    check_size(name, bytes.len(), limit)?;
    if bytes.is_empty() {
        return Err(nothing_came(name));
    }
    Ok(bytes)
}

/// Of a pipe that was closed at once.
pub(crate) fn nothing_came(name: &str) -> Problem {
    Problem::in_file(name, "nothing came").mend("pipe a file into it, or name the file")
}

/// Whether a path leads to a pipe.
pub(crate) fn leads_to_pipe(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| is_pipe(&found))
}

#[cfg(unix)]
fn is_pipe(found: &Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&found.file_type())
}

#[cfg(not(unix))]
fn is_pipe(_: &Metadata) -> bool {
    false
}

/// Opens a pipe. A named one waits for its writer, so that is left to a thread, which is given up where nobody comes.
fn open_pipe(path: &Path, name: &str) -> Result<File, Problem> {
    let (tell, told) = mpsc::channel();
    let there = path.to_owned();
    thread::spawn(move || tell.send(File::open(there)));
    match told.recv_timeout(PATIENCE) {
        Ok(opened) => opened.map_err(|error| cannot_open(path, name, &error)),
        Err(_) => Err(Problem::in_file(name, "a pipe that nobody writes to")
            .mend("start the program that writes to it first, or name a file")),
    }
}

/// Whether it is the device in which nothing ever is.
#[cfg(unix)]
fn is_null(found: &Metadata) -> bool {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    found.file_type().is_char_device()
        && fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == found.rdev())
}

#[cfg(not(unix))]
fn is_null(_: &Metadata) -> bool {
    false
}

fn check_kind(name: &str, metadata: &Metadata) -> Result<(), Problem> {
    if metadata.is_dir() {
        return Err(Problem::in_file(name, "a directory, not a file").mend("name a file in it"));
    }
    if is_null(metadata) {
        return Err(Problem::in_file(name, "an empty file").mend("nothing is ever in it: name another file"));
    }
    if !metadata.is_file() {
        let problem = Problem::in_file(name, "neither a file nor a pipe (a device or a socket)");
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

pub(crate) fn unreadable(name: &str, error: &io::Error) -> Problem {
    let (cause, mend) = in_plain_words(error);
    Problem::in_file(name, format!("cannot be read: {cause}")).mend(mend)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;

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
            assert!(open(Path::new("/dev/zero"), 9).unwrap_err().contains("neither a file nor a pipe"));
            assert_eq!(open(Path::new("/dev/null"), 9), Err("an empty file".into()));
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_read_as_far_as_the_limit_and_waits_for_its_writer() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let read = |written: &'static str| {
            let there = pipe.clone();
            let writer = thread::spawn(move || fs::write(there, written));
            let limit = Limit { what: "a test", bytes: Bytes::new(3) };
            let read =
                Source::open(&pipe, limit).map(|s| s.text().to_owned()).map_err(|problem| problem.cause);
            writer.join().unwrap().unwrap();
            read
        };
        assert_eq!(read("[ ]"), Ok("[ ]".into()));
        assert_eq!(read("[  ]"), Err("larger than a test may be (3 B)".into()));
        assert_eq!(read(""), Err("nothing came".into()));
    }
}
