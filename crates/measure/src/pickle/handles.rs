//! How values are referred to: what the memo is told, and when a container is finished.

use super::CYCLIC;
use super::error::Wrong;
use super::machine::Machine;
use super::memo::Found;
use super::value::{Home, Value};

impl Machine<'_> {
    /// Refers to what is on top of the stack by that number of the memo.
    pub(super) fn memoize(&mut self, id: u32) -> Result<(), Wrong> {
        let at = self.stack.len().saturating_sub(1);
        let Some(top) = self.stack.last_mut() else {
            return Err(Wrong::new("MEMOIZE of nothing"));
        };
        let Some(home) = top.home_mut().filter(|home| **home != Home::CLOSED) else {
            let value = *top;
            return self.memo.put(id, value);
        };
        if *home != Home::NONE && *home != Home(id) {
            return Err(Wrong::new("one list or dict under two numbers of the memo"));
        }
        *home = Home(id);
        self.memo.open(id, at);
        Ok(())
    }

    /// What a number of the memo refers to. A container that stands on the stack and is not being filled is finished by
    /// that; one that is being filled would be in itself.
    #[inline]
    pub(super) fn get(&mut self, id: u32) -> Result<(), Wrong> {
        match self.memo.usual(id) {
            Some(value) => self.push(value),
            None => self.get_unusual(id),
        }
    }

    fn get_unusual(&mut self, id: u32) -> Result<(), Wrong> {
        let value = match self.memo.get(id)? {
            Found::Value(value) => value,
            Found::Open(at) => {
                if self.marks.contains(&(at + 1)) {
                    return Err(Wrong::new(CYCLIC));
                }
                let value = self.stack.get(at).copied().unwrap_or(Value::None);
                let closed = self.close(value)?;
                if let Some(place) = self.stack.get_mut(at) {
                    *place = closed;
                }
                closed
            }
        };
        self.push(value)
    }

    /// A value that is put somewhere or referred to: nothing is added to it after that.
    pub(super) fn close(&mut self, mut value: Value) -> Result<Value, Wrong> {
        let home = match value.home_mut() {
            None => return Ok(value),
            Some(home) if *home == Home::CLOSED => return Ok(value),
            Some(home) => std::mem::replace(home, Home::CLOSED),
        };
        let closed = match value {
            Value::LongStack(long, _) => {
                let frames = self.arena.long.get_mut(long as usize).map(std::mem::take).unwrap_or_default();
                Value::Stack(self.tables.stack(&frames)?, Home::CLOSED)
            }
            Value::Dict(dict, _) => match self.tables.row(self.arena.dict(dict))? {
                Some((table, row)) => {
                    self.arena.free_dict(dict);
                    Value::Row(table, row)
                }
                None => value,
            },
            value => value,
        };
        if home != Home::NONE {
            self.memo.put(home.0, closed)?;
        }
        Ok(closed)
    }

    pub(super) fn pop_mark(&mut self) -> Result<usize, Wrong> {
        let mark = self.last_mark()?;
        self.marks.pop();
        Ok(mark)
    }
}
