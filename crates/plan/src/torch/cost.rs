//! What ops cost beside the memory they take, counted as they run: FLOPs, bytes moved, bytes over the host link, bytes
//! between ranks.
//!
//! FLOPs are those of `torch/utils/flop_counter.py`: `2 · m · n · k` for a matrix product, 2 products for attention and 5
//! for its backward, whatever a mask leaves out, and nothing for other ops. Grouped products, which that table lacks, are
//! counted as the products they are. Bytes moved are the tensors that an op reads and those that it writes, once each.

use super::network::SentBytes;
use super::{Dtype, Tensor, Torch};
use peakledger_core::Device;
use std::cell::{Cell, RefCell};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

/// FLOPs by the type that is multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flops {
    /// In fp32.
    pub fp32: u128,
    /// In fp16.
    pub fp16: u128,
    /// In bf16.
    pub bf16: u128,
}

/// Bytes over the link between card and host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostBytes {
    /// From the card to the host.
    pub to_host: u128,
    /// From the host to the card.
    pub from_host: u128,
}

/// What a stretch of a step costs, apart from the memory it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// FLOPs of matrix products and of attention.
    pub flops: Flops,
    /// Those of them that are done a second time: what a checkpoint computes again in backward.
    pub recomputed: Flops,
    /// Bytes that matrix products and attention read and write on the card.
    pub product_bytes: u128,
    /// Bytes that all other ops read and write on the card.
    pub other_bytes: u128,
    /// Bytes over the host link.
    pub host: HostBytes,
    /// Bytes that this rank sends to other ranks.
    pub sent: SentBytes,
}

impl Flops {
    /// In all types together.
    pub fn total(&self) -> u128 {
        self.fp32.saturating_add(self.fp16).saturating_add(self.bf16)
    }

    fn add(&mut self, dtype: Dtype, flops: u128) {
        let slot = match dtype {
            Dtype::F16 => &mut self.fp16,
            Dtype::Bf16 => &mut self.bf16,
            _ => &mut self.fp32,
        };
        *slot = slot.saturating_add(flops);
    }

    fn zip(self, other: Flops, with: fn(u128, u128) -> u128) -> Flops {
        Flops {
            fp32: with(self.fp32, other.fp32),
            fp16: with(self.fp16, other.fp16),
            bf16: with(self.bf16, other.bf16),
        }
    }
}

impl Costs {
    /// Bytes that ops read and write on the card.
    pub fn bytes_moved(&self) -> u128 {
        self.product_bytes.saturating_add(self.other_bytes)
    }

    /// Bytes that this rank sends to other ranks, on its node and on others.
    pub fn communicated(&self) -> u128 {
        self.sent.total()
    }

    /// What of them a node has to itself.
    pub(crate) fn within_node(self) -> Costs {
        let sent = SentBytes { within_node: self.sent.within_node, ..SentBytes::default() };
        Costs { sent, ..self }
    }

    /// The same so many times.
    pub(crate) fn times(self, times: u32) -> Costs {
        let n = u128::from(times);
        let flops = Flops { fp32: n, fp16: n, bf16: n };
        let host = HostBytes { to_host: n, from_host: n };
        let sent = SentBytes { within_node: n, meanwhile: n, between_nodes: n };
        let all = Costs { flops, recomputed: flops, product_bytes: n, other_bytes: n, host, sent };
        self.zip(all, u128::saturating_mul)
    }

    fn zip(self, other: Costs, with: fn(u128, u128) -> u128) -> Costs {
        Costs {
            flops: self.flops.zip(other.flops, with),
            recomputed: self.recomputed.zip(other.recomputed, with),
            product_bytes: with(self.product_bytes, other.product_bytes),
            other_bytes: with(self.other_bytes, other.other_bytes),
            host: HostBytes {
                to_host: with(self.host.to_host, other.host.to_host),
                from_host: with(self.host.from_host, other.host.from_host),
            },
            sent: self.sent.zip(other.sent, with),
        }
    }
}

impl Add for Costs {
    type Output = Costs;

    fn add(self, other: Costs) -> Costs {
        self.zip(other, u128::saturating_add)
    }
}

impl AddAssign for Costs {
    fn add_assign(&mut self, other: Costs) {
        *self = *self + other;
    }
}

impl Sub for Costs {
    type Output = Costs;

    fn sub(self, part: Costs) -> Costs {
        self.zip(part, u128::saturating_sub)
    }
}

impl Sum for Costs {
    fn sum<I: Iterator<Item = Costs>>(costs: I) -> Costs {
        costs.fold(Costs::default(), Add::add)
    }
}

/// The counters of a session.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) costs: RefCell<Costs>,
    /// Whether the running op is a product.
    pub(super) product: Cell<bool>,
    /// Whether a checkpoint runs its block again.
    recomputing: Cell<bool>,
}

impl Torch {
    /// What was counted since it was asked for last.
    pub(super) fn take_costs(&self) -> Costs {
        self.tally.costs.take()
    }

    /// What was counted since it was taken last.
    pub(crate) fn costs_so_far(&self) -> Costs {
        *self.tally.costs.borrow()
    }

    /// Says whether what runs now runs a second time, and gives back what was said before.
    pub(crate) fn recomputing(&self, again: bool) -> bool {
        self.tally.recomputing.replace(again)
    }

    /// Whether what runs now runs a second time.
    pub(crate) fn is_recomputing(&self) -> bool {
        self.tally.recomputing.get()
    }

    /// The running op multiplies and adds that often, in that type.
    pub(crate) fn multiplies(&self, flops: u128, dtype: Dtype) {
        if self.halted.get() || self.device.get() == Device::Cpu {
            return;
        }
        self.tally.product.set(true);
        let mut costs = self.tally.costs.borrow_mut();
        costs.flops.add(dtype, flops);
        if self.tally.recomputing.get() {
            costs.recomputed.add(dtype, flops);
        }
    }

    /// The running op reads or writes so many bytes. What runs on the host moves nothing on the card.
    pub(crate) fn moves(&self, bytes: u64) {
        if self.halted.get() || self.device.get() == Device::Cpu {
            return;
        }
        let mut costs = self.tally.costs.borrow_mut();
        let slot = if self.tally.product.get() { &mut costs.product_bytes } else { &mut costs.other_bytes };
        *slot = slot.saturating_add(u128::from(bytes));
    }

    /// The running op reads these tensors.
    pub(crate) fn reads(&self, tensors: &[&Tensor]) {
        for tensor in tensors {
            self.moves(tensor.bytes_seen());
        }
    }

    /// Bytes go from the card to the host.
    pub(crate) fn sends_to_host(&self, bytes: u64) {
        let mut costs = self.tally.costs.borrow_mut();
        costs.host.to_host = costs.host.to_host.saturating_add(u128::from(bytes));
    }

    /// Bytes come from the host to the card.
    pub(crate) fn fetches_from_host(&self, bytes: u64) {
        let mut costs = self.tally.costs.borrow_mut();
        costs.host.from_host = costs.host.from_host.saturating_add(u128::from(bytes));
    }
}

/// The FLOPs of a product with that many elements, each a sum over `inner`.
pub(crate) fn product_flops(elements: u64, inner: u64) -> u128 {
    (u128::from(elements) * u128::from(inner)).saturating_mul(2)
}
