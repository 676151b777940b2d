//! A `CUDA out of memory` message as people paste it: its figures, and what they mean.
//!
//! Every wording since 2018 is read, of the caching allocator and of `cudaMallocAsync`, in a whole log or alone: broken over
//! lines, after `[rank0]:`, several of them. PyTorch writes its figures with two digits after the point, so each
//! [`Rounded`] says how far off it may be. Sources: `c10/cuda/CUDACachingAllocator.cpp` (`DeviceCachingAllocator::malloc`,
//! `reportProcessMemoryInfo`, `format_size`) and `c10/cuda/CUDAMallocAsyncAllocator.cpp` (`mallocAsync`), 1.0 to 2.15.
//!
//! ```
//! use peakledger_measure::oom_message::{Cause, read};
//! use peakledger_input::Source;
//!
//! let text = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.33 GiB of which 1.00 GiB is \
//!             free. Of the allocated memory 45.00 GiB is allocated by PyTorch, and 30.00 GiB is reserved by PyTorch but \
//!             unallocated.";
//! let messages = read(&Source::from_text("log", text))?;
//! assert_eq!(messages[0].explain().cause, Cause::Fragmented);
//! # Ok::<(), peakledger_input::Problem>(())
//! ```

mod explain;
mod figures;
mod parse;

pub use explain::{Cause, Explanation};
pub use figures::Rounded;
pub use parse::{OOM_TEXT_LIMIT, read};

/// What one message says. A figure that it does not tell is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomMessage {
    /// The line of the text in which it begins, from 1.
    pub line: usize,
    /// How often the text repeats it word for word.
    pub times: usize,
    /// The process that says it, from `[rank3]:` before it.
    pub rank: Option<u32>,
    /// Which allocator says it.
    pub allocator: Allocator,
    /// The card's number as the process counts.
    pub device: Option<u32>,
    /// What the allocator asked the device for: the request rounded up to a segment. `None`: more than 1 EB.
    pub asked: Option<Rounded>,
    /// The card's memory.
    pub capacity: Option<Rounded>,
    /// What the device had left.
    pub free: Option<Rounded>,
    /// What was handed out to tensors.
    pub allocated: Option<Rounded>,
    /// The part of `allocated` that lies unused in private pools (CUDA graphs): no tensor holds it.
    pub private_pools: Option<Rounded>,
    /// What the allocator holds and nobody uses.
    pub unallocated: Option<Rounded>,
    /// What the whole process holds on the device, with what is outside of PyTorch.
    pub this_process: Option<Rounded>,
    /// What other processes hold. In a container PyTorch does not know its own number, and counts itself among them.
    pub processes: Vec<Process>,
    /// What `set_per_process_memory_fraction` allows.
    pub limit: Option<Rounded>,
}

/// Who says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocator {
    /// PyTorch's caching allocator (`native`).
    Caching,
    /// The driver's pool (`backend:cudaMallocAsync`).
    CudaMallocAsync,
}

impl Allocator {
    /// The name of the option `backend` of `PYTORCH_CUDA_ALLOC_CONF`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Allocator::Caching => "native",
            Allocator::CudaMallocAsync => "cudaMallocAsync",
        }
    }
}

/// A process and what it holds on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u64,
    /// What it holds, where the driver tells.
    pub bytes: Option<Rounded>,
}
