//! How lists, dicts and tuples are filled.

use super::error::Wrong;
use super::machine::Machine;
use super::opcode as op;
use super::plain::known_frames;
use super::value::{Home, Table, Value, deeper};
use crate::snapshot::FrameId;

impl Machine<'_> {
    /// A list of frames that are known already, as most of a file is: read without a value for each.
    pub(super) fn list_of_frames(&mut self, home: Home) -> Result<(), Wrong> {
        let Machine { feed, memo, frames, .. } = self;
        frames.clear();
        while feed.want(5) {
            let ready = feed.ready();
            let rest = known_frames(ready, memo, frames);
            let (eaten, left) = (ready.len() - rest.len(), rest.len());
            feed.eat(eaten);
            if eaten == 0 || left >= 5 {
                break;
            }
        }
        if !self.frames.is_empty() && self.feed.ready().first() == Some(&op::APPENDS) {
            self.feed.eat(1);
            self.marks.pop();
            let stack = self.tables.stack(&self.frames)?;
            self.frames.clear();
            if let Some(list) = self.stack.last_mut() {
                *list = Value::Stack(stack, home);
            }
            return Ok(());
        }
        for at in 0..self.frames.len() {
            if let Some(FrameId(frame)) = self.frames.get(at).copied() {
                self.push(Value::Row(Table::Frame, frame))?;
            }
        }
        self.frames.clear();
        Ok(())
    }

    /// The last mark. It stays until all is well with what is after it, so that a message can say where that was.
    pub(super) fn last_mark(&self) -> Result<usize, Wrong> {
        self.marks
            .last()
            .copied()
            .ok_or_else(|| Wrong::new("the end of a list, a dict or a tuple that did not begin"))
    }

    pub(super) fn append_items(&mut self) -> Result<(), Wrong> {
        let mark = self.last_mark()?;
        self.append_from(mark, "APPENDS")?;
        self.marks.pop();
        Ok(())
    }

    pub(super) fn append_item(&mut self) -> Result<(), Wrong> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len().checked_sub(1).filter(|at| *at > floor) {
            Some(at) => self.append_from(at, "APPEND"),
            None => Err(Wrong::new("APPEND without a list and an item")),
        }
    }

    /// Appends the values from a place of the stack on to the list before it.
    pub(super) fn append_from(&mut self, from: usize, opcode: &str) -> Result<(), Wrong> {
        let Some(at) = from.checked_sub(1) else {
            return Err(Wrong::new(format!("{opcode} without a list")));
        };
        let mut list = self.stack.get(at).copied().unwrap_or(Value::None);
        if list.home_mut().is_some_and(|home| *home == Home::CLOSED) {
            return Err(Wrong::new(super::CYCLIC));
        }
        if let (Value::EmptyList(home), Some([first, second])) = (list, self.stack.get(from..))
            && let Some(pair) = self.tables.pair(*first, *second)
        {
            self.stack.truncate(at);
            if home != Home::NONE {
                self.memo.put(home.0, Value::Pair(pair))?;
            }
            return self.push(Value::Pair(pair));
        }
        for item in from..self.stack.len() {
            let item = self.stack.get(item).copied().unwrap_or(Value::None);
            let item = self.close(item)?;
            list = self.appended(list, item, opcode)?;
        }
        if let Value::EmptyList(home) = list
            && !self.frames.is_empty()
        {
            list = Value::Stack(self.tables.stack(&self.frames)?, home);
            self.frames.clear();
        }
        self.stack.truncate(from);
        if let Some(place) = self.stack.get_mut(at) {
            *place = list;
        }
        Ok(())
    }

    fn appended(&mut self, list: Value, item: Value, opcode: &str) -> Result<Value, Wrong> {
        Ok(match (list, item) {
            (Value::EmptyList(_), item)
                if !self.frames.is_empty() && !matches!(item, Value::Row(Table::Frame, _)) =>
            {
                return Err(Wrong::damaged(format!("{} in a list of frames", item.kind())));
            }
            (Value::EmptyList(_) | Value::LongStack(..) | Value::Stack(..), Value::Row(Table::Frame, _)) => {
                return self.frame_appended(list, item);
            }
            (Value::EmptyList(home), Value::Row(table, start)) => Value::Rows { table, start, len: 1, home },
            (Value::EmptyList(home), Value::Run { table, start, len }) => {
                Value::Rows { table, start, len, home }
            }
            (Value::Rows { table, start, len, home }, Value::Row(other, row))
                if table == other && Some(row) == start.checked_add(len) =>
            {
                Value::Rows { table, start, len: len + 1, home }
            }
            (Value::Rows { table, start, len, home }, Value::Run { table: other, start: row, len: more })
                if table == other && Some(row) == start.checked_add(len) =>
            {
                Value::Rows { table, start, len: len.saturating_add(more), home }
            }
            (Value::Rows { .. } | Value::Stack(..) | Value::LongStack(..), item) => {
                let (of, what) = (list.kind(), item.kind());
                return Err(Wrong::damaged(format!(
                    "{what} in {of} of other things, or an entry in two lists"
                )));
            }
            (Value::EmptyList(home), Value::None | Value::Bool(_) | Value::Int(_) | Value::Large(_))
            | (Value::EmptyList(home), Value::Wide | Value::Float(_) | Value::Text(_)) => {
                Value::Other(1, home)
            }
            (Value::EmptyList(home), Value::Other(depth, _)) => Value::Other(deeper(depth)?, home),
            (Value::Other(depth, home), item) => {
                Value::Other(depth.max(deeper(self.arena.depth(&item))?), home)
            }
            (Value::EmptyList(home), item) => {
                let list = self.arena.new_list();
                self.arena.append(list, item)?;
                Value::List(list, home)
            }
            (Value::List(id, home), item) => {
                self.arena.append(id, item)?;
                Value::List(id, home)
            }
            (other, _) => return Err(Wrong::new(format!("{opcode} onto {}, not onto a list", other.kind()))),
        })
    }

    fn frame_appended(&mut self, list: Value, item: Value) -> Result<Value, Wrong> {
        let Value::Row(_, frame) = item else { return Ok(list) };
        Ok(match list {
            Value::Stack(stack, home) => {
                let mut frames = self.tables.stacks().ids(stack).to_vec();
                frames.push(FrameId(frame));
                self.arena.long.push(frames);
                let long = u32::try_from(self.arena.long.len() - 1).unwrap_or(u32::MAX);
                Value::LongStack(long, home)
            }
            Value::LongStack(long, home) => {
                if let Some(frames) = self.arena.long.get_mut(long as usize) {
                    frames.push(FrameId(frame));
                }
                Value::LongStack(long, home)
            }
            list => {
                self.frames.push(FrameId(frame));
                list
            }
        })
    }

    pub(super) fn set_items(&mut self) -> Result<(), Wrong> {
        let mark = self.last_mark()?;
        self.set_from(mark, "SETITEMS", true)
    }

    pub(super) fn set_item(&mut self) -> Result<(), Wrong> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len().checked_sub(2).filter(|at| *at > floor) {
            Some(at) => self.set_from(at, "SETITEM", false),
            None => Err(Wrong::new("SETITEM without a dict, a key and a value")),
        }
    }

    /// Puts the pairs from a place of the stack on into the dict before it.
    pub(super) fn set_from(&mut self, from: usize, opcode: &str, marked: bool) -> Result<(), Wrong> {
        let target = from.checked_sub(1).and_then(|at| self.stack.get(at)).copied();
        let (home, id) = match target {
            Some(Value::EmptyDict(Home::CLOSED) | Value::Dict(_, Home::CLOSED)) => {
                return Err(Wrong::new(super::CYCLIC));
            }
            Some(Value::EmptyDict(home)) => (home, None),
            Some(Value::Dict(id, home)) => (home, Some(id)),
            Some(other) => {
                return Err(Wrong::new(format!("{opcode} on {}, not on a dict", other.kind())));
            }
            None => return Err(Wrong::new(format!("{opcode} without a dict"))),
        };
        if !(self.stack.len() - from).is_multiple_of(2) {
            return Err(Wrong::new(format!("{opcode} with a key that has no value")));
        }
        self.tables.pairs.clear();
        let mut at = from;
        while let [key, value, ..] = self.stack.get(at..).unwrap_or_default() {
            let (key, value) = (*key, *value);
            let Value::Text(key) = key else {
                return Err(Wrong::new(format!("{} as the key of a dict", key.kind())));
            };
            let value = if value.is_finished() { value } else { self.close(value)? };
            self.tables.pairs.push((key, value));
            at += 2;
        }
        self.finish_dict(from.saturating_sub(1), home, id, marked)
    }

    /// Puts the pairs at hand into the dict at a place of the stack, on which nothing is after them.
    pub(super) fn finish_dict(
        &mut self,
        at: usize,
        home: Home,
        id: Option<u32>,
        marked: bool,
    ) -> Result<(), Wrong> {
        let row = match id {
            None => self.tables.row_of_pairs()?,
            Some(_) => None,
        };
        if marked {
            self.marks.pop();
        }
        self.stack.truncate(at);
        match row {
            Some((table, row)) => {
                if home != Home::NONE {
                    self.memo.put(home.0, Value::Row(table, row))?;
                }
                self.push_row(table, row)
            }
            None => {
                let id = id.unwrap_or_else(|| self.arena.new_dict());
                for (key, value) in self.tables.pairs.drain(..) {
                    self.arena.set(id, key, value)?;
                }
                self.stack.push(Value::Dict(id, home));
                Ok(())
            }
        }
    }

    /// A row as an item: one with those before it, so that a list of millions takes no room on the stack.
    fn push_row(&mut self, table: Table, row: u32) -> Result<(), Wrong> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if table != Table::Frame && self.stack.len() > floor {
            match self.stack.last_mut() {
                Some(Value::Run { table: other, start, len })
                    if *other == table && start.checked_add(*len) == Some(row) =>
                {
                    *len += 1;
                    return Ok(());
                }
                Some(Value::Row(other, start)) if *other == table && start.checked_add(1) == Some(row) => {
                    let start = *start;
                    self.stack.pop();
                    self.stack.push(Value::Run { table, start, len: 2 });
                    return Ok(());
                }
                _ => {}
            }
        }
        self.push(Value::Row(table, row))
    }

    /// The values on top as a tuple: a pair of numbers is kept, all else passed over.
    pub(super) fn tuple(&mut self, length: usize) -> Result<(), Wrong> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let Some(from) = self.stack.len().checked_sub(length).filter(|from| *from >= floor) else {
            return Err(Wrong::new("a tuple without its items"));
        };
        let mut depth = 0;
        for at in from..self.stack.len() {
            let item = self.stack.get(at).copied().unwrap_or(Value::None);
            let item = self.close(item)?;
            depth = depth.max(self.arena.depth(&item));
        }
        let pair = match self.stack.get(from..) {
            Some([first, second]) => self.tables.pair(*first, *second),
            _ => None,
        };
        self.stack.truncate(from);
        match pair {
            Some(pair) => self.push(Value::Pair(pair)),
            None => self.push(Value::Other(deeper(depth)?, Home::CLOSED)),
        }
    }
}
