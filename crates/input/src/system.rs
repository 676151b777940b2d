//! What the operating system says against a file, in plain words and with a mend.

use std::error::Error;
use std::io::{self, ErrorKind};

/// The cause in words that follow a name ("its name is too long"), and what to do about it.
pub fn in_plain_words(error: &io::Error) -> (String, &'static str) {
    let error = root(error);
    let (cause, mend) = match error.kind() {
        ErrorKind::NotFound => ("it does not exist", "check the path"),
        ErrorKind::PermissionDenied => ("there is no permission", "change its mode, or choose another place"),
        ErrorKind::NotADirectory => ("a part of its path is a file, not a folder", "check the path"),
        ErrorKind::IsADirectory => ("it is a directory, not a file", "name a file in it"),
        ErrorKind::InvalidFilename => ("its name is too long", "use a shorter name"),
        ErrorKind::StorageFull => ("the disk is full", "make room, or choose another disk"),
        ErrorKind::QuotaExceeded => ("your share of the disk is full", "make room, or choose another disk"),
        ErrorKind::ReadOnlyFilesystem => ("the disk is read-only", "choose another place"),
        ErrorKind::FileTooLarge => ("it is larger than the disk takes", "choose another disk"),
        ErrorKind::OutOfMemory => {
            ("there is no memory for it", "close other programs, or use a smaller file")
        }
        _ => match error.raw_os_error() {
            Some(LOOP) => ("its symbolic links lead in a circle", "mend the links, or name the file itself"),
            Some(CLOSED) => ("it is closed", "redirect it to a file or into a pipe"),
            _ => return (format!("the system says: {}", said(error)), "try another file or another folder"),
        },
    };
    (cause.to_owned(), mend)
}

/// ELOOP and EBADF, for which the standard library has no stable word.
const LOOP: i32 = if cfg!(target_os = "linux") { 40 } else { 62 };
const CLOSED: i32 = 9;

/// The system's own error, without what libraries wrap around it: their text may name files that nobody knows.
fn root(error: &io::Error) -> &io::Error {
    let mut inner: Option<&(dyn Error + 'static)> = error.get_ref().map(|inner| inner as _);
    let mut found = error;
    while let Some(error) = inner {
        found = error.downcast_ref().unwrap_or(found);
        inner = error.source();
    }
    found
}

/// `input/output error` of `Input/output error (os error 5)`.
fn said(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_a_clause_with_a_mend_and_names_no_other_file() {
        #[cfg(target_os = "linux")]
        for (code, says) in [
            (2, "does not exist"),
            (5, "the system says: input/output error"),
            (9, "it is closed"),
            (13, "no permission"),
            (20, "a part of its path is a file"),
            (21, "a directory"),
            (27, "larger than the disk takes"),
            (28, "the disk is full"),
            (30, "read-only"),
            (36, "its name is too long"),
            (40, "lead in a circle"),
            (122, "your share of the disk"),
        ] {
            let (cause, mend) = in_plain_words(&io::Error::from_raw_os_error(code));
            assert!(
                cause.contains(says) && !cause.contains("os error") && !mend.is_empty(),
                "{code}: {cause}"
            );
        }
        let long = "x".repeat(300);
        let made = tempfile::Builder::new().prefix(&long).tempfile_in(std::env::temp_dir());
        let (cause, _) = in_plain_words(&made.unwrap_err());
        assert!(!cause.contains("xxx"), "{cause}");
    }
}
