//! What a run did hold: PyTorch's memory snapshots and profiler traces, read as data.

#![forbid(unsafe_code)]

pub mod oom_message;
