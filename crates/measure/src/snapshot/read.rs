//! The way from a file to a [`Snapshot`].

use super::key::Key;
use super::{Snapshot, Tables};
use crate::pickle::{Fault, Feed, Machine, Salvaged};
use peakledger_input::{Binary, Problem, grouped};

/// How a snapshot is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Keep the sound part of a damaged file; [`Snapshot::lost`] then says why it is a part.
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
        Ok(ended) => Ok((ended.top, ended.after, None, None)),
        Err(fault) if fault.salvage && options.salvage && failed.is_none() => match machine.salvage() {
            Some(Salvaged { top, unfinished }) => Ok((top, 0, Some(fault), unfinished)),
            None => Err(fault),
        },
        Err(fault) => Err(fault),
    };
    let Machine { tables, arena, .. } = machine;
    let (top, after, fault, unfinished) = match ended {
        Ok(ended) => ended,
        Err(fault) => {
            let reading = failed.map(|(kind, _)| file.explain(&kind.into()));
            return Err(Fault { reading, ..*fault }.problem(&name));
        }
    };
    let lost = fault.map(|fault| {
        format!(
            "only a part of the file could be read, up to byte {}: {}",
            grouped(fault.offset),
            fault.cause
        )
    });
    let mut snapshot = tables.assemble(top, lost, &arena).map_err(|wrong| {
        let (cause, mend) = (wrong.cause.clone(), wrong.mend);
        Problem::in_file(&name, cause).mend(mend)
    })?;
    if after > 0 {
        let bytes = grouped(after);
        snapshot.notes.say(format!("{bytes} bytes after the end were ignored"));
    }
    if snapshot.lost.is_none() {
        file.check_unchanged()?;
    }
    if unfinished.and_then(Key::of) == Some(Key::DeviceTraces) {
        snapshot.cut_device = u32::try_from(snapshot.traces.len()).ok().and_then(|all| all.checked_sub(1));
    }
    Ok(snapshot)
}
