//! Where in the data the machine is, for messages: `device_traces[0][1234].size`.

use super::value::{Arena, Value};
use crate::snapshot::Texts;

/// The path to what is being made: from the bottom of the stack, each container that waits for more, and for what.
///
/// A batch of items follows a mark; a single item follows its container at once.
pub(super) fn path(stack: &[Value], marks: &[usize], arena: &Arena, texts: &Texts) -> String {
    let mut path = String::new();
    let is_text = |at: usize| matches!(stack.get(at), Some(Value::Text(_)));
    let mut at = 0;
    loop {
        let items = at + 1;
        let more = |at: usize| stack.len() > at || marks.contains(&at);
        let there = match stack.get(at) {
            Some(Value::EmptyDict(_) | Value::Dict(..)) => {
                let mut key = items;
                while is_text(key) && is_text(key + 2) && !marks.contains(&(key + 2)) {
                    key += 2;
                }
                let Some(Value::Text(word)) = stack.get(key) else { return path };
                let value = key + 1;
                if stack.len() > value && !more(value + 1) {
                    return path; // all pairs are whole
                }
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(&texts.text(*word));
                at = value;
                continue;
            }
            Some(Value::EmptyList(_)) => 0,
            Some(Value::Rows { len, .. }) => u64::from(*len),
            Some(Value::List(id, _)) => arena.list(*id).len() as u64,
            _ => return path,
        };
        if !more(items) {
            return path;
        }
        // of a batch, the last item is the one that is not whole
        let next_mark = marks.iter().copied().find(|mark| *mark > items);
        let last = match marks.contains(&items) {
            true => next_mark.map_or(stack.len(), |mark| mark - 1),
            false => items,
        };
        let before: u64 = stack.get(items..last).unwrap_or_default().iter().map(Value::count).sum();
        path.push_str(&format!("[{}]", there + before));
        at = last;
    }
}
