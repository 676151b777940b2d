//! The options of data parallel ranks: what DDP, FSDP2 and ZeRO are told.

use crate::parsers;
use crate::step_args::OwnDtypeArg;
use crate::values::values;
use clap::Args;
use peakledger_plan::parallel::{DataParallel, FsdpWrap, ZeroSizes};

/// Sizes of ZeRO are counted in numbers, as DeepSpeed's config has them.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Many GPUs")]
pub(crate) struct DataParallelArgs {
    /// Who wraps the model by FSDP2: what beside the layers is gathered by itself [default: accelerate]
    #[arg(long, value_enum, value_name = "NAME")]
    fsdp_wrap: Option<FsdpWrapArg>,
    /// The type in which FSDP reduces gradients [default: that of the parameters as they are kept]
    #[arg(long, value_enum, value_name = "TYPE")]
    reduce_dtype: Option<OwnDtypeArg>,
    /// Reduce gradients after each micro-batch, not after the last alone (accelerate's sync_each_batch)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = parsers::flag())]
    sync_each_batch: Option<bool>,
    /// Gradients lie in the buckets that DDP reduces (gradient_as_bucket_view)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = parsers::flag())]
    ddp_bucket_view: Option<bool>,
    /// Numbers of ZeRO's bucket of gradients (reduce_bucket_size) [default: 500000000]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::numbers)]
    zero_reduce_bucket_size: Option<u64>,
    /// ZeRO reduces a bucket while another is filled (overlap_comm) [default: in stage 3]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = parsers::flag())]
    zero_overlap_comm: Option<bool>,
    /// Numbers that ZeRO-3 fetches ahead of use (stage3_prefetch_bucket_size) [default: 50000000]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::numbers)]
    zero_prefetch_bucket_size: Option<u64>,
    /// ZeRO-3 keeps parameters of at most so many numbers whole (stage3_param_persistence_threshold) [default: 100000]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::numbers)]
    zero_param_persistence_threshold: Option<u64>,
    /// Numbers that ZeRO-3 gathers at once at most (stage3_max_live_parameters) [default: 1000000000]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::numbers)]
    zero_max_live_parameters: Option<u64>,
    /// Numbers of the parameters that ZeRO-3 steps together (sub_group_size) [default: 1000000000]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::numbers)]
    zero_sub_group_size: Option<u64>,
}

values!(FsdpWrapArg for FsdpWrap {
    Accelerate = "accelerate" | "torchtitan" => FsdpWrap::Accelerate,
    Accelerate113 = "accelerate-1.13" => FsdpWrap::Accelerate113,
    Verl = "verl" => FsdpWrap::Verl,
    Layers = "layers" => FsdpWrap::Layers,
});

impl DataParallelArgs {
    /// The plain request.
    pub(crate) fn data(&self) -> DataParallel {
        let default = DataParallel::default();
        let sizes = default.zero;
        DataParallel {
            reduce_dtype: self.reduce_dtype.and_then(Into::into),
            wrap: self.fsdp_wrap.map(Into::into),
            sync_each_batch: self.sync_each_batch.unwrap_or(default.sync_each_batch),
            ddp_bucket_view: self.ddp_bucket_view.unwrap_or(default.ddp_bucket_view),
            zero: ZeroSizes {
                reduce_bucket_size: self.zero_reduce_bucket_size.unwrap_or(sizes.reduce_bucket_size),
                overlap_comm: self.zero_overlap_comm.or(sizes.overlap_comm),
                prefetch_bucket_size: self.zero_prefetch_bucket_size.unwrap_or(sizes.prefetch_bucket_size),
                param_persistence_threshold: self
                    .zero_param_persistence_threshold
                    .unwrap_or(sizes.param_persistence_threshold),
                max_live_parameters: self.zero_max_live_parameters.unwrap_or(sizes.max_live_parameters),
                sub_group_size: self.zero_sub_group_size.unwrap_or(sizes.sub_group_size),
            },
        }
    }
}
