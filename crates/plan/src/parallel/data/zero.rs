//! ZeRO 1 and 2 as DeepSpeed runs them (`deepspeed/runtime/zero/stage_1_and_2.py`, 0.19): parameters are views of one flat
//! buffer; each rank has master weights and optimizer state of its part of it, and steps that part. Gradients go through a
//! bucket of a fixed size, of which the rank keeps what its part needs.

use super::communication::{all_reduce, buffer};
use super::flat::flattened;
use super::localize;
use super::norm::{self, Looked};
use super::parts::{Parts, are_of_several};
use crate::nn::Parameter;
use crate::options::Options;
use crate::parallel::{Mesh, Sharding};
use crate::torch::autograd::Leaf;
use crate::torch::hooks::{Inner, ModuleHooks};
use crate::torch::network::{Collective, Peers};
use crate::torch::tape::Role;
use crate::torch::{Dtype, Layout, ModuleId, Stream, Tensor, Torch};
use peakledger_core::{Category, Device};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
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

/// What lives from the first gradient of a backward on.
#[derive(Default)]
struct Running {
    buckets: Vec<Tensor>,
    elements: u64,
    in_bucket: Vec<usize>,
    /// A gradient larger than a bucket, which goes by itself.
    large: Option<Tensor>,
    /// Gradients that have come while layers are left out, with their layers, numbers and places in the flat buffer.
    arrived: Vec<(Option<usize>, (u64, usize))>,
    /// Gradients of this backward that the rank keeps (`grads_in_partition`).
    kept: Option<Tensor>,
    /// Those of the micro-batches so far.
    summed: Option<Tensor>,
    /// Zeros behind them, where the part is longer than what is left of the parameters.
    padding: Option<Tensor>,
    /// On the host, whole gradients while there are more micro-batches to come (`accumulated_grads_in_cpu`).
    on_host: Vec<Tensor>,
    /// Of gradients that are on the host, their norms on the card (`norm_for_param_grads`).
    norms_on_card: Vec<Tensor>,
}

impl Zero {
    /// Flattens a model's parameters, and gives with the hooks what the optimizer steps.
    pub(crate) fn new(
        torch: &Rc<Torch>,
        options: &Options,
        mesh: &Mesh,
        parameters: &[Parameter],
    ) -> (Rc<Zero>, Vec<Parameter>) {
        let ranks = mesh.dp * mesh.cp;
        let place = mesh.place(options.parallel.rank);
        let rank = place.dp * mesh.cp + place.cp;
        let trained: Vec<&Parameter> = parameters.iter().filter(|p| p.leaf.is_some()).collect();
        let dtype = trained.first().map_or(Dtype::F32, |parameter| parameter.tensor.dtype());
        let parts = Parts::of(trained.iter().map(|parameter| parameter.tensor.layout().numel()), ranks);
        let places = trained.iter().zip(parts.places(rank));
        let postpones = torch.postpones();
        let layer = |parameter: &Parameter| {
            let layer = postpones.then(|| torch.tape.borrow().layer(parameter.module));
            layer.flatten().map(|layer| layer as usize)
        };
        let placed = places.map(|(parameter, (range, in_own))| Placed {
            parameter: (*parameter).clone(),
            range,
            in_own,
            layer: layer(parameter),
        });
        let placed: Vec<Placed> = placed.collect();
        let partition = parts.numbers();
        let numbers = partition.saturating_mul(u64::from(ranks));
        let flat = flattened(torch, options, mesh, &trained, (numbers, dtype));
        let offloaded = options.offload.optimizer;
        let device = if offloaded { Device::Cpu } else { Device::Gpu };
        let half = offloaded.then(|| {
            let role = Role::Named { name: "partition on its way back" };
            let kind = (Category::Parameter, None);
            torch.on(Device::Cpu, || {
                torch.place(Layout::contiguous(&[partition]), dtype, kind, ModuleId(0), role)
            })
        });
        let largest = trained.iter().map(|p| p.tensor.layout().numel()).max().unwrap_or(0);
        let on_its_way = |device| {
            let role = Role::Named { name: "largest gradient on its way" };
            let kind = (Category::CommunicationBuffer, None);
            torch.on(device, || torch.place(Layout::contiguous(&[largest]), dtype, kind, ModuleId(0), role))
        };
        let both = [Device::Cpu, Device::Gpu].into_iter().filter(|_| offloaded).map(on_its_way);
        let offload_buffers = half.into_iter().chain(both).collect();
        let first = trained.first().map(|parameter| (*parameter).clone());
        let master = torch.on(device, || {
            let role = Role::Named { name: "master weights of the partition" };
            let kind = (Category::MasterWeight, None);
            let sizes = Layout::contiguous(&[partition]);
            torch.place(sizes, options.stepped_in(), kind, ModuleId(0), role)
        });
        let master = first.map(|parameter| parameter.stepped_as(master).plain());
        let Some(master) = master else { unreachable!("a model of which nothing is trained is refused") };
        let zero = &options.parallel.data.zero;
        let overlaps = zero.overlap_comm == Some(true);
        let this = Rc::new(Zero {
            torch: torch.clone(),
            partitions_gradients: options.parallel.sharding == Sharding::Zero2,
            ranks,
            peers: mesh.replica_peers(),
            dtype,
            sums_in_fp32: options.grad_dtype == Some(Dtype::F32) && dtype != Dtype::F32,
            bucket: zero.reduce_bucket_size,
            buckets: if overlaps { 2 } else { 1 },
            reduces_on: if overlaps { Stream::Reduce } else { Stream::Compute },
            offloaded,
            parameters: placed,
            partition,
            _flat: flat,
            _offload_buffers: offload_buffers,
            master: master.clone(),
            clips: options.clip_grad_norm,
            norms: RefCell::default(),
            is_last: Cell::new(true),
            running: RefCell::new(Running::default()),
        });
        if offloaded {
            this.place_host_gradient();
        }
        for (index, placed) in this.parameters.iter().enumerate() {
            let Some(leaf) = &placed.parameter.leaf else { continue };
            let zero = Rc::downgrade(&this);
            leaf.on_grad(move |leaf| {
                if let Some(zero) = zero.upgrade() {
                    zero.ready(index, leaf);
                }
            });
        }
        (this, vec![master])
    }

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

    /// The gradient of the rank's part on the host, which stays there.
    fn place_host_gradient(&self) {
        let role = Role::Named { name: "gradient of the partition" };
        let sizes = Layout::contiguous(&[self.partition]);
        let dtype = self.master.tensor.dtype();
        let kind = (Category::Gradient, None);
        let grad = self.torch.on(Device::Cpu, || self.torch.place(sizes, dtype, kind, ModuleId(0), role));
        if let Some(leaf) = &self.master.leaf {
            *leaf.grad.borrow_mut() = Some(grad);
        }
    }

    /// A gradient is there (`process_gradients`).
    fn ready(&self, index: usize, leaf: &Leaf) {
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
    fn take(&self, running: &mut Running, index: usize, leaf: &Leaf) {
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
    fn make_room(&self, running: &mut Running, numbers: u64, index: usize) {
        if running.elements.saturating_add(numbers) > self.bucket {
            self.reduce(running);
        }
        running.elements = running.elements.saturating_add(numbers);
        running.in_bucket.push(index);
    }

    /// What was postponed: buckets are full at other places of each layer, and of other ranks' parts.
    fn catch_up(&self, running: &mut Running) {
        let arrived = self.torch.with_left_out(std::mem::take(&mut running.arrived));
        let last_and_large = running.large.take();
        let firsts = self.firsts_of_layers();
        self.torch.catches_up(arrived, |(layers_later, (numbers, index))| {
            let index = self.later_by(layers_later, index, &firsts).unwrap_or(index);
            let Some(placed) = self.parameters.get(index) else { return };
            self.torch.said_of(placed.parameter.module, || self.make_room(running, numbers, index));
        });
        running.large = last_and_large;
    }

    /// The parameter that is in a layer so many later what that one is in its own; nothing where it is in none.
    fn later_by(&self, layers: usize, index: usize, firsts: &BTreeMap<usize, usize>) -> Option<usize> {
        let layer = self.parameters.get(index)?.layer?;
        Some(index + firsts.get(&(layer + layers))? - firsts.get(&layer)?)
    }

    /// The first parameter of each layer.
    fn firsts_of_layers(&self) -> BTreeMap<usize, usize> {
        let mut firsts = BTreeMap::new();
        for (index, placed) in self.parameters.iter().enumerate() {
            if let Some(layer) = placed.layer {
                firsts.entry(layer).or_insert(index);
            }
        }
        firsts
    }

    /// `reduce_ipg_grads`: all ranks sum the bucket, and this one takes what its part needs of it; with overlap on a stream of
    /// its own, whose blocks then are what is kept (`average_tensor`).
    fn reduce(&self, running: &mut Running) {
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
                named(&kept, Category::Gradient, "gradients in the partition");
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
                named(&summed, Category::Gradient, "gradients in the partition");
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
                named(&on_host, Category::Gradient, "gradients so far");
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

impl ModuleHooks for Zero {
    fn begin(&self, is_last: bool) {
        self.is_last.set(is_last);
    }

    fn around(self: Rc<Self>, _: Range<usize>, hidden_states: &Tensor, run: Inner<'_>) -> Tensor {
        run(hidden_states)
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
            self.catch_up(running);
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
                named(&zeros, Category::Gradient, "gradients in the partition");
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
            named(&grad, Category::Gradient, "gradient of the partition");
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

pub(super) fn named(tensor: &Tensor, category: Category, name: &'static str) {
    tensor.relabel(|stored| {
        (stored.category, stored.detail) = (category, None);
        stored.role = Role::Named { name };
    });
}
