//! `DistributedDataParallel`: each rank has all parameters; gradients are copied into buckets as they are made, and the ranks
//! sum a bucket once it is full (`torch/csrc/distributed/c10d/reducer.cpp`).
//!
//! Buckets are filled in the order in which gradients came in the first backward. The first step has one bucket for each type
//! instead, of as many bytes but for what the allocator rounds up.

use super::communication;
use super::localize;
use crate::nn::Parameter;
use crate::parallel::data::DataParallel;
use crate::torch::autograd::Leaf;
use crate::torch::hooks::ModuleHooks;
use crate::torch::network::Peers;
use crate::torch::tape::rounded;
use crate::torch::{Dtype, Tensor, Torch};
use peakledger_core::Category;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The first bucket that is reduced is full at 1 MiB, the others at 25 MiB (`kDefaultFirstBucketBytes`,
/// `kDefaultBucketBytesCap`, `torch/csrc/distributed/c10d/reducer.hpp`).
const FIRST_BUCKET: u64 = 1 << 20;
const BUCKET: u64 = 25 << 20;

/// A gradient that has come: its layer, its bytes and its type.
type Arrived = (Option<usize>, (u64, Dtype));

/// The reducer.
pub(crate) struct Ddp {
    torch: Rc<Torch>,
    ranks: Peers,
    /// Places for buckets, as many as there can be; what is left over takes nothing.
    buckets: Vec<Tensor>,
    /// The gradients that have come, until the buckets are known.
    arrived: RefCell<Vec<Arrived>>,
    known: Cell<bool>,
    sync_each_batch: bool,
    /// Whether this micro-batch's gradients are reduced (`no_sync`).
    syncs: Cell<bool>,
    /// Whether gradients lie in the buckets (`gradient_as_bucket_view`).
    bucket_view: bool,
}

impl Ddp {
    /// Watches the gradients of a model.
    pub(crate) fn new(
        torch: &Rc<Torch>,
        data: &DataParallel,
        ranks: Peers,
        parameters: &[Parameter],
    ) -> Rc<Ddp> {
        let trained = || parameters.iter().filter(|parameter| parameter.leaf.is_some());
        let bytes = trained().fold(0, |sum: u64, parameter| sum.saturating_add(parameter.tensor.bytes()));
        let mut dtypes: Vec<Dtype> = trained().map(|parameter| parameter.tensor.dtype()).collect();
        dtypes.sort_unstable();
        dtypes.dedup();
        // all but the first and the last of a type hold 25 MiB or more
        let most = usize::try_from(bytes / BUCKET).unwrap_or(0).saturating_add(2 * dtypes.len());
        let places = (0..most.min(trained().count())).map(|_| {
            let category = match data.ddp_bucket_view {
                true => Category::Gradient,
                false => Category::CommunicationBuffer,
            };
            torch.place_named(0, Dtype::Byte, category, "gradient bucket")
        });
        let ddp = Rc::new(Ddp {
            torch: torch.clone(),
            ranks,
            buckets: places.collect(),
            arrived: RefCell::new(Vec::new()),
            known: Cell::new(false),
            sync_each_batch: data.sync_each_batch,
            syncs: Cell::new(true),
            bucket_view: data.ddp_bucket_view,
        });
        for parameter in trained() {
            let Some(leaf) = &parameter.leaf else { continue };
            let layer = torch.tape.borrow().layer(parameter.module).map(|layer| layer as usize);
            let (this, parameter) = (Rc::downgrade(&ddp), parameter.without_leaf());
            leaf.on_grad(move |leaf| {
                localize(leaf, &parameter);
                if let Some(this) = this.upgrade() {
                    this.ready(leaf, layer, &parameter.tensor);
                }
            });
        }
        ddp
    }

    /// A gradient is there (`mark_variable_ready_dense`): it is copied into its bucket, divided by the ranks, and goes where
    /// gradients lie in the buckets.
    fn ready(&self, leaf: &Leaf, layer: Option<usize>, parameter: &Tensor) {
        if !self.syncs.get() {
            return;
        }
        if !self.known.get() {
            self.arrived.borrow_mut().push((layer, (parameter.bytes(), parameter.dtype())));
        }
        self.torch.launch("mul.out");
        self.torch.moves(parameter.bytes().saturating_mul(2));
        if let Some(bucket) = self.buckets.first().filter(|_| self.bucket_view) {
            let view = bucket.shard(parameter.layout().clone(), parameter.dtype());
            *leaf.grad.borrow_mut() = Some(view);
        }
    }

    /// Lays the buckets out by the order in which gradients came (`compute_bucket_assignment_by_size`).
    fn lay_out(&self) {
        self.known.set(true);
        let arrived = self.torch.with_left_out(self.arrived.take());
        let mut full = Vec::new();
        let mut open: Vec<(Dtype, Vec<u64>, u64)> = Vec::new();
        for (_, (bytes, dtype)) in arrived {
            let at = open.iter().position(|(other, ..)| *other == dtype).unwrap_or(open.len());
            if at == open.len() {
                open.push((dtype, Vec::new(), FIRST_BUCKET));
            }
            let Some((_, parts, limit)) = open.get_mut(at) else { continue };
            parts.push(bytes);
            if parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part)) >= *limit {
                full.push((dtype, std::mem::take(parts)));
                *limit = BUCKET;
            }
        }
        full.extend(open.into_iter().map(|(dtype, parts, _)| (dtype, parts)).filter(|(_, p)| !p.is_empty()));
        for (bucket, (dtype, parts)) in self.buckets.iter().zip(full) {
            let bytes = parts.into_iter().fold(0, u64::saturating_add);
            bucket.relabel(|stored| (stored.bytes, stored.dtype) = (rounded(bytes), dtype));
        }
    }

    fn bytes(&self) -> u64 {
        let tape = self.torch.tape.borrow();
        let bytes = |bucket: &Tensor| tape.get(bucket.storage_id()).map_or(0, |stored| stored.bytes);
        self.buckets.iter().map(bytes).fold(0, u64::saturating_add)
    }
}

impl ModuleHooks for Ddp {
    fn begin(&self, is_last: bool) {
        self.syncs.set(is_last || self.sync_each_batch);
    }

    /// All buckets are summed, and copied out to the gradients unless these are the buckets (`finalize_backward`).
    fn end(&self) {
        if !self.syncs.get() {
            return;
        }
        if !self.known.get() {
            self.lay_out();
        }
        let bytes = self.bytes();
        communication::all_reduce(&self.torch, bytes, self.ranks);
        if !self.bucket_view {
            self.torch.launch("copy_");
            self.torch.moves(bytes.saturating_mul(2));
        }
    }
}
