//! What stands on the machine's stack: numbers, and handles on what is kept elsewhere.

use super::MOST_ENTRIES;
use super::error::Wrong;
use crate::snapshot::{FrameId, StackId, TextId};

/// Dicts that become rows of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Frame,
    Event,
    Block,
    Segment,
    Annotation,
    /// The legacy record of a block's past (torch 1.12 to 2.0).
    History,
}

impl Table {
    pub(crate) const ALL: [Table; 6] =
        [Table::Frame, Table::Event, Table::Block, Table::Segment, Table::Annotation, Table::History];
}

/// The place of the memo that refers to a container, which is told what became of it once it is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home(pub(crate) u32);

impl Home {
    /// Nothing refers to it yet.
    pub(crate) const NONE: Home = Home(u32::MAX);
    /// It is finished: it was put somewhere or referred to.
    pub(crate) const CLOSED: Home = Home(u32::MAX - 1);
}

/// A value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// From 2^63 to 2^64 − 1.
    Large(u64),
    /// An integer that does not fit into 64 bits.
    Wide,
    Float(f64),
    Text(TextId),
    /// Two whole numbers, by their place among the pairs: how torch writes a pool.
    Pair(u16),
    EmptyDict(Home),
    EmptyList(Home),
    /// A dict that became a row.
    Row(Table, u32),
    /// Several of them one after the other, not yet in a list.
    Run {
        table: Table,
        start: u32,
        len: u32,
    },
    /// A list of rows.
    Rows {
        table: Table,
        start: u32,
        len: u32,
        home: Home,
    },
    /// A list of frames.
    Stack(StackId, Home),
    /// One that grows past its first batch, by its place among the long ones.
    LongStack(u32, Home),
    /// A dict or a list that became no row, in the arena.
    Dict(u32, Home),
    List(u32, Home),
    /// What nothing is done with, and how deep it is.
    Other(u8, Home),
}

impl Value {
    /// What refers to it, of a container.
    #[inline]
    pub(crate) fn home_mut(&mut self) -> Option<&mut Home> {
        match self {
            Value::EmptyDict(home) | Value::EmptyList(home) | Value::Stack(_, home) => Some(home),
            Value::LongStack(_, home) | Value::Dict(_, home) | Value::List(_, home) => Some(home),
            Value::Rows { home, .. } | Value::Other(_, home) => Some(home),
            _ => None,
        }
    }

    /// Whether it is nothing that could be added to: what most values are.
    #[inline]
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self, Value::Int(_) | Value::Text(_) | Value::Stack(_, Home::CLOSED))
    }

    /// In words, for a message.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Bool(_) => "a bool",
            Value::Int(_) | Value::Large(_) | Value::Wide => "an integer",
            Value::Float(_) => "a float",
            Value::Text(_) => "a string",
            Value::Pair(_) => "a pair",
            Value::EmptyDict(_) | Value::Row(..) | Value::Run { .. } | Value::Dict(..) => "a dict",
            Value::EmptyList(_) | Value::Rows { .. } | Value::List(..) => "a list",
            Value::Stack(..) | Value::LongStack(..) => "a list of frames",
            Value::Other(..) => "a list or a tuple",
        }
    }

    /// How many values it stands for.
    pub(crate) fn count(&self) -> u64 {
        match self {
            Value::Run { len, .. } => u64::from(*len),
            _ => 1,
        }
    }
}

/// Dicts and lists that became no row: the file's top, its settings, lists of lists.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    dicts: Vec<Kept<(TextId, Value)>>,
    lists: Vec<Kept<Value>>,
    /// Stacks that grow.
    pub(crate) long: Vec<Vec<FrameId>>,
    entries: usize,
}

#[derive(Debug)]
struct Kept<T> {
    entries: Vec<T>,
    depth: u8,
}

impl Arena {
    pub(crate) fn dict(&self, id: u32) -> &[(TextId, Value)] {
        self.dicts.get(id as usize).map_or(&[], |dict| &dict.entries)
    }

    pub(crate) fn list(&self, id: u32) -> &[Value] {
        self.lists.get(id as usize).map_or(&[], |list| &list.entries)
    }

    pub(crate) fn new_dict(&mut self) -> u32 {
        self.dicts.push(Kept { entries: Vec::new(), depth: 1 });
        u32::try_from(self.dicts.len() - 1).unwrap_or(u32::MAX)
    }

    pub(crate) fn new_list(&mut self) -> u32 {
        self.lists.push(Kept { entries: Vec::new(), depth: 1 });
        u32::try_from(self.lists.len() - 1).unwrap_or(u32::MAX)
    }

    /// How deep a finished value is.
    pub(crate) fn depth(&self, value: &Value) -> u8 {
        match value {
            Value::Dict(id, _) => self.dicts.get(*id as usize).map_or(0, |dict| dict.depth),
            Value::List(id, _) => self.lists.get(*id as usize).map_or(0, |list| list.depth),
            Value::Other(depth, _) => *depth,
            Value::None | Value::Bool(_) | Value::Int(_) | Value::Text(_) | Value::Float(_) => 0,
            _ => 1,
        }
    }

    /// Forgets a dict that became a row after all.
    pub(crate) fn free_dict(&mut self, id: u32) {
        if let Some(dict) = self.dicts.get_mut(id as usize) {
            self.entries -= std::mem::take(&mut dict.entries).len();
        }
        if self.dicts.len() == id as usize + 1 {
            self.dicts.pop();
        }
    }

    fn room(&mut self, depth: u8) -> Result<u8, Wrong> {
        self.entries += 1;
        if self.entries > MOST_ENTRIES {
            return Err(Wrong::new("more than 1_000_000 entries that belong to no snapshot"));
        }
        deeper(depth)
    }

    pub(crate) fn set(&mut self, id: u32, key: TextId, value: Value) -> Result<(), Wrong> {
        let depth = self.depth(&value);
        let depth = self.room(depth)?;
        if let Some(dict) = self.dicts.get_mut(id as usize) {
            dict.entries.push((key, value));
            dict.depth = dict.depth.max(depth);
        }
        Ok(())
    }

    pub(crate) fn append(&mut self, id: u32, value: Value) -> Result<(), Wrong> {
        let depth = self.depth(&value);
        let depth = self.room(depth)?;
        if let Some(list) = self.lists.get_mut(id as usize) {
            list.entries.push(value);
            list.depth = list.depth.max(depth);
        }
        Ok(())
    }
}

/// One level more, if that is not too deep.
pub(crate) fn deeper(depth: u8) -> Result<u8, Wrong> {
    if usize::from(depth) >= super::MOST_DEPTH {
        return Err(Wrong::new("nested deeper than 64"));
    }
    Ok(depth + 1)
}
