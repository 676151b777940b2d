//! What a run did hold: PyTorch's memory snapshots and profiler traces, read as data.

#![forbid(unsafe_code)]

mod elements;
pub mod oom_message;
pub mod timeline;
pub mod trace;
