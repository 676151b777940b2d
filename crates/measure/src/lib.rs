//! What a run did hold: PyTorch's memory snapshots and profiler traces, read as data.

#![forbid(unsafe_code)]

mod device;
mod end;
mod history;
mod mapped;
mod notes;
mod oom;
mod pickle;
mod replay;
pub mod snapshot;
mod user;

pub use device::{DeviceMeasurement, live_after};
pub use end::{EndState, Holding};
pub use history::{Agreement, Curve, History, Opening, OpeningBlock, TooLarge};
pub use mapped::{Mapped, Run};
pub use notes::Notes;
pub use oom::Oom;
pub use replay::{Change, Live, Replay};
pub use user::{Owner, UserLines};
