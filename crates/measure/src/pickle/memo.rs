//! The memo: what later parts of the file refer to, four bytes each.

use super::error::Wrong;
use super::value::{Home, Table, Value};
use crate::snapshot::{StackId, TextId};
use std::collections::BTreeMap;

/// A handle of four bits of kind and 28 of place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Handle(u32);

const BITS: u32 = 28;
const PLACE: u32 = (1 << BITS) - 1;

const UNSET: u32 = 0;
/// A container on the stack, which is not finished.
const OPEN: u32 = 1;
const TEXT: u32 = 2;
const PAIR: u32 = 3;
const EMPTY: u32 = 4;
const STACK: u32 = 5;
const ROWS: u32 = 6;
const DICT: u32 = 7;
const LIST: u32 = 8;
const OTHER: u32 = 9;
/// The first of the tables, in the order of [`Table::ALL`].
const ROW: u32 = 10;
/// The handle of a frame without its place.
pub(super) const FRAME: u32 = ROW + Table::Frame as u32;

impl Handle {
    const fn new(kind: u32, place: u32) -> Handle {
        Handle(kind << BITS | place & PLACE)
    }
}

/// What the memo refers to.
pub(super) enum Found {
    /// A finished value.
    Value(Value),
    /// A container that stands at that place of the stack.
    Open(usize),
}

/// The memo. Its places are counted up from 0, as every pickler does; others are kept apart, so that no number in a file
/// decides how much memory is taken.
#[derive(Debug, Default)]
pub(super) struct Memo {
    dense: Vec<Handle>,
    sparse: BTreeMap<u32, Handle>,
    /// Lists of rows that the memo refers to: first, length, table.
    lists: Vec<(u32, u32, Table)>,
}

impl Memo {
    /// The place that MEMOIZE takes.
    pub(super) fn next(&self) -> u32 {
        u32::try_from(self.dense.len() + self.sparse.len()).unwrap_or(u32::MAX)
    }

    /// The number of a frame, if a frame is what is there. (The way that most of a file takes.)
    #[inline]
    pub(super) fn frame(&self, id: u32) -> Option<u32> {
        let handle = self.dense.get(id as usize)?.0;
        (handle >> BITS == FRAME).then_some(handle & PLACE)
    }

    /// A word or a stack, if one is what is there. (The way that most of the rest takes.)
    #[inline]
    pub(super) fn usual(&self, id: u32) -> Option<Value> {
        let handle = self.dense.get(id as usize)?.0;
        match handle >> BITS {
            TEXT => Some(Value::Text(TextId(handle & PLACE))),
            STACK => Some(Value::Stack(StackId(handle & PLACE), Home::CLOSED)),
            _ => None,
        }
    }

    pub(super) fn get(&self, id: u32) -> Result<Found, Wrong> {
        let handle = self.dense.get(id as usize).or_else(|| self.sparse.get(&id));
        let Handle(handle) = handle.copied().unwrap_or(Handle(UNSET));
        let place = handle & PLACE;
        Ok(Found::Value(match handle >> BITS {
            UNSET => return Err(Wrong::new(format!("refers to number {id} of the memo, where nothing is"))),
            OPEN => return Ok(Found::Open(place as usize)),
            TEXT => Value::Text(TextId(place)),
            PAIR => Value::Pair(u16::try_from(place).unwrap_or(u16::MAX)),
            EMPTY if place == 0 => Value::EmptyDict(Home::CLOSED),
            EMPTY => Value::EmptyList(Home::CLOSED),
            STACK => Value::Stack(StackId(place), Home::CLOSED),
            ROWS => {
                let (start, len, table) =
                    self.lists.get(place as usize).copied().unwrap_or((0, 0, Table::Event));
                Value::Rows { table, start, len, home: Home::CLOSED }
            }
            DICT => Value::Dict(place, Home::CLOSED),
            LIST => Value::List(place, Home::CLOSED),
            OTHER => Value::Other(u8::try_from(place).unwrap_or(u8::MAX), Home::CLOSED),
            row => {
                let table = Table::ALL.get((row - ROW) as usize).copied().unwrap_or(Table::Frame);
                Value::Row(table, place)
            }
        }))
    }

    /// Refers to a container at that place of the stack, to which more may be added.
    pub(super) fn open(&mut self, id: u32, at: usize) {
        self.set(id, Handle::new(OPEN, u32::try_from(at).unwrap_or(PLACE)));
    }

    /// Refers to a finished value.
    pub(super) fn put(&mut self, id: u32, value: Value) -> Result<(), Wrong> {
        let handle = match value {
            Value::Text(text) => Handle::new(TEXT, text.0),
            Value::Pair(pair) => Handle::new(PAIR, u32::from(pair)),
            Value::EmptyDict(_) => Handle::new(EMPTY, 0),
            Value::EmptyList(_) => Handle::new(EMPTY, 1),
            Value::Stack(stack, _) => Handle::new(STACK, stack.0),
            Value::Rows { table, start, len, .. } => {
                let place = u32::try_from(self.lists.len()).ok().filter(|place| *place < PLACE);
                self.lists.push((start, len, table));
                Handle::new(ROWS, place.ok_or_else(|| Wrong::new("more lists than can be counted"))?)
            }
            Value::Dict(dict, _) => Handle::new(DICT, dict),
            Value::List(list, _) => Handle::new(LIST, list),
            Value::Other(depth, _) => Handle::new(OTHER, u32::from(depth)),
            Value::Row(table, row) => Handle::new(ROW + table as u32, row),
            value => {
                return Err(Wrong::new(format!("{} in the memo, where no pickler puts one", value.kind())));
            }
        };
        self.set(id, handle);
        Ok(())
    }

    fn set(&mut self, id: u32, handle: Handle) {
        let next = self.dense.len();
        match (id as usize).cmp(&next) {
            std::cmp::Ordering::Less => {
                if let Some(place) = self.dense.get_mut(id as usize) {
                    *place = handle;
                }
            }
            std::cmp::Ordering::Equal if self.sparse.is_empty() => self.dense.push(handle),
            _ => {
                self.sparse.insert(id, handle);
            }
        }
    }
}
