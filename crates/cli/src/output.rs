//! Where answers go: standard output, or a file that is written whole or not at all.

use crate::args::ListArgs;
use crate::extension::Extension;
use crate::question::Listener;
use peakledger_core::document::{Document, LedgerFile};
use peakledger_core::{Bytes, printable};
use peakledger_input::{Input, Problem, in_plain_words};
use peakledger_report::{Format, Look, Report};
use std::fs;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// What the name of an output says. Decided here alone, as [`Input`] is for inputs.
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
    /// Who hears the answer instead, where a program asked.
    pub(crate) listener: Option<Listener>,
}

impl Output {
    /// With as many entries of long lists as are asked for.
    pub(crate) fn listing(mut self, list: &ListArgs) -> Output {
        self.look.top = list.top();
        self
    }

    /// Whether a program asked, and hears the answer.
    pub(crate) fn is_heard(&self) -> bool {
        self.listener.is_some()
    }

    /// Whether people read the answer, and wait for it.
    pub(crate) fn is_for_people(&self) -> bool {
        self.format == Format::Table && self.listener.is_none()
    }

    /// Lets go of what an answer was made of. The binary ends, so its million pieces need no freeing; a program goes on.
    pub(crate) fn let_go<T>(&self, of: T) {
        match self.listener {
            Some(_) => drop(of),
            None => std::mem::forget(of),
        }
    }

    /// With the timeline drawn, if that is asked for.
    pub(crate) fn plotting(mut self, plot: bool) -> Output {
        self.look.plot = plot;
        self
    }

    /// Writes the report there.
    pub(crate) fn write(&self, report: &dyn Report) -> Result<(), Problem> {
        if let Some(listener) = &self.listener {
            let heard = listener.borrow_mut().hear(report);
            return heard
                .map_err(|error| Problem::anywhere(format!("the answer cannot be written: {error}")));
        }
        let write = |out: &mut dyn Write| peakledger_report::write(report, self.format, &self.look, out);
        match &self.file {
            None => to_standard_output(write),
            Some(path) => {
                to_file(path, self.force, write)?;
                self.confirm(path);
                Ok(())
            }
        }
    }

    /// Saves a ledger in the document form.
    pub(crate) fn save(&self, path: &Path, file: &LedgerFile) -> Result<(), Problem> {
        to_file(path, self.force, |out| write_ledger(file, out))?;
        self.confirm(path);
        Ok(())
    }

    /// Tells who sits at a terminal what was written.
    fn confirm(&self, path: &Path) {
        if self.listener.is_some() || !io::stderr().is_terminal() {
            return;
        }
        let size =
            fs::metadata(path).map(|found| format!(" ({})", Bytes::new(found.len()))).unwrap_or_default();
        // nobody is left to tell where standard error is closed
        let _closed = writeln!(io::stderr(), "wrote {}{size}", printable(&path.to_string_lossy()));
    }
}

fn to_standard_output(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Problem> {
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let (cause, mend) = in_plain_words(&error);
            Err(Problem::in_file("standard output", format!("cannot be written: {cause}")).mend(mend))
        }
        _ => Ok(()), // who closes the pipe has read enough
    }
}

/// The file of `--save`, which is neither an input nor the file of `--output`.
pub(crate) fn saved<'a>(
    save: Option<&'a Target>,
    output: &Output,
    inputs: &[&Input],
) -> Result<Option<&'a Path>, Problem> {
    let path = match save {
        None => return Ok(None),
        Some(Target::File(path)) => path,
        Some(Target::Stdout) => {
            let problem = Problem::in_option("--save", "standard output has the answer already");
            return Err(problem.mend("name a file"));
        }
    };
    if output.file.as_deref().is_some_and(|file| same_file(file, path)) {
        let problem = Problem::in_file(path.to_string_lossy(), "named by both `--output` and `--save`");
        return Err(problem.mend("name a file of its own for each"));
    }
    check_target("--save", path, output.force, inputs)?;
    Extension::of(path).check_ledger()?;
    Ok(Some(path))
}

/// Writes a ledger in the document form.
pub(crate) fn write_ledger(file: &LedgerFile, out: &mut dyn Write) -> io::Result<()> {
    let ops = file.peak_ops.iter().map(Option::as_deref);
    let note = file.note.as_deref().unwrap_or_default();
    let document = Document::from_ledger(&file.ledger)
        .with_note(note)
        .with_incomplete(file.incomplete.as_deref())
        .with_peak_ops(ops);
    serde_json::to_writer(&mut *out, &document)?;
    out.write_all(b"\n")
}

/// Writes next to the target and renames, so that no reader ever sees half a file and a failure leaves none.
pub(crate) fn to_file(
    path: &Path,
    force: bool,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Problem> {
    let target = resolved(path);
    let folder = folder_of(&target);
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

/// Where a path leads: a link keeps pointing where it points, and the file that it leads to is the one to write, be it
/// there yet or not.
fn resolved(path: &Path) -> PathBuf {
    /// As many as Linux follows.
    const MOST_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        if let Ok(real) = fs::canonicalize(&path) {
            return real;
        }
        match fs::read_link(&path) {
            Ok(target) => path = folder_of(&path).join(target), // an absolute target stands alone
            Err(_) => break,
        }
    }
    path
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether two paths lead to one file, which need not exist yet.
pub(crate) fn same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| {
        let path = resolved(path);
        Some(fs::canonicalize(folder_of(&path)).ok()?.join(path.file_name()?))
    };
    real(one).is_some_and(|one| real(other) == Some(one))
}

/// Whether standard input is redirected from the file at a path.
#[cfg(unix)]
fn is_standard_input(path: &Path) -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    let input = io::stdin().as_fd().try_clone_to_owned().ok().map(fs::File::from);
    let input = input.and_then(|file| file.metadata().ok());
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    input
        .filter(fs::Metadata::is_file)
        .is_some_and(|input| fs::metadata(path).is_ok_and(|found| id(found) == id(input)))
}

#[cfg(not(unix))]
fn is_standard_input(_: &Path) -> bool {
    false // it cannot be told
}

/// Refuses a file that must not be written, before any work is done for it. The inputs are the files that are read, not
/// what the user named to have them read; the option is the one that names the output.
pub(crate) fn check_target(option: &str, path: &Path, force: bool, inputs: &[&Input]) -> Result<(), Problem> {
    let name = path.to_string_lossy();
    let is_output = |input: &&Input| match input {
        Input::Stdin => is_standard_input(path),
        Input::File(input) => same_file(path, input),
    };
    if inputs.iter().any(is_output) {
        let problem = Problem::in_file(name, "the output is one of the inputs");
        return Err(problem.mend("write to another file; inputs are never changed"));
    }
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            Err(Problem::in_file(name, "a directory, not a file").mend("name a file in it"))
        }
        Ok(found) if !found.is_file() => {
            let problem = Problem::in_file(name, "not a regular file (a device, pipe or socket)");
            Err(problem.mend(match option {
                "--output" => "leave `--output` out and redirect standard output".to_owned(),
                option => format!("name a file on a disk after `{option}`"),
            }))
        }
        Ok(_) if !force => {
            Err(Problem::in_file(name, "the file exists").mend("add `--force` to overwrite it"))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot_write(path, &error)),
        Err(_) if name.ends_with(['/', std::path::MAIN_SEPARATOR]) => {
            Err(Problem::in_file(name, "the name of a folder, not of a file").mend("name a file in it"))
        }
        _ => Ok(()),
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Problem {
    let name = path.to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound if folder_of(&resolved(path)).is_dir() => {
            Problem::in_file(name, "no file can be made in its folder").mend("choose another folder")
        }
        io::ErrorKind::NotFound => {
            Problem::in_file(name, "its folder does not exist").mend("create the folder first")
        }
        io::ErrorKind::PermissionDenied => {
            Problem::in_file(name, "no permission to write here").mend("choose another folder")
        }
        io::ErrorKind::AlreadyExists => {
            Problem::in_file(name, "the file exists").mend("add `--force` to overwrite it")
        }
        _ => {
            let (cause, mend) = in_plain_words(error);
            Problem::in_file(name, format!("nothing was written: {cause}")).mend(mend)
        }
    }
}
