//! The way that most of a file takes: dicts with known keys and plain values, and lists of known frames, read straight
//! from the bytes. What is anything else is left where it stands, for the machine's own loop.

use super::error::Wrong;
use super::machine::Machine;
use super::memo::Memo;
use super::opcode as op;
use super::value::{Home, Value};
use crate::snapshot::{FrameId, Tables};

/// How much lies ready before a dict is begun: more than most events take.
const ROOM: usize = 2048;

impl Machine<'_> {
    /// Reads the pairs of a dict that was marked, as far as they are plain. If that is all of them, the dict is finished;
    /// else they wait on the stack as if they had been read one by one.
    pub(super) fn plain_dict(&mut self, home: Home) -> Result<(), Wrong> {
        self.feed.want(ROOM);
        let Machine { feed, memo, tables, frames, .. } = self;
        tables.pairs.clear();
        let ready = feed.ready();
        let mut rest = ready;
        let finished = loop {
            if let [op::SETITEMS, after @ ..] = rest {
                rest = after;
                break true;
            }
            let Some((Value::Text(key), after)) = known(rest, memo) else { break false };
            let Some((value, after)) = plain(after, memo, tables, frames) else { break false };
            tables.pairs.push((key, value));
            rest = after;
        };
        let eaten = ready.len() - rest.len();
        feed.eat(eaten);
        frames.clear(); // those of a list that was not read to its end
        if finished {
            let dict = self.last_mark()?.saturating_sub(1);
            return self.finish_dict(dict, home, None, true);
        }
        for at in 0..self.tables.pairs.len() {
            if let Some((key, value)) = self.tables.pairs.get(at).copied() {
                self.push(Value::Text(key))?;
                self.push(value)?;
            }
        }
        Ok(())
    }
}

/// What a GET brings, if that is a word or a stack.
#[inline]
fn known<'b>(bytes: &'b [u8], memo: &Memo) -> Option<(Value, &'b [u8])> {
    let (id, after) = match bytes {
        [op::BINGET, id, after @ ..] => (u32::from(*id), after),
        [op::LONG_BINGET, a, b, c, d, after @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]), after),
        _ => return None,
    };
    memo.usual(id).map(|value| (value, after))
}

/// A value, if it is a number, a word, or a list of known frames.
#[inline]
fn plain<'b>(
    bytes: &'b [u8],
    memo: &mut Memo,
    tables: &mut Tables,
    frames: &mut Vec<FrameId>,
) -> Option<(Value, &'b [u8])> {
    match bytes {
        [op::BINGET | op::LONG_BINGET, ..] => known(bytes, memo),
        [op::BININT1, a, after @ ..] => Some((Value::Int(i64::from(*a)), after)),
        [op::BININT2, a, b, after @ ..] => Some((Value::Int(i64::from(u16::from_le_bytes([*a, *b]))), after)),
        [op::BININT, a, b, c, d, after @ ..] => {
            Some((Value::Int(i64::from(i32::from_le_bytes([*a, *b, *c, *d]))), after))
        }
        [op::LONG1, length @ 1..=8, after @ ..] => {
            let unused = 64 - 8 * u32::from(*length);
            let word = u64::from_le_bytes(*after.first_chunk()?) << unused;
            Some((Value::Int(word.cast_signed() >> unused), after.get(usize::from(*length)..)?))
        }
        [op::SHORT_BINUNICODE, length, after @ ..] => {
            let (text, after) = after.split_at_checked(usize::from(*length))?;
            let [op::MEMOIZE, after @ ..] = after else { return None };
            let text = Value::Text(tables.intern(text)?);
            memo.put(memo.next(), text).ok()?;
            Some((text, after))
        }
        [op::EMPTY_LIST, op::MEMOIZE, op::MARK, after @ ..] => {
            frames.clear();
            let [op::APPENDS, after @ ..] = known_frames(after, memo, frames) else { return None };
            // a longer list goes on after its first batch; else there is the next key, or none
            let ended = matches!(after, [op::SETITEMS, ..])
                || matches!(known(after, memo), Some((Value::Text(_), _)));
            if !ended || frames.is_empty() {
                return None;
            }
            let stack = Value::Stack(tables.stack(frames).ok()?, Home::CLOSED);
            memo.put(memo.next(), stack).ok()?;
            Some((stack, after))
        }
        _ => None,
    }
}

/// The frames that are referred to from here on, and what comes after them.
#[inline]
pub(super) fn known_frames<'b>(mut bytes: &'b [u8], memo: &Memo, frames: &mut Vec<FrameId>) -> &'b [u8] {
    loop {
        let (id, after) = match bytes {
            [op::LONG_BINGET, a, b, c, d, after @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]), after),
            [op::BINGET, id, after @ ..] => (u32::from(*id), after),
            _ => return bytes,
        };
        let Some(frame) = memo.frame(id) else { return bytes };
        frames.push(FrameId(frame));
        bytes = after;
    }
}
