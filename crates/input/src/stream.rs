//! The quick way through a long list of states: the file passes through small blocks, read by as many threads as there
//! are processors, and only the ledger itself is kept.
//!
//! This way knows no errors. Whatever is out of order makes it give up, and the careful way reads the file again to say
//! what is wrong and where. A block is cut where a state seems to begin; the guess needs no proof, because blocks that
//! each hold whole states make a whole list together, and any other cut makes this way give up.

use crate::opened::Regular;
use crate::record;
use crate::source::LEDGER_LIMIT;
use peakledger_core::State;
use peakledger_core::document::{LedgerFile, SeedForm, StateRecord};
use std::fs::File;
use std::io::Read;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// How much is read at once.
const BLOCK: usize = 1 << 18;
/// More threads than this wait for the file and not for each other.
const MOST_THREADS: usize = 8;

/// Reads a file in the seed's form, if all is well with it.
pub(crate) fn read_states(path: &Path) -> Option<LedgerFile> {
    let regular = Regular::open(path, "", LEDGER_LIMIT).ok()?;
    let form = SeedForm::new().ok()?;
    let feeder = Mutex::new(Feeder::new(&regular.file)?);
    let work = || blocks_of(&feeder, &form);

    let size = regular.file.metadata().ok()?.len();
    let blocks = usize::try_from(size).ok()? / BLOCK;
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let helpers = processors.min(MOST_THREADS).min(blocks).saturating_sub(1);
    let mut parts = thread::scope(|scope| {
        let helpers: Vec<_> = (0..helpers).map(|_| scope.spawn(work)).collect();
        let mut parts = work()?;
        for helper in helpers {
            parts.extend(helper.join().ok()??);
        }
        Some(parts)
    })?;

    let feeder = feeder.into_inner().ok()?;
    if !feeder.closed || !regular.unchanged(feeder.read) {
        return None;
    }
    parts.sort_unstable_by_key(|(index, _)| *index);
    let mut states = Vec::with_capacity(parts.iter().map(|(_, part)| part.len()).sum());
    parts.into_iter().for_each(|(_, part)| states.extend(part));
    form.ledger(states).ok()
}

/// What one thread reads: blocks by their place in the file.
fn blocks_of(feeder: &Mutex<Feeder<'_>>, form: &SeedForm) -> Option<Vec<(usize, Vec<State>)>> {
    let mut parts = Vec::new();
    let mut block = Vec::new();
    loop {
        let next = feeder.lock().unwrap_or_else(PoisonError::into_inner).next(&mut block);
        match next {
            Next::Block(index) => parts.push((index, states(std::str::from_utf8(&block).ok()?, form)?)),
            Next::End => return Some(parts),
            Next::GiveUp => return None,
        }
    }
}

/// The states of a block: one after the other, with commas between them.
fn states(block: &str, form: &SeedForm) -> Option<Vec<State>> {
    let mut states = Vec::new();
    let mut rest = block;
    loop {
        let (record, length) = record::usual(rest).or_else(|| careful(rest))?;
        if states.is_empty() {
            states.reserve(block.len() / length); // the others are about as long
        }
        states.push(form.state(states.len(), &record).ok()?);
        rest = rest.get(length..)?.trim_ascii_start();
        if rest.is_empty() {
            return Some(states);
        }
        rest = rest.strip_prefix(',')?;
    }
}

/// The state at the start of the text and the bytes that it takes.
fn careful(text: &str) -> Option<(StateRecord<'_>, usize)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    let record = values.next()?.ok()?;
    Some((record, values.byte_offset()))
}

/// Cuts the file into blocks, one after another.
struct Feeder<'a> {
    file: &'a File,
    /// What was read and not yet given out.
    kept: Vec<u8>,
    /// How a state begins in this file: `{"name"`, mostly.
    opening: Vec<u8>,
    /// How many bytes were read in all.
    read: usize,
    blocks: usize,
    /// Whether the list was closed and nothing came after it.
    closed: bool,
    failed: bool,
}

enum Next {
    Block(usize),
    End,
    GiveUp,
}

impl<'a> Feeder<'a> {
    /// Reads the first block, and sees in it how states begin.
    fn new(file: &'a File) -> Option<Feeder<'a>> {
        let (kept, opening) = (Vec::new(), Vec::new());
        let mut feeder = Feeder { file, kept, opening, read: 0, blocks: 0, closed: false, failed: false };
        feeder.fill()?;
        let list = feeder.kept.trim_ascii_start().strip_prefix(b"[")?.trim_ascii_start();
        let key = list.strip_prefix(b"{")?.trim_ascii_start().strip_prefix(b"\"")?;
        let key = key.get(..key.iter().position(|b| *b == b'"')?)?;
        feeder.opening = [b"\"", key, b"\""].concat();
        feeder.kept = list.to_vec();
        Some(feeder)
    }

    /// Reads up to a block more, after what is kept. How much it was.
    fn fill(&mut self) -> Option<usize> {
        let most = u64::try_from(BLOCK).ok()?;
        let more = self.file.take(most).read_to_end(&mut self.kept).ok()?;
        self.read += more;
        Some(more)
    }

    fn next(&mut self, block: &mut Vec<u8>) -> Next {
        if self.failed {
            return Next::GiveUp;
        }
        if self.closed {
            return Next::End;
        }
        match self.cut(block) {
            Some(()) => {
                self.blocks += 1;
                Next::Block(self.blocks - 1)
            }
            None => {
                self.failed = true;
                Next::GiveUp
            }
        }
    }

    /// Puts whole states into `block`, as far as one can see, and keeps the rest.
    fn cut(&mut self, block: &mut Vec<u8>) -> Option<()> {
        if self.fill()? == 0 {
            let list = self.kept.trim_ascii_end().strip_suffix(b"]")?;
            block.clear();
            block.extend_from_slice(list);
            self.closed = true;
            return Some(());
        }
        let comma = self.last_comma()?;
        block.clear();
        block.extend_from_slice(self.kept.get(..comma)?);
        self.kept.drain(..=comma);
        Some(())
    }

    /// The last comma between two states: a brace before it, and after it one that begins as the first state did.
    fn last_comma(&self) -> Option<usize> {
        let mut end = self.kept.len();
        loop {
            let comma = self.kept.get(..end)?.iter().rposition(|b| *b == b',')?;
            let (before, after) = self.kept.split_at_checked(comma)?;
            let key = after.get(1..)?.trim_ascii_start().strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
            if key.is_some_and(|key| key.starts_with(&self.opening))
                && before.trim_ascii_end().ends_with(b"}")
            {
                return Some(comma);
            }
            end = comma;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without this, a quick way that always gave up would go unnoticed: the careful one gives the same answers.
    #[test]
    fn the_quick_way_is_taken_through_a_long_list() {
        let state = |i: usize| {
            format!(
                r#"{{"name": "tensor {i}", "category": "activation", "size_mb": {i}.5, "start_phase": "forward", "end_phase": "backward", "device": "gpu", "persistent": false}}"#
            )
        };
        let text = format!("[{}]", (0..30_000).map(state).collect::<Vec<_>>().join(",\n"));
        assert!(text.len() > 8 * BLOCK, "several blocks for several threads");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.json");
        std::fs::write(&path, &text).unwrap();
        let file = read_states(&path).unwrap();
        assert_eq!(file.ledger.states().len(), 30_000);
        std::fs::write(&path, text + "]").unwrap();
        assert!(read_states(&path).is_none(), "it gives up on what is out of order");
    }
}
