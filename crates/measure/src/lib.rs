//! What a run did hold: PyTorch's memory snapshots, read as data.
//!
//! [`content`] says what a file is; [`snapshot::read`] turns a pickle into columns, and runs nothing that it names. A
//! [`History`] is the past of one device: what was there before the first event, and the sums that no replay needs. A
//! [`Replay`] steps through it with the bytes of every block. [`Measurement`] has the figures of all devices, and
//! [`MeasuredLedger`] makes one a ledger, which stands beside a planned one.
//!
//! For a model of the allocator, a history has all that it starts from: the segments and blocks before the first event
//! ([`Opening`]), then the events in order, and the settings.
//!
//! ```
//! use peakledger_input::Binary;
//! use peakledger_measure::snapshot::{Action, Options, read};
//! use peakledger_measure::{History, Measurement, Scope};
//!
//! // {"segments": [], "device_traces": [[{"action": "segment_alloc", "addr": 512, "size": 2097152},
//! //                                     {"action": "alloc", "addr": 512, "size": 700}]]}
//! let bytes = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](](}(\x8c\x06action\x94\x8c\x0dsegment_alloc\
//!     \x8c\x04addr\x94M\x00\x02\x8c\x04size\x94J\x00\x00\x20\x00u}(h\x00\x8c\x05alloch\x01M\x00\x02h\x02M\xbc\x02ueeu.";
//! let mut file = Binary::from_bytes("snapshot.pickle", bytes.to_vec())?;
//! let snapshot = read(&mut file, Options::default(), &mut |_bytes_read| {})?;
//!
//! let history = History::of(&snapshot, 0).unwrap();
//! assert!(history.opening.segments.is_empty() && history.opening.blocks.is_empty());
//! let events: Vec<(Action, u64, u64)> = snapshot
//!     .events
//!     .between(history.events.clone())
//!     .map(|event| (event.action, event.addr, event.size))
//!     .collect();
//! assert_eq!(events, [(Action::SegmentAlloc, 512, 2 << 20), (Action::Alloc, 512, 700)]);
//! assert_eq!(snapshot.settings.cut.max_split_size, u64::MAX);
//!
//! let measurement = Measurement::of(file.name(), &snapshot, &Scope::default())?;
//! let device = measurement.largest().unwrap();
//! assert_eq!((device.requested.peak, device.allocated.peak), (700, 1024));
//! # Ok::<(), peakledger_input::Problem>(())
//! ```

#![forbid(unsafe_code)]

mod category;
mod content;
mod cut;
mod device;
mod elements;
mod end;
mod groups;
mod history;
mod in_use;
mod ledger;
mod levels;
mod maker;
mod mapped;
mod measurement;
mod names;
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

pub use category::{Kind, UNTOLD, kinds};
pub use content::{Content, content};
pub use device::{DeviceMeasurement, live_after};
pub use end::{EndState, Holding};
pub use groups::{Group, by_owner, by_stack};
pub use history::{Agreement, Curve, History, Opening, OpeningBlock, TooLarge};
pub use ledger::{MOST_BLOCKS, MeasuredLedger, NoLedger};
pub use levels::{Level, Levels};
pub use mapped::{Mapped, Run};
pub use measurement::{Measurement, Scope};
pub use names::RangeNames;
pub use notes::Notes;
pub use oom::Oom;
pub use phases::{Span, ToldBy, spans};
pub use replay::{Change, Live, Replay};
pub use user::{Owner, UserLines};
