//! Data parallel ranks: each runs the same step on another batch, and parameters, gradients and optimizer state are copied to
//! all of them, or shared out among them.

mod fsdp;
mod gathered;

pub(crate) use fsdp::Fsdp;

use crate::options::Options;
use crate::torch::Dtype;

/// What data parallel ranks are told beside how many they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataParallel {
    /// The type in which gradients are reduced; without one, that of the parameters as they are kept (FSDP2's
    /// `MixedPrecisionPolicy.reduce_dtype`).
    pub reduce_dtype: Option<Dtype>,
    /// Whether gradients are reduced after each micro-batch, not after the last alone (accelerate's `sync_each_batch`).
    pub sync_each_batch: bool,
}

impl Options {
    /// The type that autocast computes in, where it runs: who gathers parameters casts them instead.
    pub(crate) fn autocast(&self) -> Option<Dtype> {
        self.precision.autocast().filter(|_| !self.parallel.sharding.is_fsdp())
    }

    /// The type that parameters are gathered in, where it is another than they are kept in.
    pub(crate) fn gathered(&self) -> Option<Dtype> {
        self.precision.autocast().filter(|_| self.parallel.sharding.is_fsdp())
    }
}
