//! ZeRO 1 and 2 as DeepSpeed runs them (`deepspeed/runtime/zero/stage_1_and_2.py`, 0.19): parameters are views of one flat
//! buffer; each rank has master weights and optimizer state of its part of it, and steps that part. Gradients go through a
//! bucket of a fixed size, of which the rank keeps what its part needs.

mod buckets;
mod build;
mod postponing;

use super::norm::{self, Looked};
use crate::nn::Parameter;
use crate::torch::hooks::ModuleHooks;
use crate::torch::network::{Collective, Peers};
use crate::torch::{Dtype, Layout, Stream, Tensor, Torch};
use buckets::Running;
use peakledger_core::Category;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// The optimizer wrapper (`DeepSpeedZeroOptimizer`).
pub(crate) struct Zero {
    torch: Rc<Torch>,
    /// Whether gradients are shared out as they are made (stage 2), or when the last micro-batch's backward has ended.
    partitions_gradients: bool,
    ranks: u32,
    peers: Peers,
    /// The type of the model and its gradients.
    dtype: Dtype,
    /// Whether gradients are summed in fp32 in the rank's part (`gradient_accumulation_dtype`).
    sums_in_fp32: bool,
    /// Numbers of a bucket (`reduce_bucket_size`), and how many buckets there are.
    bucket: u64,
    buckets: usize,
    /// Where buckets are reduced.
    reduces_on: Stream,
    offloaded: bool,
    parameters: Vec<Placed>,
    /// Numbers of a rank's part.
    partition: u64,
    _flat: Tensor,
    /// Room for the largest gradient on its way to the host, and what is there on the host.
    _offload_buffers: Vec<Tensor>,
    /// The rank's part as it is stepped.
    master: Parameter,
    /// Whether gradients are scaled by their norm (`gradient_clipping`).
    clips: bool,
    is_last: Cell<bool>,
    running: RefCell<Running>,
    /// The norm of all gradients: as it clips them, and as it is asked for after the step.
    norms: RefCell<[Option<Tensor>; 2]>,
}

/// A parameter's place in the flat buffer.
struct Placed {
    parameter: Parameter,
    range: Range<u64>,
    /// Numbers of it that are in the rank's part.
    in_own: u64,
    /// The decoder layer that it is in, where layers are left out.
    layer: Option<usize>,
}

impl Zero {
    fn in_own(&self) -> impl Iterator<Item = &Placed> {
        self.parameters.iter().filter(|placed| placed.in_own > 0)
    }

    /// Numbers of the rank's part that are no padding.
    fn numbers_of_parameters(&self) -> u64 {
        self.in_own().map(|placed| placed.in_own).fold(0, u64::saturating_add)
    }

    /// The norm of all gradients, which ranks know together (`scaled_global_norm`).
    fn take_norm(&self, dtype: Dtype) {
        let torch = &self.torch;
        let of = |numbers, is_counted| Looked { numbers, dtype, is_counted };
        let mut gradients: Vec<Looked> = self.in_own().map(|placed| of(placed.in_own, true)).collect();
        let padding = self.partition.saturating_sub(self.numbers_of_parameters());
        gradients.extend((padding > 0).then(|| of(padding, false)));
        if self.dtype.is_half() {
            norm::check_overflow(torch, &gradients);
        }
        let of_the_group = [norm::norm_over_ranks(torch, &gradients)];
        let scaled = norm::combined(torch, &of_the_group);
        drop(of_the_group);
        let asked_for = norm::unscaled(torch, &scaled);
        *self.norms.borrow_mut() = [Some(scaled), Some(asked_for)];
    }
}

impl ModuleHooks for Zero {
    fn begin(&self, is_last: bool) {
        self.is_last.set(is_last);
    }

    /// What is left is reduced (`independent_gradient_partition_epilogue`); stage 1 reduces everything here, once a step.
    fn end(&self) {
        let mut running = self.running.borrow_mut();
        let running = &mut *running;
        if !self.partitions_gradients {
            if !self.is_last.get() {
                return; // gradients stay, and the bucket with them
            }
            for (index, placed) in self.parameters.iter().enumerate() {
                if let Some(leaf) = &placed.parameter.leaf {
                    self.take(running, index, leaf);
                }
            }
        } else if self.torch.postpones() {
            self.fill_with_arrived(running);
        }
        self.reduce(running);
        let kept = running.kept.take();
        match (&running.summed, kept) {
            (Some(summed), Some(kept)) => {
                self.torch.launch("add_.Tensor");
                self.torch.reads(&[summed, &kept, summed]);
            }
            (None, kept) => running.summed = kept,
            (Some(_), None) => {}
        }
        if self.is_last.get() && !self.offloaded && !self.sums_in_fp32 {
            // `get_flat_partition`
            let left = self.partition.saturating_sub(self.numbers_of_parameters());
            running.padding = (left > 0).then(|| {
                self.torch.launch("zeros");
                let zeros = self.torch.empty(Layout::contiguous(&[left]), self.dtype);
                zeros.rename(Category::Gradient, "gradients in the partition");
                zeros
            });
        }
        running.buckets.clear();
    }

    /// The gradient of the rank's part, in one piece and in the type of the master weights, once its norm is known.
    fn before_step(&self, _: usize) {
        let torch = &self.torch;
        if self.offloaded {
            return norm::summed_for_host(torch);
        }
        let mut running = self.running.borrow_mut();
        let (summed, padding) = (running.summed.take(), running.padding.take());
        let (summed_in, stepped) =
            (if self.sums_in_fp32 { Dtype::F32 } else { self.dtype }, self.master.tensor.dtype());
        self.take_norm(summed_in);
        let whole = |op: &'static str, dtype| {
            torch.launch(op);
            let grad = torch.empty(Layout::contiguous(&[self.partition]), dtype);
            grad.rename(Category::Gradient, "gradient of the partition");
            grad
        };
        let is_one_piece = self.sums_in_fp32 || padding.is_none() && self.in_own().count() == 1;
        let grad = match &summed {
            Some(summed) if is_one_piece => summed.clone(),
            _ => whole("cat", self.dtype),
        };
        let grad = if summed_in == stepped { grad } else { whole("_to_copy", stepped) };
        drop((summed, padding));
        if let ([Some(scaled), _], true) = (&*self.norms.borrow(), self.clips) {
            norm::check(torch, scaled);
            norm::clip(torch, scaled, &grad);
        }
        if let Some(leaf) = &self.master.leaf {
            *leaf.grad.borrow_mut() = Some(grad);
        }
    }

    /// The part goes back into the flat buffer, and all ranks get all parts of it.
    fn after_step(&self, _: usize) {
        let torch = &self.torch;
        let bytes = self.partition.saturating_mul(self.dtype.width());
        if self.offloaded {
            torch.fetches_from_host(bytes);
            let mut running = self.running.borrow_mut();
            running.on_host.clear();
            running.norms_on_card.clear();
        } else if let Some(leaf) = &self.master.leaf {
            leaf.grad.borrow_mut().take();
        }
        torch.launch("copy_");
        torch.launch("_allgather_base_");
        let whole = bytes.saturating_mul(u64::from(self.ranks));
        torch.communicates(Collective::AllGather, whole, self.peers);
        let [scaled, asked_for] = self.norms.take();
        drop(scaled);
        *self.norms.borrow_mut() = [None, norm::kept(torch, asked_for)];
    }
}
