//! The loop over the opcodes.

use super::error::{DUMP, Fault, Wrong};
use super::feed::Feed;
use super::memo::Memo;
use super::opcode::{self as op, Why};
use super::value::{Arena, Home, Value};
use super::{MOST_DEPTH, MOST_WAITING, path};
use crate::snapshot::Tables;
use peakledger_input::{grouped, quoted};

/// A pickle that is being read.
pub(crate) struct Machine<'a> {
    pub(super) feed: Feed<'a>,
    pub(super) stack: Vec<Value>,
    pub(super) marks: Vec<usize>,
    pub(super) memo: Memo,
    pub(crate) arena: Arena,
    pub(crate) tables: Tables,
    /// The frames of the list that is being read.
    pub(super) frames: Vec<crate::snapshot::FrameId>,
    /// Where the last FRAME says that it ends.
    frame_end: u64,
}

/// How the reading ended.
pub(crate) struct Ended {
    /// What the file holds.
    pub(crate) top: Value,
    /// How many bytes came after the end.
    pub(crate) after: u64,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(feed: Feed<'a>, tables: Tables) -> Machine<'a> {
        Machine {
            feed,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
            arena: Arena::default(),
            tables,
            frames: Vec::new(),
            frame_end: 0,
        }
    }

    /// Reads to STOP.
    pub(crate) fn run(&mut self) -> Result<Ended, Box<Fault>> {
        self.header().and_then(|()| self.body()).map_err(|wrong| self.fault(wrong))
    }

    /// The fault with the place where the machine stands.
    fn fault(&self, wrong: Wrong) -> Box<Fault> {
        let mut path = path::path(&self.stack, &self.marks, &self.arena, self.tables.texts());
        if let Some(key) = wrong.key {
            let dot = if path.is_empty() { "" } else { "." };
            path = format!("{path}{dot}{}", self.tables.texts().text(key));
        }
        let mut cause = wrong.cause.clone();
        let events = self.tables.events() as u64;
        if wrong.salvage {
            cause = format!("{cause}; {} events before it are sound", grouped(events));
        }
        let (offset, mend, salvage) = (self.feed.offset(), wrong.mend, wrong.salvage);
        Box::new(Fault { offset, path, cause, mend, salvage, reading: None })
    }

    /// What reading the file itself ran into, if that is why it ended.
    pub(crate) fn reading_error(&self) -> Option<&std::io::Error> {
        self.feed.error()
    }

    fn header(&mut self) -> Result<(), Wrong> {
        if !self.feed.want(2) {
            let bytes = self.feed.ready().len();
            let unit = if bytes == 1 { "byte" } else { "bytes" };
            return Err(Wrong::new(format!("truncated in the header ({bytes} {unit})")).mend(AGAIN));
        }
        match self.feed.ready() {
            [op::PROTO, 2..=5, ..] => {
                self.feed.eat(2);
                Ok(())
            }
            [op::PROTO, protocol, ..] => {
                let age = if *protocol < 2 { "older" } else { "newer" };
                let cause = format!("protocol {protocol} is {age} than this version knows (2–5)");
                Err(Wrong::new(cause).mend("write the pickle again with `protocol=4`"))
            }
            ready => {
                let cause = match ready {
                    [_, op::BINPUT, ..] => "protocol 1; PyTorch writes 2–5",
                    _ => "protocol 0 (text); PyTorch writes 2–5",
                };
                Err(Wrong::new(cause).mend("re-dump with `protocol=4`"))
            }
        }
    }

    fn body(&mut self) -> Result<Ended, Wrong> {
        loop {
            let Some(opcode) = self.feed.byte() else {
                let archive = if self.feed.is_cut_off() { ": the gzip archive is truncated" } else { "" };
                return Err(Wrong::damaged(format!("ends without STOP{archive}")));
            };
            match opcode {
                op::BINGET => {
                    let [id] = self.feed.array()?;
                    self.get(u32::from(id))?;
                }
                op::LONG_BINGET => {
                    let id = u32::from_le_bytes(self.feed.array()?);
                    self.get(id)?;
                }
                op::MARK => self.mark()?,
                op::MEMOIZE => self.memoize(self.memo.next())?,
                op::EMPTY_DICT => self.push_new(Value::EmptyDict(Home::NONE))?,
                op::EMPTY_LIST => self.push_new(Value::EmptyList(Home::NONE))?,
                op::SETITEMS => self.set_items()?,
                op::SETITEM => self.set_item()?,
                op::APPENDS => self.append_items()?,
                op::APPEND => self.append_item()?,
                op::BININT1 => {
                    let [byte] = self.feed.array()?;
                    self.push(Value::Int(i64::from(byte)))?;
                }
                op::BININT2 => {
                    let number = u16::from_le_bytes(self.feed.array()?);
                    self.push(Value::Int(i64::from(number)))?;
                }
                op::BININT => {
                    let number = i32::from_le_bytes(self.feed.array()?);
                    self.push(Value::Int(i64::from(number)))?;
                }
                op::LONG1 => {
                    let [length] = self.feed.array()?;
                    self.long(u64::from(length))?;
                }
                op::LONG4 => {
                    let length = i32::from_le_bytes(self.feed.array()?);
                    let length =
                        u64::try_from(length).map_err(|_| Wrong::new("an integer of negative length"))?;
                    self.long(length)?;
                }
                op::BINFLOAT => {
                    let number = f64::from_be_bytes(self.feed.array()?);
                    self.push(Value::Float(number))?;
                }
                op::SHORT_BINUNICODE => {
                    let [length] = self.feed.array()?;
                    self.text(u64::from(length))?;
                }
                op::BINUNICODE => {
                    let length = u32::from_le_bytes(self.feed.array()?);
                    self.text(u64::from(length))?;
                }
                op::BINUNICODE8 => {
                    let length = u64::from_le_bytes(self.feed.array()?);
                    self.text(length)?;
                }
                op::SHORT_BINBYTES => {
                    let [length] = self.feed.array()?;
                    self.bytes(u64::from(length))?;
                }
                op::BINBYTES => {
                    let length = u32::from_le_bytes(self.feed.array()?);
                    self.bytes(u64::from(length))?;
                }
                op::BINBYTES8 | op::BYTEARRAY8 => {
                    let length = u64::from_le_bytes(self.feed.array()?);
                    self.bytes(length)?;
                }
                op::NONE => self.push(Value::None)?,
                op::NEWTRUE => self.push(Value::Bool(true))?,
                op::NEWFALSE => self.push(Value::Bool(false))?,
                op::EMPTY_TUPLE => self.push(Value::Other(1, Home::CLOSED))?,
                op::TUPLE1 => self.tuple(1)?,
                op::TUPLE2 => self.tuple(2)?,
                op::TUPLE3 => self.tuple(3)?,
                op::TUPLE => {
                    let mark = self.pop_mark()?;
                    self.tuple(self.stack.len() - mark)?;
                }
                op::BINPUT => {
                    let [id] = self.feed.array()?;
                    self.memoize(u32::from(id))?;
                }
                op::LONG_BINPUT => {
                    let id = u32::from_le_bytes(self.feed.array()?);
                    self.memoize(id)?;
                }
                op::FRAME => {
                    let length = u64::from_le_bytes(self.feed.array()?);
                    self.frame_end = self.feed.offset().saturating_add(length);
                }
                op::STOP => return self.stop(),
                op::PROTO => return Err(Wrong::new("a second PROTO: two pickles in one another")),
                opcode => return Err(self.refuse(opcode)),
            }
        }
    }

    #[inline]
    pub(super) fn push(&mut self, value: Value) -> Result<(), Wrong> {
        if self.stack.len() >= MOST_WAITING {
            return Err(Wrong::new("more than 1_000_000 values wait to be put somewhere"));
        }
        self.stack.push(value);
        Ok(())
    }

    /// An empty container. Where no list or dict has begun to be filled, all that stand there are in one another.
    fn push_new(&mut self, value: Value) -> Result<(), Wrong> {
        if self.marks.is_empty() && self.stack.len() > MOST_DEPTH {
            return Err(Wrong::new("nested deeper than 64"));
        }
        self.push(value)
    }

    fn mark(&mut self) -> Result<(), Wrong> {
        if self.marks.len() > MOST_DEPTH {
            return Err(Wrong::new("nested deeper than 64, or a mark without end"));
        }
        self.marks.push(self.stack.len());
        match self.stack.last() {
            Some(Value::EmptyDict(home)) if *home != Home::CLOSED => self.plain_dict(*home),
            Some(Value::EmptyList(home)) => self.list_of_frames(*home),
            _ => Ok(()),
        }
    }

    fn text(&mut self, length: u64) -> Result<(), Wrong> {
        let length = self.feed.string(length, "a string")?;
        let text = self.tables.intern(self.feed.ready().get(..length).unwrap_or_default());
        self.feed.eat(length);
        self.push(Value::Text(text.ok_or_else(|| Wrong::new("more words than can be counted"))?))
    }

    fn bytes(&mut self, length: u64) -> Result<(), Wrong> {
        self.feed.pass(length, "a string of bytes")?;
        self.push(Value::Other(1, Home::CLOSED))
    }

    /// An integer of so many bytes, the lowest first; the highest bit is its sign.
    fn long(&mut self, length: u64) -> Result<(), Wrong> {
        if length > 9 {
            self.feed.pass(length, "an integer")?;
            return self.push(Value::Wide);
        }
        let length = self.feed.string(length, "an integer")?;
        let bytes = self.feed.ready().get(..length).unwrap_or_default();
        let negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
        let mut wide = [if negative { 0xff } else { 0 }; 16];
        wide.iter_mut().zip(bytes).for_each(|(byte, found)| *byte = *found);
        self.feed.eat(length);
        let number = i128::from_le_bytes(wide);
        self.push(match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => Value::Int(number),
            (_, Ok(number)) => Value::Large(number),
            _ => Value::Wide,
        })
    }

    fn stop(&mut self) -> Result<Ended, Wrong> {
        if !self.marks.is_empty() {
            return Err(Wrong::new("STOP within a list or a dict: a mark without end"));
        }
        let ([top], stopped) = (self.stack.as_slice(), self.feed.offset()) else {
            let values = self.stack.len();
            return Err(Wrong::new(format!(
                "STOP where {} values are left, not one",
                grouped(values as u64)
            )));
        };
        let top = *top;
        let after = self.feed.rest();
        if self.frame_end > stopped.saturating_add(after) {
            return Err(Wrong::new("a FRAME that reaches beyond the end of the file"));
        }
        Ok(Ended { top: self.close(top)?, after })
    }

    /// Why an opcode is not read.
    #[cold]
    fn refuse(&mut self, opcode: u8) -> Wrong {
        self.feed.uneat(); // the place of the fault is the opcode
        match opcode {
            op::INT | op::LONG | op::FLOAT => match self.feed.line() {
                Err(wrong) => wrong,
                Ok(()) => Wrong::new("a number in text, as only protocol 0 has it")
                    .mend("re-dump with `protocol=4`"),
            },
            op::GLOBAL => {
                self.feed.want(256);
                let line = self.feed.ready();
                let mut lines =
                    line.get(1..256.min(line.len())).unwrap_or_default().split(|byte| *byte == b'\n');
                let mut word = || String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
                let (module, name) = (word(), word());
                callable(&format!("{module}.{name}"), "GLOBAL")
            }
            op::STACK_GLOBAL => {
                let word = |value: &Value| match value {
                    Value::Text(text) => self.tables.texts().text(*text),
                    _ => "?".to_owned(),
                };
                let name = match self.stack.as_slice() {
                    [.., module, name] => format!("{}.{}", word(module), word(name)),
                    _ => "?".to_owned(),
                };
                callable(&name, "STACK_GLOBAL")
            }
            opcode => match op::refused(opcode) {
                Some((name, Why::Callable)) => Wrong::new(format!(
                    "the opcode {name} makes an object or calls something; a snapshot is data only"
                ))
                .mend(NEVER_LOAD),
                Some((name, Why::OutOfBand)) => Wrong::new(format!(
                    "the opcode {name} asks for out-of-band buffers, which are not in the file"
                ))
                .mend(DUMP),
                Some((name, Why::Unneeded)) => {
                    Wrong::new(format!("the opcode {name}, which no snapshot has")).mend(DUMP)
                }
                None => Wrong::damaged(format!("0x{opcode:02x} is no opcode")),
            },
        }
    }
}

fn callable(name: &str, opcode: &str) -> Wrong {
    let cause = format!("names a callable {} ({opcode}); a snapshot is data only", quoted(name));
    Wrong::new(cause).mend(match name.split('.').next() {
        Some("numpy") => {
            "convert numpy's numbers to int before dumping, and do not load this file with Python's pickle"
        }
        _ => NEVER_LOAD,
    })
}

const NEVER_LOAD: &str =
    "do not load this file with Python's pickle; write a snapshot with `torch.cuda.memory._dump_snapshot`";
const AGAIN: &str = "it was not written to its end: write the snapshot again";
