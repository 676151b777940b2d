//! What the allocator holds, in bytes: the sums that explain the difference between requested and reserved.

/// The sums at one moment. They hold together:
///
/// `reserved = allocated + pending() + returnable + stuck()` and `allocated = requested + rounding + tails`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Asked for and not given back (torch's `requested_bytes` falls later, when a free is completed).
    pub requested: u64,
    /// Handed out and not given back, as `torch.cuda.memory_allocated` counts.
    pub allocated: u64,
    /// Allocated, and given back while other streams may still use it.
    pub active: u64,
    /// Held of the device, as `torch.cuda.memory_reserved` counts.
    pub reserved: u64,
    /// Free, and the device's again after `empty_cache`: wholly free segments and pages.
    pub returnable: u64,
    /// Added to requests by rounding them up.
    pub rounding: u64,
    /// Added to rounded requests because what was left of a block was too small to be cut off.
    pub tails: u64,
}

impl Totals {
    /// Given back while other streams may still use it.
    pub const fn pending(&self) -> u64 {
        self.active.saturating_sub(self.allocated)
    }

    /// Free and cached.
    pub const fn free(&self) -> u64 {
        self.reserved.saturating_sub(self.active)
    }

    /// Free, in segments and pages that are partly in use: the allocator cannot give it back, only hand it out.
    pub const fn stuck(&self) -> u64 {
        self.free().saturating_sub(self.returnable)
    }
}
