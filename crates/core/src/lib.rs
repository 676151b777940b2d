//! The exact ledger of training memory.
//!
//! A training step is a timeline of [`Phase`]s, each cut into [`Moment`]s. Every piece of memory is a [`State`] with a
//! [`Category`], a size in [`Bytes`] and one or more [`Residency`]s: closed intervals of moments on a [`Device`]. The sum
//! over a moment is what sits on the device then; the largest sum is the peak, and what is resident there is its cause.
//!
//! ```
//! use peakledger_core::*;
//!
//! let timeline = Timeline::standard(); // load, forward, loss, backward, update, zero_grad
//! let state = |name: &str, category, mib: f64, start: u32, end: u32| State {
//!     name: name.into(),
//!     category,
//!     detail: None,
//!     bytes: Bytes::from_mib(mib).unwrap(),
//!     persistent: false,
//!     residencies: Residencies::One(Residency {
//!         device: Device::Gpu,
//!         start: Moment(start),
//!         end: Moment(end),
//!     }),
//! };
//! let ledger = Ledger::new(
//!     timeline,
//!     vec![
//!         state("parameters", Category::Parameter, 800.0, 0, 5),
//!         state("activations", Category::Activation, 300.0, 1, 3),
//!         state("gradients", Category::Gradient, 400.0, 3, 4),
//!     ],
//! )?;
//! let peak = ledger.peak();
//! assert_eq!(peak.slot.phase, Phase::Backward);
//! assert_eq!(peak.bytes, Bytes::from_mib(1500.0).unwrap());
//! assert_eq!(&*ledger.contributors(peak.moment)[1].state.name, "gradients");
//! # Ok::<(), LedgerError>(())
//! ```
//!
//! What holds: sizes are whole bytes and every sum is checked; a ledger is checked once, when it is made; ties go to the
//! earliest moment; sums cost residencies + moments ([`sweep`]), never their product. No I/O happens here.

#![forbid(unsafe_code)]

pub mod block;
mod bytes;
mod compare;
pub mod document;
mod error;
mod ledger;
mod state;
pub mod sweep;
mod text;
mod timeline;

pub use bytes::Bytes;
pub use compare::{Change, Comparison, Moved, compare};
pub use error::{LedgerError, LedgerErrorKind};
pub use ledger::{Active, Contributor, Ledger, Peak, StateId};
pub use state::{Category, Detail, Device, Residencies, Residency, State};
pub use sweep::{ByCategory, PhaseTotal};
pub use text::{counted, is_unprintable, printable};
pub use timeline::{Moment, Phase, Slot, Timeline};
