//! The buckets that gradients go through on their way to the rank's part of them.

use super::{Placed, Zero};
use crate::parallel::data::communication::{all_reduce, buffer};
use crate::parallel::data::parts::are_of_several;
use crate::parallel::data::{localize, norm};
use crate::torch::autograd::Leaf;
use crate::torch::{Dtype, Layout, Tensor};
use peakledger_core::{Category, Device};

/// What lives from the first gradient of a backward on.
#[derive(Default)]
pub(super) struct Running {
    pub(super) buckets: Vec<Tensor>,
    pub(super) elements: u64,
    pub(super) in_bucket: Vec<usize>,
    /// A gradient larger than a bucket, which goes by itself.
    pub(super) large: Option<Tensor>,
    /// Gradients that have come while layers are left out, with their layers, numbers and places in the flat buffer.
    pub(super) arrived: Vec<(Option<usize>, (u64, usize))>,
    /// Gradients of this backward that the rank keeps (`grads_in_partition`).
    pub(super) kept: Option<Tensor>,
    /// Those of the micro-batches so far.
    pub(super) summed: Option<Tensor>,
    /// Zeros behind them, where the part is longer than what is left of the parameters.
    pub(super) padding: Option<Tensor>,
    /// On the host, whole gradients while there are more micro-batches to come (`accumulated_grads_in_cpu`).
    pub(super) on_host: Vec<Tensor>,
    /// Of gradients that are on the host, their norms on the card (`norm_for_param_grads`).
    pub(super) norms_on_card: Vec<Tensor>,
}

impl Zero {
    /// A gradient is there (`process_gradients`).
    pub(super) fn ready(&self, index: usize, leaf: &Leaf) {
        if let Some(placed) = self.parameters.get(index) {
            localize(leaf, &placed.parameter);
        }
        let mut running = self.running.borrow_mut();
        if running.buckets.is_empty() {
            // `setup_buckets`
            let bucket = || {
                self.torch.launch("empty.memory_format");
                buffer(&self.torch, self.bucket, self.dtype, "reduce bucket")
            };
            running.buckets = (0..self.buckets).map(|_| bucket()).collect();
        }
        if self.partitions_gradients {
            self.take(&mut running, index, leaf);
        }
    }

    /// A gradient goes into the bucket (`reduce_independent_p_g_buckets_and_remove_grads`).
    pub(super) fn take(&self, running: &mut Running, index: usize, leaf: &Leaf) {
        let Some(grad) = leaf.grad.borrow_mut().take() else { return };
        let numbers = grad.layout().numel();
        if self.partitions_gradients && self.torch.postpones() {
            self.torch.marks_place();
            running.large = None;
            let layer = self.parameters.get(index).and_then(|placed| placed.layer);
            running.arrived.push((layer, (numbers, index)));
        } else {
            self.make_room(running, numbers, index);
        }
        if numbers > self.bucket {
            running.large = Some(grad);
        } else {
            self.torch.launch("copy_");
            self.torch.moves(grad.bytes().saturating_mul(2));
        }
    }

    /// The bucket is reduced where it has no room for a gradient, which is the next in it.
    pub(super) fn make_room(&self, running: &mut Running, numbers: u64, index: usize) {
        if running.elements.saturating_add(numbers) > self.bucket {
            self.reduce(running);
        }
        running.elements = running.elements.saturating_add(numbers);
        running.in_bucket.push(index);
    }

    /// `reduce_ipg_grads`: all ranks sum the bucket, and this one takes what its part needs of it; with overlap on a stream of
    /// its own, whose blocks then are what is kept (`average_tensor`).
    pub(super) fn reduce(&self, running: &mut Running) {
        let bucket: Vec<usize> = std::mem::take(&mut running.in_bucket);
        if running.elements > 0 {
            self.torch.on_stream(self.reduces_on, || self.reduce_bucket(running, &bucket));
        }
    }

    fn reduce_bucket(&self, running: &mut Running, bucket: &[usize]) {
        let torch = &self.torch;
        let placed = || bucket.iter().filter_map(|index| self.parameters.get(*index));
        torch.launch("div_.Tensor");
        torch.moves(running.elements.saturating_mul(2 * self.dtype.width()));
        // parts of several ranks are laid side by side once more to be summed (`allreduce_bucket`)
        let places = placed().map(|placed| &placed.range);
        let side_by_side = are_of_several(places, self.partition, self.sums_in_fp32).then(|| {
            torch.launch("cat");
            buffer(torch, running.elements, self.dtype, "gradients side by side")
        });
        all_reduce(torch, running.elements.saturating_mul(self.dtype.width()), self.peers);
        if self.sums_in_fp32 {
            self.sum_in_fp32(running, bucket);
        } else if self.offloaded {
            placed().filter(|p| p.in_own > 0).for_each(|p| self.to_host(running, p));
        } else if placed().any(|placed| placed.in_own > 0) {
            running.kept.get_or_insert_with(|| {
                torch.launch("empty.memory_format");
                let numbers = self.in_own().map(|placed| placed.range.end - placed.range.start);
                let kept = torch.empty(Layout::contiguous(&[numbers.sum()]), self.dtype);
                kept.rename(Category::Gradient, "gradients in the partition");
                kept
            });
            torch.launch("copy_");
        }
        drop(side_by_side);
        running.large = None;
        running.elements = 0;
    }

    /// What the part needs is added to a buffer in fp32 (`_add_to_grad_partition_buffer`), a parameter's after the other.
    fn sum_in_fp32(&self, running: &mut Running, bucket: &[usize]) {
        let torch = &self.torch;
        for placed in bucket.iter().filter_map(|index| self.parameters.get(*index)) {
            let numbers = placed.in_own;
            if numbers == 0 {
                continue;
            }
            running.summed.get_or_insert_with(|| {
                torch.launch("zeros");
                let summed = torch.empty(Layout::contiguous(&[self.partition]), Dtype::F32);
                summed.rename(Category::Gradient, "gradients in the partition");
                summed
            });
            torch.launch("_to_copy");
            let raised = torch.empty(Layout::contiguous(&[numbers]), Dtype::F32);
            torch.launch("add_.Tensor");
            torch.reads(&[&raised, &raised, &raised]);
        }
    }

    /// A gradient goes to the host: whole, while there are more micro-batches to be added, and at last as the rank's part of
    /// it in the type of the master weights (`copy_grads_in_partition`).
    fn to_host(&self, running: &mut Running, placed: &Placed) {
        let torch = &self.torch;
        let whole = Layout::contiguous(&[placed.range.end - placed.range.start]);
        if !self.is_last.get() || !running.on_host.is_empty() {
            if running.on_host.len() < self.in_own().count() {
                torch.launch("zeros");
                let on_host = torch.on(Device::Cpu, || torch.empty(whole.clone(), self.dtype));
                on_host.rename(Category::Gradient, "gradients so far");
                running.on_host.push(on_host);
            } else {
                torch.fetches_from_host(whole.numel().saturating_mul(self.dtype.width()));
            }
            torch.sends_to_host(whole.numel().saturating_mul(self.dtype.width()));
        }
        if self.is_last.get() {
            let numbers = Layout::contiguous(&[placed.in_own]);
            running.norms_on_card.push(norm::norm_of(torch, &numbers, self.dtype));
            let stepped = self.master.tensor.dtype();
            torch.launch("_to_copy");
            let raised = (stepped != self.dtype).then(|| torch.empty(numbers.clone(), stepped));
            torch.sends_to_host(numbers.numel().saturating_mul(stepped.width()));
            drop(raised);
        }
    }
}
