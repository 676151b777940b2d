//! What a run did hold: PyTorch's memory snapshots and profiler traces, read as data.

#![forbid(unsafe_code)]

mod notes;
mod pickle;
pub mod snapshot;

pub use notes::Notes;
