//! From a finished dict to a row. Keys are read by name, in any order; those that are missing have torch's defaults.

use super::Annotation;
use super::PoolId;
use super::events::{Action, Event, Rare, StreamId};
use super::key::Key;
use super::segments::{Block, BlockState, Segment};
use super::stacks::{Frame, StackId};
use super::tables::{Past, Tables};
use super::texts::TextId;
use crate::pickle::{MOST_ROWS, Table, Value, Wrong};
use peakledger_core::block::Pool;

type Pairs = [(TextId, Value)];

/// The address of a block that has none of its own (before torch 2.1): its segment gives it one.
pub(super) const FOLLOWS: u64 = u64::MAX;
/// The highest number of a device.
pub(super) const MOST_DEVICES: u64 = 1024;

impl Tables {
    /// The row that a dict is, if it is one.
    pub(crate) fn row(&mut self, pairs: &Pairs) -> Result<Option<(Table, u32)>, Wrong> {
        let keys = match pairs.first() {
            // as torch writes an event
            Some((first, _)) if *first == Key::Action.id() => Key::Action.bit(),
            _ => pairs.iter().filter_map(|(key, _)| Key::of(*key)).fold(0, |set, key| set | key.bit()),
        };
        let has = |key: Key| keys & key.bit() != 0;
        let (table, row) = if has(Key::Action) {
            (Table::Event, self.event(pairs)?)
        } else if has(Key::Stage) {
            (Table::Annotation, self.annotation(pairs)?)
        } else if has(Key::TotalSize) || has(Key::Blocks) {
            (Table::Segment, self.segment(pairs)?)
        } else if has(Key::RealSize) {
            (Table::History, self.past(pairs)?)
        } else if has(Key::State) {
            (Table::Block, self.block(pairs)?)
        } else if has(Key::Filename) || has(Key::Line) {
            (Table::Frame, self.frame(pairs)?)
        } else {
            return Ok(None);
        };
        let row = row.filter(|row| *row < MOST_ROWS);
        Ok(Some((table, row.ok_or_else(|| Wrong::new("more entries than can be counted (2^28)"))?)))
    }

    fn event(&mut self, pairs: &Pairs) -> Result<Option<u32>, Wrong> {
        let (mut action, mut stream, mut stack) = (Action::Unknown, StreamId(0), StackId::NONE);
        let (mut addr, mut size, mut time_us) = (0, None, 0);
        let mut rare = Rare::default();
        let (mut streamed, mut addressed) = (false, false);
        for (key, value) in pairs {
            match Key::of(*key) {
                Some(Key::Action) => action = self.action(*value)?,
                Some(Key::Addr) => {
                    addr = self.bytes(*value, Key::Addr)?;
                    addressed = true;
                }
                Some(Key::Size) => size = Some(self.bytes(*value, Key::Size)?),
                Some(Key::Stream) => {
                    stream = self.stream_of(*value)?;
                    streamed = true;
                }
                Some(Key::TimeUs) => time_us = self.time(*value)?,
                Some(Key::Frames) => stack = self.frames_of(*value),
                Some(Key::UserMetadata) => rare.metadata = self.word(*value),
                Some(Key::PoolId | Key::SegmentPoolId) => rare.pool = Some(self.pool(*value)),
                Some(Key::DeviceFree) => rare.device_free = Some(self.bytes(*value, Key::DeviceFree)?),
                _ => {}
            }
        }
        if !streamed {
            stream = self.stream(0)?;
        }
        if !addressed && !matches!(action, Action::Oom | Action::Snapshot | Action::Unknown) {
            let event = self.events.len();
            self.notes.add("an event has no `addr`, which counts as 0,", || {
                format!("at event {event} of the file")
            });
        }
        let size = match size {
            Some(size) => size,
            None if matches!(action, Action::Unknown | Action::Annotate | Action::Snapshot) => 0,
            None => {
                return Err(
                    Wrong::damaged(format!("`{}` without a `size`", action.as_str())).of(Key::Size.id())
                );
            }
        };
        Ok(self.events.push(Event { action, addr, size, stream, time_us, stack }, rare))
    }

    fn action(&mut self, value: Value) -> Result<Action, Wrong> {
        let Value::Text(word) = value else {
            return Err(
                Wrong::damaged(format!("`action` is {}, not a string", value.kind())).of(Key::Action.id())
            );
        };
        let action = Action::named(self.texts.bytes(word));
        if action == Action::Unknown {
            let event = self.events.len();
            let said = format!("events of the unknown action `{}` are passed over", self.texts.text(word));
            self.notes.add(said, || format!("at event {event} of the file"));
        }
        Ok(action)
    }

    fn annotation(&mut self, pairs: &Pairs) -> Result<Option<u32>, Wrong> {
        let mut row = Annotation { start: false, name: Key::Name.id(), device: 0, time_us: 0 };
        for (key, value) in pairs {
            match (Key::of(*key), *value) {
                (Some(Key::Stage), Value::Text(word)) => row.start = self.texts.bytes(word) == b"START",
                (Some(Key::Name), Value::Text(word)) => row.name = word,
                (Some(Key::Device), value) => row.device = self.device(value)?,
                (Some(Key::TimeUs), value) => row.time_us = self.time(value)?,
                _ => {}
            }
        }
        self.annotations.push(row);
        Ok(u32::try_from(self.annotations.len() - 1).ok())
    }

    fn segment(&mut self, pairs: &Pairs) -> Result<Option<u32>, Wrong> {
        let mut row = Segment {
            device: 0,
            address: 0,
            size: 0,
            allocated: 0,
            active: 0,
            stream: StreamId(0),
            kind: Pool::Large,
            pool: PoolId(0),
            expandable: false,
            stack: StackId::NONE,
            blocks: 0..0,
        };
        let (mut allocated, mut active, mut kind, mut stream) = (None, None, None, None);
        for (key, value) in pairs {
            let value = *value;
            match Key::of(*key) {
                Some(Key::Device) => row.device = self.device(value)?,
                Some(Key::Address) => row.address = self.bytes(value, Key::Address)?,
                Some(Key::TotalSize) => row.size = self.bytes(value, Key::TotalSize)?,
                Some(Key::AllocatedSize) => allocated = Some(self.bytes(value, Key::AllocatedSize)?),
                Some(Key::ActiveSize) => active = Some(self.bytes(value, Key::ActiveSize)?),
                Some(Key::Stream) => stream = Some(self.stream_of(value)?),
                Some(Key::SegmentType) => {
                    if let Value::Text(word) = value {
                        kind =
                            Some(if self.texts.bytes(word) == b"small" { Pool::Small } else { Pool::Large });
                    }
                }
                Some(Key::SegmentPoolId) => row.pool = self.pool(value),
                Some(Key::IsExpandable) => row.expandable = matches!(value, Value::Bool(true)),
                Some(Key::Frames) => row.stack = self.frames_of(value),
                Some(Key::Blocks) => match value {
                    Value::Rows { table: Table::Block, start, len, .. } => row.blocks = start..start + len,
                    Value::EmptyList(_) => {}
                    value => {
                        let cause = format!("`blocks` is {}, not a list of blocks", value.kind());
                        return Err(Wrong::damaged(cause).of(Key::Blocks.id()));
                    }
                },
                _ => {}
            }
        }
        let (of_allocated, of_active) = self.place_blocks(&row);
        row.allocated = allocated.unwrap_or(of_allocated);
        row.active = active.unwrap_or(of_active);
        row.stream = match stream {
            Some(stream) => stream,
            None => self.stream(0)?,
        };
        row.kind = kind.unwrap_or_else(|| Segment::kind_of(row.size));
        self.segments.push(row);
        Ok(u32::try_from(self.segments.len() - 1).ok())
    }

    /// Gives blocks without an address the one after the block before, and sums up what is in use.
    fn place_blocks(&mut self, segment: &Segment) -> (u64, u64) {
        let range = segment.blocks.start as usize..segment.blocks.end as usize;
        let (mut next, mut allocated, mut active) = (segment.address, 0u64, 0u64);
        for block in self.blocks.get_mut(range).unwrap_or_default() {
            if block.address == FOLLOWS {
                block.address = next;
            }
            next = block.address.saturating_add(block.size);
            if block.state == BlockState::Allocated {
                allocated = allocated.saturating_add(block.size);
            }
            if block.state.is_active() {
                active = active.saturating_add(block.size);
            }
        }
        (allocated, active)
    }

    fn block(&mut self, pairs: &Pairs) -> Result<Option<u32>, Wrong> {
        let (mut address, mut size, mut requested) = (FOLLOWS, 0, None);
        let (mut state, mut stack) = (BlockState::Inactive, StackId::NONE);
        let mut past = None;
        for (key, value) in pairs {
            let value = *value;
            match Key::of(*key) {
                Some(Key::Address) => address = self.bytes(value, Key::Address)?,
                Some(Key::Size) => size = self.bytes(value, Key::Size)?,
                Some(Key::RequestedSize) => requested = Some(self.bytes(value, Key::RequestedSize)?),
                Some(Key::State) => {
                    let word = match value {
                        Value::Text(word) => word,
                        value => {
                            let cause = format!("`state` is {}, not a string", value.kind());
                            return Err(Wrong::damaged(cause).of(Key::State.id()));
                        }
                    };
                    let known = BlockState::named(self.texts.bytes(word));
                    if known.is_none() {
                        let said = format!(
                            "blocks of the unknown state `{}` count as inactive",
                            self.texts.text(word)
                        );
                        self.notes.say(said);
                    }
                    state = known.unwrap_or(BlockState::Inactive);
                }
                Some(Key::Frames) => stack = self.frames_of(value),
                Some(Key::History) => {
                    if let Value::Rows { table: Table::History, start, len, .. } = value {
                        let last = (start + len).saturating_sub(1) as usize;
                        past = self.past.get(last).copied();
                    }
                }
                _ => {}
            }
        }
        if let Some(past) = past {
            requested = requested.or(Some(past.size));
            if stack == StackId::NONE {
                stack = past.stack;
            }
        }
        let requested = match requested {
            Some(requested) if requested > size && state.is_active() => {
                self.notes.say("blocks that are smaller than what was asked for count as asked for");
                requested
            }
            Some(requested) => requested,
            None => {
                if state.is_active() {
                    self.notes.say("blocks without `requested_size` count as asked for whole");
                }
                size
            }
        };
        self.blocks.push(Block { address, size, requested, state, stack });
        Ok(u32::try_from(self.blocks.len() - 1).ok())
    }

    fn past(&mut self, pairs: &Pairs) -> Result<Option<u32>, Wrong> {
        let mut row = Past { size: 0, stack: StackId::NONE };
        for (key, value) in pairs {
            match Key::of(*key) {
                Some(Key::RealSize) => row.size = self.bytes(*value, Key::RealSize)?,
                Some(Key::Frames) => row.stack = self.frames_of(*value),
                _ => {}
            }
        }
        self.past.push(row);
        Ok(u32::try_from(self.past.len() - 1).ok())
    }

    fn frame(&mut self, pairs: &Pairs) -> Result<Option<u32>, Wrong> {
        let mut frame = Frame { file: None, name: None, line: None };
        for (key, value) in pairs {
            match (Key::of(*key), *value) {
                (Some(Key::Filename), Value::Text(word)) => frame.file = Some(word),
                (Some(Key::Name), Value::Text(word)) => frame.name = Some(word),
                (Some(Key::Line), Value::Int(line)) => frame.line = u64::try_from(line).ok(),
                (Some(Key::Line), Value::Large(line)) => frame.line = Some(line),
                _ => {}
            }
        }
        if frame.file.is_none() || frame.line.is_none() {
            self.notes.say("frames without a file or a line are shown with `?`");
        }
        Ok(self.stacks.frame_of(frame).map(|frame| frame.0))
    }
}
