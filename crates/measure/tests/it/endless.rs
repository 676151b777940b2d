//! A snapshot of as many events as are asked for, written while it is read, so that no more than a step of it is there at
//! once. It has the sharing of real ones: frames once each, a list of 32 for each allocation and for both events of a
//! free.

use crate::writer::Writer;
use std::io::{self, Read};

/// Layers that allocate, and free in the reverse order: three events each a step.
const LAYERS: u32 = 96;
/// Events of a step.
pub(crate) const STEP: u64 = 3 * LAYERS as u64;
/// The frames that there are.
const FRAMES: u32 = 701;
const BASE: i128 = 0x7f00_0000_0000;

/// The bytes of one layer's block; all are in use at the peak.
pub(crate) fn size(layer: u32) -> u64 {
    4_000_000 + u64::from(layer) * 512
}

/// The peak of the requested bytes of every step.
pub(crate) fn peak() -> u64 {
    (0..LAYERS).map(size).sum()
}

/// The file.
pub(crate) struct Endless {
    writer: Writer,
    /// How much of what was written is read.
    read: usize,
    /// Where the memo has each frame.
    frames: Vec<Option<u32>>,
    steps: u64,
    time: i128,
    begun: bool,
}

/// The list of a call's frames: a new one, or that of the event before.
#[derive(Clone, Copy)]
enum Stack {
    New(u32),
    Same(u32),
}

impl Endless {
    /// One of so many steps.
    pub(crate) fn new(steps: u64) -> Endless {
        let frames = vec![None; FRAMES as usize];
        let time = 1_780_000_000_000_000;
        Endless { writer: Writer::new(4), read: 0, frames, steps, time, begun: false }
    }

    fn put(&mut self, opcodes: &[u8]) {
        self.writer.out.extend(opcodes);
    }

    fn begin(&mut self) {
        self.put(b"\x80\x04}");
        self.writer.memoize();
        self.put(b"(");
        self.writer.text("segments");
        self.put(b"]");
        self.writer.memoize();
        self.writer.text("device_traces");
        for list in [b"]", b"]"] {
            self.put(list);
            self.writer.memoize();
        }
    }

    fn frame(&mut self, number: u32) {
        let known = self.frames[number as usize];
        if let Some(id) = known {
            return self.writer.get(id);
        }
        self.put(b"}");
        let id = self.writer.memoize();
        self.frames[number as usize] = Some(id);
        self.put(b"(");
        for (key, value) in
            [("name", "forward"), ("filename", "/env/lib/python3.12/site-packages/torch/nn/m.py")]
        {
            self.writer.text(key);
            self.writer.text(value);
        }
        self.writer.text("line");
        self.writer.int(number.into());
        self.put(b"u");
    }

    /// Writes an event. The place of its stack in the memo.
    fn event(&mut self, action: &str, addr: i128, size: u64, stack: Stack) -> u32 {
        self.time += 7;
        self.put(b"}");
        self.writer.memoize();
        self.put(b"(");
        self.writer.text("action");
        self.writer.text(action);
        for (key, number) in [("addr", addr), ("size", size.into()), ("stream", 0), ("time_us", self.time)] {
            self.writer.text(key);
            self.writer.int(number);
        }
        for (key, word) in [("compile_context", "N/A"), ("user_metadata", "")] {
            self.writer.text(key);
            self.writer.text(word);
        }
        self.writer.text("frames");
        let id = match stack {
            Stack::Same(id) => {
                self.writer.get(id);
                id
            }
            Stack::New(site) => {
                self.put(b"]");
                let id = self.writer.memoize();
                self.put(b"(");
                (0..32).for_each(|depth| self.frame((site * 7 + depth * 31) % FRAMES));
                self.put(b"e");
                id
            }
        };
        self.put(b"u");
        id
    }

    fn step(&mut self) {
        let addr = |layer: u32| BASE + (i128::from(layer) << 23);
        self.put(b"(");
        for layer in 0..LAYERS {
            self.event("alloc", addr(layer), size(layer), Stack::New(layer));
        }
        for layer in (0..LAYERS).rev() {
            let stack = self.event("free_requested", addr(layer), size(layer), Stack::New(layer + 200));
            self.event("free_completed", addr(layer), size(layer), Stack::Same(stack));
        }
        self.put(b"e");
    }
}

impl Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.read == self.writer.out.len() {
            self.writer.out.clear();
            self.read = 0;
            if !std::mem::replace(&mut self.begun, true) {
                self.begin();
            } else if self.steps > 0 {
                self.steps -= 1;
                self.step();
                if self.steps == 0 {
                    self.put(b"au."); // the trace into the list of traces, and that into the dict
                }
            }
        }
        let rest = &self.writer.out[self.read..];
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        self.read += length;
        Ok(length)
    }
}
