//! What a run did hold: PyTorch's memory snapshots and profiler traces, read as data.

#![forbid(unsafe_code)]

mod category;
mod content;
mod device;
mod elements;
mod end;
mod groups;
mod history;
mod ledger;
mod mapped;
mod measurement;
mod notes;
mod oom;
pub mod oom_message;
mod phases;
mod pickle;
mod replay;
pub mod snapshot;
pub mod timeline;
pub mod trace;
mod user;

pub use category::UNTOLD;
pub use content::{Content, content};
pub use device::{DeviceMeasurement, live_after};
pub use end::{EndState, Holding};
pub use groups::{Group, by_owner, by_stack};
pub use history::{Agreement, Curve, History, Opening, OpeningBlock, TooLarge};
pub use ledger::{MOST_BLOCKS, MeasuredLedger, NoLedger};
pub use mapped::{Mapped, Run};
pub use measurement::{Measurement, Scope};
pub use notes::Notes;
pub use oom::Oom;
pub use phases::{PhaseNames, Span, spans};
pub use replay::{Change, Live, Replay};
pub use user::{Owner, UserLines};
