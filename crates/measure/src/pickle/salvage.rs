//! What can be kept of a file that ended before its STOP.

use super::machine::Machine;
use super::value::Value;

impl Machine<'_> {
    /// Ends every container that was begun, without what was not finished in it. The file's top, if anything is left.
    pub(crate) fn salvage(&mut self) -> Option<Value> {
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
            } else if target == 0 {
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
        self.close(top).ok()
    }

    /// The last item of a list, if it is a dict or a list that has nothing in it yet.
    fn drop_unfinished(&mut self) {
        if let Some(Value::EmptyDict(_) | Value::Text(_) | Value::Dict(..)) = self.stack.last() {
            self.stack.pop();
        }
    }
}
