//! Single values of a dict: what they must be, and what is taken for them where they are odd.

use super::events::StreamId;
use super::fold::MOST_DEVICES;
use super::key::Key;
use super::stacks::StackId;
use super::tables::Tables;
use super::texts::TextId;
use crate::pickle::{Value, Wrong};

impl Tables {
    /// A size or an address.
    #[inline]
    pub(super) fn bytes(&mut self, value: Value, key: Key) -> Result<u64, Wrong> {
        match value {
            Value::Int(number) => u64::try_from(number)
                .map_err(|_| Wrong::damaged(format!("negative {} {number}", key.as_str())).of(key.id())),
            Value::Large(number) => Ok(number),
            value => self.odd_bytes(value, key),
        }
    }

    #[cold]
    fn odd_bytes(&mut self, value: Value, key: Key) -> Result<u64, Wrong> {
        let word = key.as_str();
        let wrong = match value {
            Value::Wide => Wrong::new(format!("`{word}` is an integer wider than 64 bits")),
            Value::Float(number) if number.fract() == 0.0 && (0.0..9.0e15).contains(&number) => {
                self.notes.say(format!(
                    "`{word}` is written as a float, and taken for the whole number that it is"
                ));
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // whole, and in range
                return Ok(number as u64);
            }
            Value::Float(number) => {
                Wrong::damaged(format!("`{word}` is {number}, not a whole number of bytes"))
            }
            value => Wrong::damaged(format!("`{word}` is {}, not an integer", value.kind())),
        };
        Err(wrong.of(key.id()))
    }

    pub(super) fn time(&mut self, value: Value) -> Result<u64, Wrong> {
        match value {
            Value::Int(number) if number < 0 => {
                self.notes.say("events before 1970 are taken to have no time");
                Ok(0)
            }
            Value::None => Ok(0),
            value => self.bytes(value, Key::TimeUs),
        }
    }

    pub(super) fn device(&mut self, value: Value) -> Result<u32, Wrong> {
        let number = match value {
            Value::Int(-1) => 0, // the host, beside an annotation
            value => self.bytes(value, Key::Device)?,
        };
        match u32::try_from(number) {
            Ok(device) if number < MOST_DEVICES => Ok(device),
            _ => {
                Err(Wrong::damaged(format!("device {number}, of at most {MOST_DEVICES}"))
                    .of(Key::Device.id()))
            }
        }
    }

    /// A stream is a handle of CUDA's: any number is one.
    pub(super) fn stream_of(&mut self, value: Value) -> Result<StreamId, Wrong> {
        match value {
            Value::Int(handle) => self.stream(handle.cast_unsigned()),
            Value::Large(handle) => self.stream(handle),
            _ => {
                self.notes.say("streams that are no number are taken for the default stream");
                self.stream(0)
            }
        }
    }

    pub(super) fn frames_of(&mut self, value: Value) -> StackId {
        match value {
            Value::Stack(stack, _) => stack,
            Value::EmptyList(_) | Value::None => StackId::NONE,
            _ => {
                self.notes.say("`frames` that are no list of frames are passed over");
                StackId::NONE
            }
        }
    }

    /// A word that says something.
    pub(super) fn word(&self, value: Value) -> Option<TextId> {
        match value {
            Value::Text(word) if !self.texts.bytes(word).is_empty() => Some(word),
            _ => None,
        }
    }
}
