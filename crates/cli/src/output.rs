//! Where answers go: standard output, or a file that is written whole or not at all.

use crate::args::ListArgs;
use peakledger_input::Problem;
use peakledger_report::{Format, Look, Report};
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// What the name of an output says. Decided here alone, as [`Input`](peakledger_input::Input) is for inputs.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// Standard output, `-` on the command line.
    Stdout,
    /// The file at a path.
    File(PathBuf),
}

impl Target {
    pub(crate) fn of(path: PathBuf) -> Target {
        match path.as_os_str() == "-" {
            true => Target::Stdout,
            false => Target::File(path),
        }
    }

    /// Its path, if it is a file.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Target::Stdout => None,
            Target::File(path) => Some(path),
        }
    }
}

/// A plain request: the format, the place, the look.
pub(crate) struct Output {
    pub(crate) format: Format,
    pub(crate) file: Option<PathBuf>,
    pub(crate) force: bool,
    pub(crate) look: Look,
}

impl Output {
    /// With as many entries of long lists as are asked for.
    pub(crate) fn listing(mut self, list: &ListArgs) -> Output {
        self.look.top = list.top();
        self
    }

    /// Writes the report there.
    pub(crate) fn write(&self, report: &dyn Report) -> Result<(), Problem> {
        let write = |out: &mut dyn Write| peakledger_report::write(report, self.format, &self.look, out);
        match &self.file {
            None => to_standard_output(write),
            Some(path) => to_file(path, self.force, write),
        }
    }
}

fn to_standard_output(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Problem> {
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Problem::in_file("standard output", format!("cannot be written: {}", said(&error))))
        }
        _ => Ok(()), // who closes the pipe has read enough
    }
}

/// Writes next to the target and renames, so that no reader ever sees half a file and a failure leaves none.
pub(crate) fn to_file(
    path: &Path,
    force: bool,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Problem> {
    // a link keeps pointing where it points: the file that it leads to is the one to replace
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".peakledger-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // less the umask, as for any new file
    let mut file = builder.tempfile_in(folder).map_err(|error| cannot_write(path, &error))?;
    let mut out = BufWriter::with_capacity(1 << 16, file.as_file_mut());
    write(&mut out).and_then(|()| out.flush()).map_err(|error| cannot_write(path, &error))?;
    drop(out);
    let kept = if force { file.persist(&target) } else { file.persist_noclobber(&target) };
    kept.map(drop).map_err(|kept| cannot_write(path, &kept.error))
}

/// Whether two paths lead to one file, which need not exist yet.
pub(crate) fn same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| {
        let of_new = || {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            Some(fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?.join(path.file_name()?))
        };
        fs::canonicalize(path).ok().or_else(of_new)
    };
    real(one).is_some_and(|one| real(other) == Some(one))
}

/// Refuses a file that must not be written, before any work is done for it. The inputs are the files that are read, not
/// what the user named to have them read.
pub(crate) fn check_target(path: &Path, force: bool, inputs: &[&Path]) -> Result<(), Problem> {
    let name = path.to_string_lossy();
    if inputs.iter().any(|input| same_file(path, input)) {
        let problem = Problem::in_file(name, "the output is one of the inputs");
        return Err(problem.mend("write to another file; inputs are never changed"));
    }
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            Err(Problem::in_file(name, "a directory, not a file").mend("name a file in it"))
        }
        Ok(found) if !found.is_file() => {
            let problem = Problem::in_file(name, "not a regular file (a device, pipe or socket)");
            Err(problem.mend("leave `--output` out and redirect standard output"))
        }
        Ok(_) if !force => {
            Err(Problem::in_file(name, "the file exists").mend("add `--force` to overwrite it"))
        }
        _ => Ok(()),
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Problem {
    let name = path.to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound => {
            Problem::in_file(name, "its folder does not exist").mend("create the folder first")
        }
        io::ErrorKind::PermissionDenied => {
            Problem::in_file(name, "no permission to write here").mend("choose another folder")
        }
        io::ErrorKind::AlreadyExists => {
            Problem::in_file(name, "the file exists").mend("add `--force` to overwrite it")
        }
        io::ErrorKind::StorageFull => Problem::in_file(name, "the disk is full; nothing was written"),
        _ => Problem::in_file(name, format!("cannot be written: {}", said(error))),
    }
}

fn said(error: &io::Error) -> String {
    error.to_string().to_lowercase()
}
