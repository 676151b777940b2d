//! A parameter that ranks share out by its rows, and what of it lies where.

use crate::nn::Parameter;
use crate::torch::tape::{Role, rounded};
use crate::torch::{Dtype, Layout, Tensor};
use peakledger_core::Category;
use std::ops::Deref;

/// A parameter shared out over its first dimension. Each rank's shard has as many rows as the first's, padded at the end
/// (`_init_sharded_param`, `torch/distributed/fsdp/_fully_shard/_fsdp_param.py`).
pub(super) struct Sharded {
    parameter: Parameter,
    /// The type that it is kept in.
    pub(super) kept: Dtype,
    /// Numbers of a shard with its padding.
    padded: u64,
    /// The rows that are this rank's own.
    own: Layout,
}

/// The rows that are a rank's own, of so many ranks: as many as the first's, but for the last of them.
pub(crate) fn own_rows(rows: u64, ranks: u64, rank: u64) -> u64 {
    let chunk = rows.div_ceil(ranks);
    rows.saturating_sub(chunk.saturating_mul(rank)).min(chunk)
}

impl Deref for Sharded {
    type Target = Parameter;

    fn deref(&self) -> &Parameter {
        &self.parameter
    }
}

impl Sharded {
    /// Makes what lies on the device between steps this rank's shard. The parameter goes on as a tensor of its whole size,
    /// for the ops that use it while it is gathered; but it takes no more than its shard.
    pub(super) fn new(parameter: Parameter, ranks: u32, rank: u32) -> Sharded {
        let (ranks, rank) = (u64::from(ranks), u64::from(rank));
        let sizes = parameter.tensor.sizes();
        let (rows, others) = match sizes.split_first() {
            Some((rows, others)) => (*rows, others),
            None => (1, sizes),
        };
        let width = others.iter().fold(1, |n: u64, size| n.saturating_mul(*size));
        let chunk = rows.div_ceil(ranks);
        let own: Vec<u64> =
            std::iter::once(own_rows(rows, ranks, rank)).chain(others.iter().copied()).collect();
        let (padded, kept) = (chunk.saturating_mul(width), parameter.kept);
        parameter.tensor.relabel(|stored| {
            stored.bytes = rounded(padded.saturating_mul(kept.width()));
            stored.dtype = kept;
        });
        Sharded { kept, padded, own: Layout::contiguous(&own), parameter }
    }

    /// The type that it is gathered in.
    pub(super) fn used(&self) -> Dtype {
        self.tensor.dtype()
    }

    /// Numbers that a rank sends of it.
    pub(super) fn shard_numbers(&self) -> u64 {
        self.padded
    }

    /// Bytes that a rank sends of it.
    pub(super) fn shard_bytes(&self) -> u64 {
        self.padded.saturating_mul(self.used().width())
    }

    /// This rank's shard, as an optimizer steps it.
    pub(super) fn shard(&self) -> Parameter {
        self.parameter.shard(self.own.clone())
    }

    /// Room for the whole of it, padding included: the running op puts it out.
    pub(super) fn whole(&self, ranks: u32) -> Tensor {
        let numbers = self.padded.saturating_mul(u64::from(ranks));
        let whole = self.tensor.torch().empty(Layout::contiguous(&[numbers]), self.used());
        whole.relabel(|stored| {
            (stored.category, stored.detail) = (Category::Parameter, None);
            stored.module = self.parameter.module;
            stored.role = Role::Of { parameter: self.parameter.id, state: GATHERED };
        });
        whole
    }
}

/// What a parameter is called while it is whole.
pub(crate) const GATHERED: &str = "gathered";
