//! The way from a file to a [`Snapshot`].

use super::{Snapshot, Tables};
use crate::pickle::{Fault, Feed, Machine};
use peakledger_input::{Binary, Problem, grouped};

/// How a snapshot is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Keep the sound part of a damaged file; [`Snapshot::whole`] then says that it is a part.
    pub salvage: bool,
}

/// Is told how many bytes were read, now and then.
pub type Progress<'a> = &'a mut dyn FnMut(u64);

/// Reads a snapshot, a pickle of protocol 2 to 5, gzipped or not.
///
/// # Errors
/// The first fault of the file, with its byte and the path to it. Nothing that the file names is ever called.
pub fn read(file: &mut Binary, options: Options, progress: Progress<'_>) -> Result<Snapshot, Problem> {
    let name = file.name().to_owned();
    let mut machine = Machine::new(Feed::new(&mut *file, progress), Tables::new());
    let ended = machine.run();
    let failed = machine.reading_error().map(|error| (error.kind(), error.to_string()));
    let ended = match ended {
        Ok(ended) => Ok((ended.top, ended.after, None)),
        Err(fault) if fault.salvage && options.salvage && failed.is_none() => match machine.salvage() {
            Some(top) => Ok((top, 0, Some(fault))),
            None => Err(fault),
        },
        Err(fault) => Err(fault),
    };
    let Machine { tables, arena, .. } = machine;
    let (top, after, lost) = match ended {
        Ok(ended) => ended,
        Err(fault) => {
            let reading = failed.map(|(kind, _)| file.explain(&kind.into()));
            return Err(Fault { reading, ..*fault }.problem(&name));
        }
    };
    let mut snapshot = tables.assemble(top, &arena).map_err(|wrong| {
        let (cause, mend) = (wrong.cause.clone(), wrong.mend);
        Problem::in_file(&name, cause).mend(mend)
    })?;
    if after > 0 {
        let bytes = grouped(after);
        snapshot.notes.say(format!("{bytes} bytes after the end were ignored"));
    }
    match lost {
        Some(fault) => {
            snapshot.whole = false;
            let at = grouped(fault.offset);
            let cause = fault.cause;
            snapshot.notes.say(format!("only a part of the file could be read, up to byte {at}: {cause}"));
        }
        None => file.check_unchanged()?,
    }
    Ok(snapshot)
}
