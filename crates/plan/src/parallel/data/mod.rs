//! Data parallel ranks: each runs the same step on another batch, and parameters, gradients and optimizer state are copied to
//! all of them, or shared out among them.

mod check;
mod communication;
mod ddp;
mod fsdp;
mod gathered;
mod zero;

pub(crate) use ddp::Ddp;
pub(crate) use fsdp::Fsdp;
pub(crate) use zero::Zero;

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
    /// Whether gradients lie in the buckets that DDP reduces (`gradient_as_bucket_view`).
    pub ddp_bucket_view: bool,
    /// Sizes of DeepSpeed's ZeRO.
    pub zero: ZeroSizes,
}

/// The sizes of DeepSpeed's `zero_optimization` that change what is allocated, by its names and with its defaults; all in
/// numbers, not bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroSizes {
    /// Numbers of a bucket of gradients.
    pub reduce_bucket_size: u64,
    /// Whether a bucket is reduced while another is filled; without a word, in stage 3 alone.
    pub overlap_comm: Option<bool>,
    /// Numbers that are fetched ahead of use (stage 3).
    pub prefetch_bucket_size: u64,
    /// Parameters of fewer numbers are never shared out (stage 3).
    pub param_persistence_threshold: u64,
    /// Numbers that are gathered at once at most (stage 3).
    pub max_live_parameters: u64,
    /// Numbers of parameters that are stepped together (stage 3).
    pub sub_group_size: u64,
}

impl Default for ZeroSizes {
    fn default() -> ZeroSizes {
        ZeroSizes {
            reduce_bucket_size: 500_000_000,
            overlap_comm: None,
            prefetch_bucket_size: 50_000_000,
            param_persistence_threshold: 100_000,
            max_live_parameters: 1_000_000_000,
            sub_group_size: 1_000_000_000,
        }
    }
}

impl Options {
    /// The type that autocast computes in, where it runs: who gathers parameters casts them instead.
    pub(crate) fn autocast(&self) -> Option<Dtype> {
        self.precision
            .autocast()
            .filter(|_| !self.parallel.sharding.is_fsdp() && !self.parallel.sharding.is_zero())
    }

    /// The type that parameters are kept in by the precision alone: DeepSpeed has the model itself in the half type.
    pub(crate) fn implied(&self) -> Dtype {
        let half = self.precision.autocast().filter(|_| self.parallel.sharding.is_zero());
        half.unwrap_or(self.precision.weights())
    }

    /// The type of the partition that DeepSpeed steps: fp32, unless the precision has no fp32 at all
    /// (`bf16_master_weights_and_grads`).
    pub(crate) fn stepped_in(&self) -> Dtype {
        self.precision.weights()
    }

    /// The type that parameters are gathered in, where it is another than they are kept in.
    pub(crate) fn gathered(&self) -> Option<Dtype> {
        self.precision.autocast().filter(|_| self.parallel.sharding.is_fsdp())
    }
}
