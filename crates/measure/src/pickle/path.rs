//! Where in the data the machine is, for messages: `device_traces[0][1234].size`.

use super::value::{Arena, Value};
use crate::snapshot::Texts;

/// The path to what is being made: each container that is not finished, with what it waits for.
pub(super) fn path(stack: &[Value], marks: &[usize], arena: &Arena, texts: &Texts) -> String {
    let mut path = String::new();
    let ends = marks.iter().skip(1).map(|next| next.saturating_sub(1)).chain([stack.len()]);
    for (mark, end) in marks.iter().zip(ends) {
        let target = mark.checked_sub(1).and_then(|at| stack.get(at));
        let waiting = stack.get(*mark..end).unwrap_or_default();
        match target {
            Some(Value::EmptyDict(_) | Value::Dict(..)) => {
                if let ([.., Value::Text(key)], true) = (waiting, waiting.len() % 2 == 1) {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    path.push_str(&texts.text(*key));
                }
            }
            Some(target) => {
                let there = match target {
                    Value::Rows { len, .. } => u64::from(*len),
                    Value::List(id, _) => arena.list(*id).len() as u64,
                    _ => 0,
                };
                let index = there + waiting.iter().map(Value::count).sum::<u64>();
                path.push_str(&format!("[{index}]"));
            }
            None => {}
        }
    }
    path
}
