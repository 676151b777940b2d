//! The CUDA caching allocator of PyTorch as an exact model: requests in, segments, blocks and addresses out.
//!
//! An [`Allocator`] stands between a program, which asks for bytes and gives them back, and a [`Device`], which it asks
//! for whole segments. What it does in between decides what torch reports as reserved, and when a step runs out of memory
//! though enough is free. Nothing here is a guess: the same requests in the same order, with the same settings, give the
//! same segments at the same addresses as torch's.
//!
//! ```
//! use peakledger_allocator::{Allocator, Card, Request};
//!
//! const MIB: u64 = 1 << 20;
//! let settings = "max_split_size_mb:128,garbage_collection_threshold:0.8".parse()?;
//! let mut allocator = Allocator::new(settings, Card::unlimited());
//! let activation = allocator.alloc(Request::of(3 * MIB)).unwrap();
//! assert_eq!(allocator.totals().allocated, 3 * MIB);
//! assert_eq!(allocator.totals().reserved, 20 * MIB, "a segment of 20 MiB, of which 17 are free");
//! allocator.free(activation);
//! assert_eq!(allocator.totals().reserved, 20 * MIB, "kept for the next request");
//! allocator.empty_cache();
//! assert_eq!(allocator.totals().reserved, 0);
//! # Ok::<(), peakledger_input::Problem>(())
//! ```
//!
//! Source: `c10/cuda/CUDACachingAllocator.cpp` (`DeviceCachingAllocator`), `c10/core/AllocatorConfig.cpp` and
//! `c10/cuda/CUDAAllocatorConfig.cpp` of PyTorch, as of 2.9. What cannot be known from requests is not modelled: when the
//! work of other streams on a block has finished (a caller says so, [`Allocator::free_completed`]), and where the driver
//! places a segment (a device says so).

#![forbid(unsafe_code)]

mod allocator;
mod blocks;
mod device;
mod expandable;
mod free;
mod lists;
mod oom;
mod release;
mod runs;
mod segments;
mod settings;
mod totals;

pub use allocator::{Allocation, Allocator, MempoolId, Placed, Request, Stream};
pub use device::{Card, Device, Placing};
pub use oom::OutOfMemory;
pub use segments::{Held, Piece, Segment};
pub use settings::Settings;
pub use totals::Totals;
