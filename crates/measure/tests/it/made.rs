//! Small traces, written event by event as the profiler writes them.

use peakledger_input::{Binary, Problem};
use peakledger_measure::trace::{Options, Trace, read};
use std::fmt::Write;

/// A trace that grows.
#[derive(Clone, Default)]
pub(crate) struct Made {
    events: Vec<String>,
    allocated: i64,
    /// Whether addresses and totals are written, as since torch 1.13.
    bare: bool,
}

impl Made {
    /// As torch wrote them in 2021.
    pub(crate) fn bare() -> Made {
        Made { bare: true, ..Made::default() }
    }

    /// So many bytes on the first card before the recording.
    pub(crate) fn opening(bytes: i64) -> Made {
        Made { allocated: bytes, ..Made::default() }
    }

    pub(crate) fn range(mut self, category: &str, name: &str, from: u32, to: u32) -> Made {
        self.events.push(format!(
            r#"{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": 7, "tid": 7, "ts": {from}, "dur": {}}}"#,
            to - from
        ));
        self
    }

    /// Takes bytes on the first card at a time, or gives them back.
    pub(crate) fn cuda(mut self, time: u32, address: u64, bytes: i64) -> Made {
        self.allocated += bytes;
        let (allocated, reserved) = (self.allocated, self.allocated.max(0) + 512);
        let told =
            format!(r#", "Addr": {address}, "Total Allocated": {allocated}, "Total Reserved": {reserved}"#);
        let told = if self.bare { "" } else { &told };
        self.memory(time, 1, 0, bytes, told)
    }

    pub(crate) fn cpu(self, time: u32, address: u64, bytes: i64) -> Made {
        let told = if self.bare { String::new() } else { format!(r#", "Addr": {address}"#) };
        self.memory(time, 0, -1, bytes, &told)
    }

    pub(crate) fn memory(mut self, time: u32, kind: u8, id: i32, bytes: i64, more: &str) -> Made {
        self.events.push(format!(
            r#"{{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": "7", "ts": {time}.5, "args": {{"Device Type": {kind}, "Device Id": {id}, "Bytes": {bytes}{more}}}}}"#
        ));
        self
    }

    pub(crate) fn event(mut self, text: &str) -> Made {
        self.events.push(text.to_owned());
        self
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::from(
            "{\"schemaVersion\": 1, \"profile_memory\": 1, \"deviceProperties\": [{\"id\": 0, \"name\": \"Tesla V100\", \"totalGlobalMem\": 16945512448}],\n",
        );
        write!(text, "\"traceEvents\": [\n  {}\n], \"traceName\": \"x\"}}\n", self.events.join(",\n  "))
            .unwrap();
        text
    }

    pub(crate) fn read(&self) -> Trace {
        read_text(self.text()).unwrap_or_else(|problem| panic!("{problem}"))
    }
}

pub(crate) fn read_text(text: impl Into<Vec<u8>>) -> Result<Trace, Problem> {
    read_with(text, Options::default())
}

pub(crate) fn read_with(text: impl Into<Vec<u8>>, options: Options) -> Result<Trace, Problem> {
    read(&mut Binary::from_bytes("trace.json", text.into())?, &options, &mut |_| {})
}

/// A training step of two tensors, on the card and the machine, with every phase named.
pub(crate) fn step() -> Made {
    Made::opening(4096)
        .cpu(1, 0x10, 256)
        .cuda(2, 0x1000, 512) // the batch
        .range("user_annotation", "forward_phase", 10, 20)
        .range("python_function", "nn.Module: Linear_0", 11, 19)
        .range("cpu_op", "aten::addmm", 12, 18)
        .range("cpu_op", "aten::empty", 13, 14)
        .cuda(13, 0x2000, 2048)
        .cuda(15, 0x3000, 1024)
        .cuda(16, 0x3000, -1024)
        .range("cpu_op", "aten::cross_entropy_loss", 21, 24)
        .cuda(22, 0x4000, 512)
        .range("user_annotation", "backward_phase", 30, 40)
        .range("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 31, 39)
        .range("cpu_op", "aten::mm", 32, 38)
        .cuda(33, 0x5000, 4096)
        .cuda(35, 0x2000, -2048)
        .range("user_annotation", "Optimizer.step#AdamW.step", 50, 60)
        .cuda(52, 0x6000, 8192)
        .cuda(53, 0x7000, 1024)
        .cuda(54, 0x7000, -1024)
        .range("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad", 61, 63)
        .cuda(62, 0x5000, -4096)
        .cuda(64, 0x1000, -512)
        .cuda(65, 0x4000, -512)
}
