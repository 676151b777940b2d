//! What can be kept of a file that ended before its STOP.

use super::machine::Machine;
use super::value::Value;
use crate::snapshot::TextId;

/// What was kept.
pub(crate) struct Salvaged {
    /// The file's top.
    pub(crate) top: Value,
    /// The key of the top whose value was being read.
    pub(crate) unfinished: Option<TextId>,
}

impl Machine<'_> {
    /// Ends every container that was begun, without what was not finished in it. The file's top, if anything is left.
    pub(crate) fn salvage(&mut self) -> Option<Salvaged> {
        let unfinished = self.unfinished();
        self.frames.clear();
        while let Some(mark) = self.marks.last().copied() {
            let target = mark.checked_sub(1)?;
            let is_dict = matches!(self.stack.get(target)?, Value::EmptyDict(_) | Value::Dict(..));
            if !is_dict {
                self.drop_unfinished();
                if self.append_from(mark, "APPENDS").is_err() {
                    self.stack.truncate(mark);
                }
                self.marks.pop();
                self.end_single(target);
            } else if target == 0 {
                self.end_single(self.stack.len().saturating_sub(1));
                let odd = (self.stack.len() - mark) % 2;
                self.stack.truncate(self.stack.len() - odd);
                if self.set_from(mark, "SETITEMS", true).is_err() {
                    return None;
                }
            } else {
                self.stack.truncate(target);
                self.marks.pop();
            }
        }
        let top = self.stack.first().copied()?;
        Some(Salvaged { top: self.close(top).ok()?, unfinished })
    }

    /// The key of the top's last value, where something of that value is not in it yet.
    fn unfinished(&self) -> Option<TextId> {
        let mut pairs = self.stack.get(*self.marks.first()?..)?;
        let mut at = *self.marks.first()?;
        loop {
            let [Value::Text(key), _value, rest @ ..] = pairs else { return None };
            at += 2;
            let is_filled = self.marks.contains(&at) || !matches!(rest, [] | [Value::Text(_), ..]);
            if is_filled {
                return Some(*key);
            }
            pairs = rest;
        }
    }

    /// Puts a list that was ended into the list that it alone is in: the traces of one device are written so.
    fn end_single(&mut self, inner: usize) {
        let is_key =
            |at: Option<usize>| at.is_some_and(|at| matches!(self.stack.get(at), Some(Value::Text(_))));
        let is_alone = matches!(
            inner.checked_sub(1).and_then(|outer| self.stack.get(outer)),
            Some(Value::EmptyList(_) | Value::List(..))
        );
        if is_alone && is_key(inner.checked_sub(2)) && self.append_from(inner, "APPEND").is_err() {
            self.stack.truncate(inner);
        }
    }

    /// The last item of a list, if it is a dict or a list that has nothing in it yet.
    fn drop_unfinished(&mut self) {
        if let Some(Value::EmptyDict(_) | Value::Text(_) | Value::Dict(..)) = self.stack.last() {
            self.stack.pop();
        }
    }
}
