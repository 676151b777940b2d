//! Data parallel ranks: each runs the same step on another batch, and parameters, gradients and optimizer state are copied to
//! all of them, or shared out among them.

mod ahead;
mod check;
mod communication;
mod ddp;
mod fetching;
mod flat;
mod forward_only;
mod fsdp;
mod gathered;
mod groups;
pub(crate) mod leaving;
mod norm;
mod of_parts;
pub(crate) mod parts;
mod tracing;
mod words;
mod zero;
mod zero3;

pub(crate) use ahead::layers_ahead;
pub(crate) use forward_only::{ForwardOnly, Way};
pub(crate) use gathered::{GATHERED, own_rows};
pub(crate) use groups::Ranks as ShardRanks;
pub(crate) use words::rule as buffer_rule;

use crate::nn::{Parameter, Spread};
use crate::optim::of_the_part;
use crate::options::Options;
use crate::parallel::{Sharding, Stack};
use crate::torch::Dtype;
use crate::torch::Torch;
use crate::torch::autograd::Leaf;
use crate::torch::hooks::ModuleHooks;
use ddp::Ddp;
use fsdp::Fsdp;
use of_parts::OfParts;
use peakledger_input::Problem;
use std::rc::Rc;
use zero::Zero;
use zero3::Zero3;

/// Hooks that have ranks share a step out, and what the optimizer steps then.
type SharedOut = (Rc<dyn ModuleHooks>, Vec<Parameter>);

/// Has data parallel ranks share out a model's parameters as they are told; nothing where there is one rank that is told
/// nothing.
///
/// # Errors
/// Names what the strategy does not take.
pub(crate) fn shared_out(
    torch: &Rc<Torch>,
    options: &Options,
    parameters: &[Parameter],
) -> Result<Option<SharedOut>, Problem> {
    let mesh = options.mesh()?;
    let shared: SharedOut = match options.parallel.sharding {
        _ if options.stack != Stack::Transformers => return Ok(None),
        Sharding::Replicated if mesh.replicas() == 1 => return Ok(None),
        Sharding::Replicated => part_by_part(parameters, |parameters| {
            let ddp = Ddp::new(torch, &options.parallel.data, mesh.replica_peers(), parameters);
            Ok((ddp, parameters.iter().cloned().map(Parameter::plain).collect()))
        })?,
        Sharding::FullShard | Sharding::ShardGradOp | Sharding::HybridShard => {
            part_by_part(parameters, |parameters| {
                let (fsdp, shards) = Fsdp::new(torch, options, &mesh, parameters.to_vec())?;
                Ok((fsdp, shards))
            })?
        }
        Sharding::Zero1 | Sharding::Zero2 => {
            let (zero, parts) = Zero::new(torch, options, &mesh, parameters);
            (zero, parts)
        }
        Sharding::Zero3 => {
            let (zero, parts) = Zero3::new(torch, options, &mesh, parameters.to_vec());
            (zero, parts)
        }
    };
    Ok(Some(shared))
}

/// Each part of a pipeline stage is wrapped by itself, and what the optimizer steps is that of all of them.
fn part_by_part(
    parameters: &[Parameter],
    wrapped: impl Fn(&[Parameter]) -> Result<SharedOut, Problem>,
) -> Result<SharedOut, Problem> {
    let parts = parameters.chunk_by(|one, next| one.part_of_stage == next.part_of_stage);
    let wrapped: Vec<SharedOut> = parts.map(wrapped).collect::<Result<_, _>>()?;
    let (hooks, stepped): (Vec<_>, Vec<_>) = wrapped.into_iter().unzip();
    match OfParts::joined(hooks) {
        Some(hooks) => Ok((hooks, stepped.concat())),
        None => unreachable!("a model without parameters"),
    }
}

/// A gradient that has come for a plain tensor which is the rank's tensor parallel part: it is made that part's
/// (`_FromTorchTensor.backward`, `torch/distributed/tensor/_api.py`).
fn localize(leaf: &Leaf, parameter: &Parameter) {
    let grad = leaf.grad.borrow().clone();
    if let Some(part) = grad.and_then(|grad| of_the_part(parameter, &grad)) {
        *leaf.grad.borrow_mut() = Some(part);
    }
}

/// What data parallel ranks are told beside how many they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataParallel {
    /// The type in which gradients are reduced; without one, that of the parameters as they are kept (FSDP2's
    /// `MixedPrecisionPolicy.reduce_dtype`).
    pub reduce_dtype: Option<Dtype>,
    /// Who wraps the model by FSDP2; without a word, who runs the step: accelerate, but verl for PPO.
    pub wrap: Option<FsdpWrap>,
    /// Whether gradients are reduced after each micro-batch, not after the last alone (accelerate's `sync_each_batch`).
    pub sync_each_batch: bool,
    /// Whether gradients lie in the buckets that DDP reduces (`gradient_as_bucket_view`).
    pub ddp_bucket_view: bool,
    /// Sizes of DeepSpeed's ZeRO.
    pub zero: ZeroSizes,
}

/// Who wraps a model by FSDP2, which decides what beside the decoder layers is gathered by itself and what stays whole from
/// forward to backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsdpWrap {
    /// Accelerate since 1.14 (`fsdp2_prepare_model`, `accelerate/utils/fsdp_utils.py`) and torchtitan (`apply_fsdp`): the
    /// embedding by itself; the last norm with the head, which stay whole; all three together where the head is the embedding.
    #[default]
    Accelerate,
    /// Accelerate up to 1.13: all that is in no decoder layer with the model, and as little whole as the layers.
    Accelerate113,
    /// verl (`apply_fsdp2`, `verl/utils/fsdp_utils.py`): the embedding by itself, unless it is the head; the rest with the
    /// model, and as little whole as the layers.
    Verl,
    /// `fully_shard` of each decoder layer, and then of the model, as torch's tutorials have it: all that is in no layer with
    /// the model, which stays whole from forward to backward, as FSDP1's root does too.
    Layers,
}

impl FsdpWrap {
    /// Whether the model itself is told to reshard after forward, which torch would not have it do.
    pub(crate) fn reshards_root(self) -> bool {
        matches!(self, FsdpWrap::Accelerate113 | FsdpWrap::Verl)
    }
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
    /// Parameters of at most so many numbers are never shared out (stage 3).
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

impl ZeroSizes {
    /// Whether stage 3 gathers and reduces on streams of their own (`overlap_comm_valid`, `deepspeed/runtime/zero/config.py`).
    pub(crate) fn overlaps_in_stage_3(&self) -> bool {
        self.overlap_comm != Some(false)
    }
}

impl Options {
    /// Whether DeepSpeed runs the step: on Megatron's modules stage 1 is Megatron's own.
    pub(crate) fn is_deepspeed(&self) -> bool {
        self.parallel.sharding.is_zero() && self.stack == Stack::Transformers
    }

    /// The type that autocast computes in, where it runs: who gathers parameters casts them instead.
    pub(crate) fn autocast(&self) -> Option<Dtype> {
        self.precision.autocast().filter(|_| !self.parallel.sharding.is_fsdp() && !self.is_deepspeed())
    }

    /// Ranks that FSDP2 shares a parameter of that spread out over.
    pub(crate) fn shards(&self, spread: Spread) -> u32 {
        let is_sharded = self.parallel.sharding.is_fsdp() && self.stack == Stack::Transformers;
        let Some(mesh) = self.mesh().ok().filter(|_| is_sharded) else { return 1 };
        match spread {
            Spread::Experts => mesh.shards_of_experts(&self.parallel),
            Spread::None | Spread::Tensor => mesh.shards(&self.parallel),
        }
    }

    /// The type that parameters are kept in by the precision alone: DeepSpeed has the model itself in the half type.
    pub(crate) fn implied(&self) -> Dtype {
        let half = self.precision.autocast().filter(|_| self.is_deepspeed());
        half.unwrap_or(self.precision.weights())
    }

    /// The type of adapters that are asked for in that type: DeepSpeed casts the whole model.
    pub(crate) fn adapters(&self, asked: Dtype) -> Dtype {
        if self.is_deepspeed() { self.implied() } else { asked }
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
