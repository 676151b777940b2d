//! ZeRO 3 as DeepSpeed runs it (`deepspeed/runtime/zero/stage3.py`, `partitioned_param_coordinator.py`, 0.19): a rank has a
//! part of every parameter. Whole ones come before they are used and ahead of that, in the order of a trace of the step, up
//! to a number that may be there at once; they go when they will not be used again soon.
//!
//! DeepSpeed records the trace in the first micro-batch of all, which fetches nothing ahead; here it is whole from the first
//! step on.
//!
//! With overlap, whole parameters are blocks of the stream that gathers, and what a bucket is reduced through of the one that
//! reduces. Parameters and gradients that go are told to the other stream by `record_stream` (`free_param`,
//! `__add_grad_to_ipg_bucket`); their blocks are taken to be free at once.

use super::communication::buffer;
use super::fetching::{Fetching, part};
use super::norm::{self, Looked};
use super::tracing::trace;
use crate::nn::Parameter;
use crate::options::{Options, Recompute};
use crate::parallel::Mesh;
use crate::torch::autograd::Leaf;
use crate::torch::hooks::{Carried, ModuleHooks};
use crate::torch::network::{Collective, Peers};
use crate::torch::{Dtype, Layout, ModuleId, Stream, Tensor, Torch};
use peakledger_core::{Category, Device};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// The optimizer wrapper (`DeepSpeedZeroOptimizer_Stage3`) and what fetches parameters.
pub(crate) struct Zero3 {
    torch: Rc<Torch>,
    ranks: u32,
    peers: Peers,
    dtype: Dtype,
    summed_in: Dtype,
    offloaded: bool,
    bucket: u64,
    /// Where buckets are reduced.
    reduces_on: Stream,
    fetching: RefCell<Fetching>,
    /// The module that backward is in, with those around it.
    in_backward: RefCell<Vec<ModuleId>>,
    /// Numbers of each trained parameter's part.
    parts: Vec<u64>,
    /// The sub-groups that are stepped one after the other: the parameters of each, and what is stepped.
    sub_groups: Vec<(Range<usize>, Parameter)>,
    /// Parts of parameters, the bucket of gradients, parts of gradients: there from the beginning.
    _buffers: Vec<Tensor>,
    /// Whether gradients are scaled by their norm (`gradient_clipping`).
    clips: bool,
    recompute: Recompute,
    is_first: Cell<bool>,
    is_last: Cell<bool>,
    filling: RefCell<Filling>,
    norms: RefCell<Norms>,
}

/// Norms of gradients, from where they are taken to the end of the step.
#[derive(Default)]
struct Norms {
    /// Of gradients that are on the host (`norm_for_param_grads`).
    of_parameters: Vec<Tensor>,
    of_sub_groups: Vec<Tensor>,
    scaled: Option<Tensor>,
    asked_for: Option<Tensor>,
}

/// The bucket of gradients.
#[derive(Default)]
struct Filling {
    elements: u64,
    /// Numbers of a bucket as ranks share it out: each gradient padded.
    padded: u64,
    parts: Vec<u64>,
    /// A gradient larger than the bucket.
    large: Vec<Tensor>,
}

impl Zero3 {
    /// Shares out the parameters of a model, and gives with the hooks what the optimizer steps.
    pub(crate) fn new(
        torch: &Rc<Torch>,
        options: &Options,
        mesh: &Mesh,
        parameters: Vec<Parameter>,
    ) -> (Rc<Zero3>, Vec<Parameter>) {
        let ranks = mesh.replicas();
        let zero = options.parallel.data.zero;
        let trained: Vec<Parameter> = parameters.iter().filter(|p| p.leaf.is_some()).cloned().collect();
        let part = |parameter: &Parameter| part(parameter.tensor.layout().numel(), ranks);
        let parts: Vec<u64> = trained.iter().map(part).collect();
        let dtype = trained.first().map_or(Dtype::F32, |parameter| parameter.tensor.dtype());
        let summed_in = options.grad_dtype.unwrap_or(dtype);
        let offloaded = options.offload.has_optimizer();
        let on_host = if offloaded { Device::Cpu } else { Device::Gpu };
        let all = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part));
        let place = |device, numbers, dtype, category, name| {
            torch.on(device, || torch.place_named(numbers, dtype, category, name))
        };
        let frozen = parameters.iter().filter(|parameter| parameter.leaf.is_none()).map(part);
        let frozen = frozen.fold(0, u64::saturating_add);
        let params_on = if options.offload.parameters { Device::Cpu } else { Device::Gpu };
        let buffers = vec![
            place(
                params_on,
                all.saturating_add(frozen),
                dtype,
                Category::Parameter,
                "partitioned parameters",
            ),
            place(
                Device::Gpu,
                zero.reduce_bucket_size,
                dtype,
                Category::CommunicationBuffer,
                "reduce bucket",
            ),
            place(on_host, all, summed_in, Category::Gradient, "partitioned gradients"),
            place(on_host, 1, Dtype::Bool, Category::Gradient, "overflow found"),
        ];
        let mut sub_groups = Vec::new();
        let mut start = 0;
        let mut numbers = 0u64;
        for (index, part) in parts.iter().enumerate() {
            numbers = numbers.saturating_add(*part);
            if numbers >= zero.sub_group_size || index + 1 == parts.len() {
                let name = "master weights of a sub-group";
                let master = place(on_host, numbers, options.stepped_in(), Category::MasterWeight, name);
                if let Some(first) = trained.get(start) {
                    sub_groups.push((start..index + 1, first.stepped_as(master)));
                }
                (start, numbers) = (index + 1, 0);
            }
        }
        let stepped: Vec<Parameter> = sub_groups.iter().map(|(_, master)| master.clone()).collect();
        let fetching = Fetching::new(torch, parameters, mesh.replica_peers(), zero, params_on);
        let this = Rc::new(Zero3 {
            torch: torch.clone(),
            ranks,
            peers: mesh.replica_peers(),
            dtype,
            summed_in,
            offloaded,
            bucket: zero.reduce_bucket_size,
            reduces_on: if zero.overlaps_in_stage_3() { Stream::Reduce } else { Stream::Compute },
            fetching: RefCell::new(fetching),
            in_backward: RefCell::default(),
            parts,
            sub_groups,
            _buffers: buffers,
            clips: options.clip_grad_norm,
            recompute: options.recompute,
            is_first: Cell::new(true),
            is_last: Cell::new(true),
            filling: RefCell::default(),
            norms: RefCell::default(),
        });
        if offloaded {
            for (_, master) in &this.sub_groups {
                let (numbers, dtype) = (master.tensor.layout().numel(), master.tensor.dtype());
                let name = "gradient of a sub-group";
                let grad = place(Device::Cpu, numbers, dtype, Category::Gradient, name);
                if let Some(leaf) = &master.leaf {
                    *leaf.grad.borrow_mut() = Some(grad);
                }
            }
        }
        for (index, parameter) in trained.iter().enumerate() {
            let Some(leaf) = &parameter.leaf else { continue };
            let zero = Rc::downgrade(&this);
            leaf.on_grad(move |leaf| {
                if let Some(zero) = zero.upgrade() {
                    zero.ready(index, leaf);
                }
            });
        }
        (this, stepped)
    }

    /// A gradient goes into the bucket, which is reduced first where it has no room for it
    /// (`reduce_independent_p_g_buckets_and_remove_grads`).
    fn ready(&self, index: usize, leaf: &Leaf) {
        let Some(grad) = leaf.grad.borrow_mut().take() else { return };
        let mut filling = self.filling.borrow_mut();
        let numbers = grad.layout().numel();
        if filling.elements > 0 && filling.elements.saturating_add(numbers) > self.bucket {
            self.reduce(&mut filling);
        }
        if filling.elements.saturating_add(numbers) <= self.bucket {
            self.torch.launch("copy_");
            self.torch.moves(grad.bytes().saturating_mul(2));
        } else {
            filling.large.push(grad);
        }
        let part = self.parts.get(index).copied().unwrap_or(0);
        filling.elements = filling.elements.saturating_add(numbers);
        filling.padded = filling.padded.saturating_add(part.saturating_mul(u64::from(self.ranks)));
        filling.parts.push(part);
    }

    /// Ranks sum the bucket, each for its parts of it, through a copy that is laid out by ranks
    /// (`reduce_scatter_coalesced`, `deepspeed/runtime/comm/coalesced_collectives.py`).
    fn reduce(&self, filling: &mut Filling) {
        let filled = std::mem::take(filling);
        if filled.elements > 0 {
            self.torch.on_stream(self.reduces_on, || self.reduce_filled(filled));
        }
    }

    fn reduce_filled(&self, Filling { elements, padded, parts, large }: Filling) {
        let torch = &self.torch;
        // a gradient alone lies by ranks already, if it needs no padding
        let by_ranks = (parts.len() > 1 || padded != elements).then(|| {
            torch.launch("cat");
            buffer(torch, padded, self.dtype, "gradients by ranks")
        });
        torch.launch("_reduce_scatter_base_");
        let bytes = padded.saturating_mul(self.dtype.width());
        torch.communicates(Collective::ReduceScatter, bytes, self.peers);
        for part in parts {
            self.keep(part);
        }
        drop((by_ranks, large));
    }

    /// A part of a gradient is kept, or added to what is (`partition_grads`).
    fn keep(&self, numbers: u64) {
        let (torch, part) = (&self.torch, Layout::contiguous(&[numbers]));
        let bytes = numbers.saturating_mul(self.summed_in.width());
        if self.dtype != self.summed_in {
            torch.launch("_to_copy");
            let _raised = torch.empty(part.clone(), self.summed_in);
        }
        torch.launch(if self.is_first.get() { "copy_" } else { "add_.Tensor" });
        if !self.offloaded {
            return torch.moves(bytes.saturating_mul(2));
        }
        if !self.is_first.get() {
            torch.fetches_from_host(bytes);
        }
        torch.sends_to_host(bytes);
        if self.is_last.get() {
            let _on_the_card = torch.empty(part.clone(), self.summed_in);
            let norm = norm::norm_of(torch, &part, self.summed_in);
            self.norms.borrow_mut().of_parameters.push(norm);
            let stepped = self.sub_groups.first().map_or(Dtype::F32, |(_, master)| master.tensor.dtype());
            torch.launch("_to_copy");
            let _raised = torch.empty(part, stepped);
            torch.sends_to_host(numbers.saturating_mul(stepped.width()));
        }
    }
}

impl ModuleHooks for Zero3 {
    fn begin(&self, is_last: bool) {
        self.is_last.set(is_last);
    }

    fn asks_for_modules(&self) -> bool {
        true
    }

    fn traced(&self, called: Vec<ModuleId>, returned: Vec<ModuleId>) {
        let mut fetching = self.fetching.borrow_mut();
        let has_parameters = |module| fetching.has_parameters(module);
        let trace = trace(&self.torch, self.recompute, has_parameters, (called, returned));
        fetching.follow(trace);
    }

    fn enter(&self) {
        self.fetching.borrow().fetch(ModuleId(0));
    }

    fn called(&self, module: ModuleId) {
        self.fetching.borrow().fetch(module);
    }

    fn returned(&self, module: ModuleId) {
        self.fetching.borrow().release(module);
    }

    /// Modules that it goes into are fetched for, from the outermost on; those that it has left are let go of.
    fn backward_at(&self, module: ModuleId) {
        let mut within = self.in_backward.borrow_mut();
        if within.last() == Some(&module) {
            return;
        }
        let path = path_to(&self.torch, module);
        let common = within.iter().zip(&path).take_while(|(a, b)| a == b).count();
        let fetching = self.fetching.borrow();
        within.drain(common..).rev().for_each(|left| fetching.release(left));
        within.extend(path.iter().skip(common).inspect(|entered| fetching.fetch(**entered)));
    }

    fn whole(&self, weight: &Tensor) -> Option<Tensor> {
        self.fetching.borrow().reached_for(weight)
    }

    fn carried(&self) -> Carried {
        let filling = self.filling.borrow();
        let [available, asked_ahead, registered] = self.fetching.borrow().carried();
        [filling.elements, filling.padded, filling.parts.len() as u64, available, asked_ahead, registered]
    }

    fn end(&self) {
        self.reduce(&mut self.filling.borrow_mut());
        self.is_first.set(self.is_last.get());
        self.in_backward.borrow_mut().clear();
        self.fetching.borrow().reset();
    }

    fn sub_groups(&self) -> usize {
        self.sub_groups.len()
    }

    /// The gradient of a sub-group in one piece and in the type of its master weights.
    fn before_step(&self, sub_group: usize) {
        let torch = &self.torch;
        if sub_group == 0 {
            self.fetching.borrow().release_persistent(); // `_partition_all_parameters`
            if self.offloaded {
                self.sub_groups.iter().for_each(|(of, _)| norm::summed_on_card(torch, of.len()));
            } else {
                self.take_norm();
            }
        }
        let Some((parameters, master)) = self.sub_groups.get(sub_group).filter(|_| !self.offloaded) else {
            return;
        };
        let numbers = Layout::contiguous(&[master.tensor.layout().numel()]);
        let whole = |op: &'static str, dtype| {
            torch.launch(op);
            let grad = torch.empty(numbers.clone(), dtype);
            grad.rename(Category::Gradient, "gradient of a sub-group");
            grad
        };
        let stepped = master.tensor.dtype();
        let side_by_side = (parameters.len() > 1).then(|| whole("cat", self.summed_in));
        let grad = match side_by_side {
            Some(side_by_side) if self.summed_in == stepped => side_by_side,
            _ => whole("_to_copy", stepped),
        };
        if let (Some(scaled), true) = (&self.norms.borrow().scaled, self.clips) {
            norm::clip(torch, scaled, &grad);
        }
        if let Some(leaf) = &master.leaf {
            *leaf.grad.borrow_mut() = Some(grad);
        }
    }

    /// Its parts go back to the half type.
    fn after_step(&self, sub_group: usize) {
        let Some((_, master)) = self.sub_groups.get(sub_group) else { return };
        self.torch.launch("copy_");
        if self.offloaded {
            if !self.fetching.borrow().is_from_host() {
                self.torch
                    .fetches_from_host(master.tensor.layout().numel().saturating_mul(self.dtype.width()));
            }
        } else if let Some(leaf) = &master.leaf {
            leaf.grad.borrow_mut().take();
        }
        if sub_group + 1 == self.sub_groups.len() {
            self.norms.borrow_mut().of_parameters.clear(); // `_post_step`
            self.fetching.borrow().gather_persistent();
            let Norms { asked_for, .. } = self.norms.take();
            self.norms.borrow_mut().asked_for = norm::kept(&self.torch, asked_for);
        }
    }

    fn step_ends(&self) {
        self.fetching.borrow().forget_persistent();
    }
}

/// A module and those around it, the outermost first.
fn path_to(torch: &Torch, module: ModuleId) -> SmallVec<[ModuleId; 8]> {
    let tape = torch.tape.borrow();
    let outer = |module: &ModuleId| tape.modules.get(module.0 as usize).and_then(|module| module.parent);
    let mut path: SmallVec<[ModuleId; 8]> = std::iter::successors(Some(module), outer).collect();
    path.reverse();
    path
}

impl Zero3 {
    /// The norm of all gradients, of a sub-group after the other.
    fn take_norm(&self) {
        let torch = &self.torch;
        let of = |numbers: &u64| Looked { numbers: *numbers, dtype: self.summed_in, is_counted: true };
        let of_sub_groups = self.sub_groups.iter().map(|(parameters, _)| {
            let parts = self.parts.get(parameters.clone()).unwrap_or_default();
            norm::norm_in_fp64(torch, &parts.iter().map(of).collect::<Vec<Looked>>())
        });
        let of_sub_groups: Vec<Tensor> = of_sub_groups.collect();
        let scaled = norm::combined(torch, &of_sub_groups);
        let asked_for = norm::unscaled(torch, &scaled);
        let mut norms = self.norms.borrow_mut();
        norms.of_sub_groups = of_sub_groups;
        (norms.scaled, norms.asked_for) = (Some(scaled), Some(asked_for));
    }
}
