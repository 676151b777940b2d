//! The columns while they are being filled: what the machine hands finished dicts and lists to.

use super::Annotation;
use super::events::{Events, PoolId, StreamId};
use super::key::Key;
use super::segments::{Block, Segment};
use super::stacks::{FrameId, StackId, Stacks};
use super::texts::{TextId, Texts};
use crate::notes::Notes;
use crate::pickle::{Table, Value, Wrong};
use std::collections::BTreeMap;

/// What happened to a block before, in the legacy form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past {
    pub(crate) size: u64,
    pub(crate) stack: StackId,
}

/// All rows so far.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(super) texts: Texts,
    pub(super) stacks: Stacks,
    pub(super) events: Events,
    pub(super) segments: Vec<Segment>,
    pub(super) blocks: Vec<Block>,
    pub(super) annotations: Vec<Annotation>,
    pub(super) past: Vec<Past>,
    pub(super) streams: Numbers<u64>,
    pub(super) pools: Numbers<(u64, u64)>,
    pub(super) notes: Notes,
    /// The pairs of the dict that is being finished.
    pub(crate) pairs: Vec<(TextId, Value)>,
}

/// Values by the order in which they were met.
#[derive(Debug)]
pub(super) struct Numbers<T> {
    pub(super) values: Vec<T>,
    known: BTreeMap<T, u16>,
    last: Option<(T, u16)>,
}

impl<T: Copy + Ord> Numbers<T> {
    fn new() -> Self {
        Numbers { values: Vec::new(), known: BTreeMap::new(), last: None }
    }

    pub(super) fn of(&mut self, value: T) -> Option<u16> {
        if let Some((last, number)) = self.last
            && last == value
        {
            return Some(number);
        }
        let number = match self.known.get(&value) {
            Some(number) => *number,
            None => {
                let number = u16::try_from(self.values.len()).ok()?;
                self.values.push(value);
                self.known.insert(value, number);
                number
            }
        };
        self.last = Some((value, number));
        Some(number)
    }
}

impl Tables {
    pub(crate) fn new() -> Tables {
        let mut texts = Texts::default();
        for word in Key::words() {
            let _counted = texts.intern(word.as_bytes());
        }
        let mut pools = Numbers::new();
        let _default = pools.of((0, 0)); // pool 0 is the default one
        Tables {
            texts,
            stacks: Stacks::default(),
            events: Events::default(),
            segments: Vec::new(),
            blocks: Vec::new(),
            annotations: Vec::new(),
            past: Vec::new(),
            streams: Numbers::new(),
            pools,
            notes: Notes::default(),
            pairs: Vec::new(),
        }
    }

    pub(crate) fn texts(&self) -> &Texts {
        &self.texts
    }

    pub(crate) fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    pub(crate) fn events(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn intern(&mut self, text: &[u8]) -> Option<TextId> {
        self.texts.intern(text)
    }

    pub(crate) fn stack(&mut self, frames: &[FrameId]) -> Result<StackId, Wrong> {
        self.stacks.intern(frames).ok_or_else(|| Wrong::new("more stacks than can be counted"))
    }

    /// The number of a pair, if both are whole numbers of 0 or more.
    pub(crate) fn pair(&mut self, first: Value, second: Value) -> Option<u16> {
        let whole = |value| match value {
            Value::Int(number) => u64::try_from(number).ok(),
            Value::Large(number) => Some(number),
            _ => None,
        };
        self.pools.of((whole(first)?, whole(second)?))
    }

    /// The row of the pairs at hand, if they are those of a row.
    pub(crate) fn row_of_pairs(&mut self) -> Result<Option<(Table, u32)>, Wrong> {
        let pairs = std::mem::take(&mut self.pairs);
        let row = self.row(&pairs);
        self.pairs = pairs;
        row
    }

    pub(super) fn stream(&mut self, handle: u64) -> Result<StreamId, Wrong> {
        self.streams.of(handle).map(StreamId).ok_or_else(|| Wrong::damaged("more than 65_536 streams"))
    }

    pub(super) fn pool(&mut self, value: Value) -> PoolId {
        match value {
            Value::Pair(pair) => PoolId(pair),
            _ => {
                self.notes.add("a pool id that is no pair is taken for the default pool", String::new);
                PoolId(0)
            }
        }
    }
}
