//! FSDP2 (`torch/distributed/fsdp/_fully_shard`): every decoder layer is a group of parameters that are gathered together
//! and whose gradients are reduced together; embedding, last norm and head are the root's.
//!
//! On a card the collectives run on streams of their own. Memory is handed out and let go of as the loop's thread comes to
//! it, whatever the streams have done by then, so that is the order here.

use super::communication::{all_reduce, buffer};
use super::gathered::Sharded;
use crate::nn::Parameter;
use crate::optim::redistributed;
use crate::options::Options;
use crate::parallel::{Mesh, Sharding};
use crate::torch::autograd::on_gradient;
use crate::torch::cost::Collective;
use crate::torch::hooks::{Inner, ModuleHooks};
use crate::torch::tape::Role;
use crate::torch::{Dtype, ModuleId, Tensor, Torch};
use peakledger_core::{Category, Device};
use peakledger_input::Problem;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// The groups, and what is on its way between ranks.
pub(crate) struct Fsdp {
    torch: Rc<Torch>,
    /// Those of the layers in order, then the root's.
    groups: Vec<Group>,
    /// Ranks that a parameter is shared out over.
    ranks: u32,
    /// Such sets of ranks (HSDP).
    replicas: u32,
    reshard_after_forward: bool,
    reduce_dtype: Option<Dtype>,
    sync_each_batch: bool,
    /// Whether shards, their gradients and the optimizer are on the host (`CPUOffloadPolicy`).
    offloaded: bool,
    /// Whether this micro-batch's gradients are reduced (`set_requires_gradient_sync`).
    reduces: Cell<bool>,
    /// What the last gather in forward put out, kept until the next group has copied into its own
    /// (`FSDPCommContext.all_gather_state`).
    last_gathered: RefCell<Option<Tensor>>,
    /// What the last reduction went out from (`reduce_scatter_states`, of which there is one at most).
    last_reduced: RefCell<Option<Tensor>>,
}

/// Parameters that come and go together (`FSDPParamGroup`).
struct Group {
    module: ModuleId,
    parameters: Vec<Sharded>,
    state: RefCell<State>,
    /// Whether its backward has ended.
    done: Cell<bool>,
    /// Gradients of this rank's shards.
    grads: RefCell<Vec<Tensor>>,
    /// What hosts summed among them, kept until backward has ended (`AllReduceState`).
    all_reduced: RefCell<Option<Tensor>>,
}

/// How much of a group's parameters is here.
enum State {
    /// This rank's shards.
    Sharded,
    /// They are on their way, into that where there are other ranks.
    Gathering(Option<Tensor>),
    /// All of them.
    Unsharded { _parameters: Vec<Tensor> },
}

impl Fsdp {
    /// Shares out the parameters of a model, and gives with the hooks what the optimizer steps.
    pub(crate) fn new(
        torch: &Rc<Torch>,
        options: &Options,
        mesh: &Mesh,
        parameters: Vec<Parameter>,
    ) -> Result<(Rc<Fsdp>, Vec<Parameter>), Problem> {
        let ranks = mesh.shards(&options.parallel);
        let place = mesh.place(options.parallel.rank);
        let rank = (place.dp * mesh.cp + place.cp) % ranks;
        let offloaded = options.offload.parameters;
        let layer = |parameter: &Parameter| torch.tape.borrow().layer(parameter.module);
        let layers = parameters.iter().filter_map(layer).max().map_or(0, |last| last as usize + 1);
        let mut groups: Vec<Group> = (0..=layers).map(|_| Group::default()).collect();
        let mut shards = Vec::with_capacity(parameters.len());
        for parameter in parameters {
            let index = layer(&parameter).map_or(layers, |layer| layer as usize);
            let sharded = Sharded::new(parameter, ranks, rank);
            if offloaded {
                sharded.tensor.relabel(|stored| stored.device = Device::Cpu);
            }
            shards.push(sharded.shard());
            let Some(group) = groups.get_mut(index) else { continue };
            group.module = torch.tape.borrow().layer_module(sharded.module);
            group.parameters.push(sharded);
        }
        let data = &options.parallel.data;
        let fsdp = Fsdp {
            torch: torch.clone(),
            groups,
            ranks,
            replicas: mesh.dp * mesh.cp / ranks,
            reshard_after_forward: options.parallel.sharding != Sharding::ShardGradOp,
            reduce_dtype: data.reduce_dtype,
            sync_each_batch: data.sync_each_batch,
            offloaded,
            reduces: Cell::new(true),
            last_gathered: RefCell::new(None),
            last_reduced: RefCell::new(None),
        };
        fsdp.groups.iter().try_for_each(Group::check)?;
        Ok((Rc::new(fsdp), shards))
    }

    fn root(&self) -> usize {
        self.groups.len() - 1
    }

    fn group(&self, index: usize) -> Option<&Group> {
        self.groups.get(index).filter(|group| !group.parameters.is_empty())
    }

    /// A layer's parameters come for its forward, and what the gather before them put out goes.
    fn pre_forward(&self, index: usize) {
        let Some(group) = self.group(index) else { return };
        self.unshard(group);
        self.wait_for_unshard(group, true);
    }

    fn post_forward(&self, index: usize) {
        if let Some(group) = self.group(index).filter(|_| self.reshard_after_forward) {
            group.reshard();
        }
    }

    /// A group's parameters come for its backward, and those of the one that comes next set out.
    fn pre_backward(&self, index: usize, next: Option<usize>) {
        let Some(group) = self.group(index) else { return };
        self.unshard(group);
        self.wait_for_unshard(group, false);
        let next = next.and_then(|next| self.group(next));
        if let Some(next) = next {
            self.unshard(next);
        }
    }

    /// `unshard`: a group's parameters set out, cast to the type that they are used in.
    fn unshard(&self, group: &Group) {
        let mut state = group.state.borrow_mut();
        if !matches!(*state, State::Sharded) {
            return;
        }
        if self.ranks == 1 {
            *state = State::Gathering(None);
            return;
        }
        let torch = &self.torch;
        torch.inside(group.module, || {
            let inputs = self.gather_inputs(group);
            let shard = group.parameters.iter().fold(0, |sum: u64, p| sum.saturating_add(p.shard_bytes()));
            let bytes = shard.saturating_mul(u64::from(self.ranks));
            torch.launch("empty.memory_format");
            let dtype = group.one_dtype();
            let output = buffer(torch, bytes / dtype.width(), dtype, "all-gather output");
            torch.launch("all_gather_copy_in");
            torch.moves(shard.saturating_mul(2));
            torch.launch("_allgather_base_");
            torch.communicates(Collective::AllGather, bytes, self.ranks);
            drop(inputs);
            *state = State::Gathering(Some(output));
        });
    }

    /// Copies of shards in the type that they are gathered in, where they are not kept in it on the device
    /// (`_get_param_all_gather_inputs`): all in one, but for those from the host, which come one by one.
    fn gather_inputs(&self, group: &Group) -> Vec<Tensor> {
        let torch = &self.torch;
        let copy = |parameter: &Sharded, dtype| {
            torch.launch("_to_copy");
            buffer(torch, parameter.shard_numbers(), dtype, "shards to gather")
        };
        if self.offloaded {
            let from_host = |parameter: &Sharded| {
                torch.fetches_from_host(parameter.shard_numbers().saturating_mul(parameter.kept.width()));
                let fetched = copy(parameter, parameter.kept);
                if parameter.kept == parameter.used() { fetched } else { copy(parameter, parameter.used()) }
            };
            return group.parameters.iter().map(from_host).collect();
        }
        let cast = group.parameters.iter().filter(|parameter| parameter.kept != parameter.used());
        let Some(dtype) = cast.clone().map(|parameter| parameter.used()).next() else { return Vec::new() };
        let numbers = cast.fold(0, |sum: u64, parameter| sum.saturating_add(parameter.shard_numbers()));
        torch.launch("empty.memory_format");
        let flat = buffer(torch, numbers, dtype, "shards to gather");
        torch.launch("_foreach_copy_");
        torch.moves(flat.bytes().saturating_mul(2));
        vec![flat]
    }

    /// `wait_for_unshard`: what was gathered is copied out into parameters.
    fn wait_for_unshard(&self, group: &Group, in_forward: bool) {
        let mut state = group.state.borrow_mut();
        if !matches!(*state, State::Gathering(_)) {
            return;
        }
        let State::Gathering(gathered) = std::mem::replace(&mut *state, State::Sharded) else { return };
        if in_forward {
            self.last_gathered.borrow_mut().take();
        }
        self.torch.inside(group.module, || {
            let parameters: Vec<Tensor> = match &gathered {
                // a rank alone copies each from its shard
                None => group.parameters.iter().map(|parameter| self.copied(parameter)).collect(),
                Some(gathered) => {
                    self.torch.launch("empty.memory_format");
                    let parameters = group.parameters.iter().map(|parameter| parameter.whole(self.ranks));
                    let parameters = parameters.collect();
                    self.torch.launch("split_with_sizes_copy");
                    self.torch.moves(gathered.bytes());
                    parameters
                }
            };
            *state = State::Unsharded { _parameters: parameters };
        });
        if in_forward {
            *self.last_gathered.borrow_mut() = gathered;
        }
    }

    fn copied(&self, parameter: &Sharded) -> Tensor {
        let torch = &self.torch;
        let mut from = Vec::new();
        let mut copy = |dtype| {
            torch.launch("_to_copy");
            from.push(buffer(torch, parameter.shard_numbers(), dtype, "shards to gather"));
        };
        if self.offloaded {
            torch.fetches_from_host(parameter.shard_numbers().saturating_mul(parameter.kept.width()));
            copy(parameter.kept);
        }
        if parameter.kept != parameter.used() {
            copy(parameter.used());
        }
        torch.launch("empty.memory_format");
        let whole = parameter.whole(1);
        torch.launch("copy_");
        torch.moves(whole.bytes());
        drop(from);
        whole
    }

    /// `post_backward`: whole gradients are reduced to those of this rank's shards, and the parameters go.
    fn post_backward(&self, group: &Group) {
        group.done.set(true);
        if !self.reduces.get() {
            group.reshard();
            return;
        }
        let grads = self.torch.inside(group.module, || group.take_grads());
        group.reshard();
        self.last_reduced.borrow_mut().take();
        if grads.is_empty() {
            return;
        }
        self.torch.inside(group.module, || {
            let input = self.reduce(group, grads);
            *self.last_reduced.borrow_mut() = Some(input);
        });
    }

    /// `foreach_reduce`: gradients side by side, each padded to so many rows as there are ranks; what goes out stays.
    fn reduce(&self, group: &Group, grads: Vec<(&Sharded, Tensor)>) -> Tensor {
        let (torch, ranks) = (&self.torch, u64::from(self.ranks));
        let promoted = |dtype: Option<Dtype>, kept: Dtype| Some(dtype.map_or(kept, |d| d.promote(kept)));
        let kept =
            grads.iter().map(|(parameter, _)| parameter.kept).fold(None, promoted).unwrap_or(Dtype::F32);
        let dtype = self.reduce_dtype.unwrap_or(kept);
        let numbers = grads.iter().fold(0, |sum: u64, (p, _)| sum.saturating_add(p.shard_numbers()));
        torch.launch("empty.memory_format");
        let input = buffer(torch, numbers.saturating_mul(ranks), dtype, "reduce-scatter input");
        torch.launch("chunk_cat_mixed_dtype");
        torch.moves(grads.iter().fold(0, |sum: u64, (_, grad)| sum.saturating_add(grad.bytes())));
        let trained: Vec<&Sharded> = grads.iter().map(|(parameter, _)| *parameter).collect();
        drop(grads);
        torch.launch("empty.memory_format");
        let output = buffer(torch, numbers, dtype, "reduce-scatter output");
        if self.ranks == 1 {
            torch.launch("copy_");
        } else {
            torch.launch("_reduce_scatter_base_");
            torch.communicates(Collective::ReduceScatter, input.bytes(), self.ranks);
        }
        if self.replicas > 1 {
            all_reduce(torch, output.bytes(), self.replicas);
            *group.all_reduced.borrow_mut() = Some(output.clone());
        }
        let output = if dtype == kept {
            output
        } else {
            torch.launch("_to_copy");
            buffer(torch, numbers, kept, "reduce-scatter output")
        };
        self.accumulate(group, &trained, output);
        input
    }

    /// What was reduced becomes the shards' gradients, or is added to them; on the host where they are there.
    fn accumulate(&self, group: &Group, trained: &[&Sharded], reduced: Tensor) {
        let torch = &self.torch;
        let mut held = group.grads.borrow_mut();
        if self.offloaded {
            torch.sends_to_host(reduced.bytes());
            let to_host = |parameter: &&Sharded| {
                let shard = parameter.shard().tensor;
                torch.launch("_to_copy");
                let copy = torch.on(Device::Cpu, || torch.empty(shard.layout().clone(), shard.dtype()));
                copy.relabel(|stored| {
                    (stored.category, stored.detail) = (Category::Gradient, None);
                    stored.role = Role::Of { parameter: parameter.id, state: "grad" };
                });
                copy
            };
            let on_host: Vec<Tensor> = trained.iter().map(to_host).collect();
            if held.is_empty() {
                *held = on_host;
            }
            return;
        }
        if held.is_empty() {
            reduced.relabel(|stored| {
                (stored.category, stored.detail) = (Category::Gradient, None);
                stored.role = Role::Named { name: "gradients of the shards" };
            });
            held.push(reduced);
        } else {
            trained.iter().for_each(|_| torch.launch("add_.Tensor"));
            torch.reads(&[&reduced, &reduced, &reduced]);
        }
    }
}

impl ModuleHooks for Fsdp {
    fn begin(&self, is_last: bool) {
        let reduces = is_last || self.sync_each_batch;
        self.reduces.set(reduces);
        let left_out = self.torch.left_out();
        for (index, group) in self.groups.iter().enumerate() {
            group.done.set(left_out.contains(&index));
            for parameter in &group.parameters {
                let Some(leaf) = &parameter.leaf else { continue };
                // what is reduced at once is cast as it is copied in (`_set_unsharded_grad_dtypes`)
                let summed_in = self.reduce_dtype.unwrap_or(parameter.kept);
                let is_wider = summed_in.width() > parameter.used().width();
                leaf.summed_in.set((!is_wider || !reduces).then_some(summed_in));
            }
        }
    }

    fn enter(&self) {
        self.pre_forward(self.root());
    }

    fn around(self: Rc<Self>, layers: Range<usize>, hidden_states: &Tensor, run: Inner<'_>) -> Tensor {
        let index = self.torch.in_model(layers.start);
        let before = layers.start.checked_sub(1).map(|before| self.torch.in_model(before));
        self.pre_forward(index);
        let this = self.clone();
        let input = on_gradient(hidden_states.clone(), move || {
            this.group(index).into_iter().for_each(|group| this.post_backward(group));
        });
        let output = run(&input);
        self.post_forward(index);
        on_gradient(output, move || self.pre_backward(index, before))
    }

    fn leave(self: Rc<Self>, output: Tensor) -> Tensor {
        self.last_gathered.borrow_mut().take();
        let root = self.root();
        on_gradient(output, move || self.pre_backward(root, root.checked_sub(1)))
    }

    /// The groups whose backward nothing told the end of, the root first (`_root_post_backward_final_callback`).
    fn end(&self) {
        let (layers, root) = self.groups.split_at(self.root());
        for group in root.iter().chain(layers).filter(|group| !group.done.get()) {
            self.post_backward(group);
        }
        self.last_reduced.borrow_mut().take();
        for group in &self.groups {
            group.all_reduced.borrow_mut().take();
            let mut state = group.state.borrow_mut();
            if matches!(*state, State::Gathering(_)) {
                *state = State::Sharded;
            }
        }
    }

    fn zero_grad(&self) {
        self.groups.iter().for_each(|group| group.grads.borrow_mut().clear());
    }
}

impl Default for Group {
    fn default() -> Group {
        Group {
            module: ModuleId(0),
            parameters: Vec::new(),
            state: RefCell::new(State::Sharded),
            done: Cell::new(false),
            grads: RefCell::new(Vec::new()),
            all_reduced: RefCell::new(None),
        }
    }
}

impl Group {
    /// Refuses what FSDP does: parameters of several types that are trained in one group (`_init_mp_dtypes`).
    fn check(&self) -> Result<(), Problem> {
        let mut trained = self.parameters.iter().filter(|parameter| parameter.leaf.is_some());
        let Some(first) = trained.next() else { return Ok(()) };
        match trained.find(|other| other.kept != first.kept) {
            None => Ok(()),
            Some(other) => {
                let (one, other) = (first.kept.as_str(), other.kept.as_str());
                let cause = format!(
                    "FSDP2 gathers a layer's trained parameters in one type, and these are in {one} and {other}"
                );
                Err(Problem::in_option("--fsdp", cause)
                    .mend("use --precision bf16-mixed or fp32, which keep all in fp32"))
            }
        }
    }

    fn reshard(&self) {
        let mut state = self.state.borrow_mut();
        if matches!(*state, State::Unsharded { .. }) {
            *state = State::Sharded;
        }
    }

    /// The gradients that autograd has left at the parameters, as those of the rank's tensor parallel parts
    /// (`_get_grad_inner_tensor`).
    fn take_grads(&self) -> Vec<(&Sharded, Tensor)> {
        let grad = |parameter: &'_ Sharded| {
            let of_the_part = redistributed([&**parameter]).pop();
            let grad = parameter.leaf.as_ref()?.grad.borrow_mut().take();
            of_the_part.or(grad)
        };
        self.parameters.iter().filter_map(|parameter| Some((parameter, grad(parameter)?))).collect()
    }

    /// The type of all its parameters as they are gathered; bytes where they differ.
    fn one_dtype(&self) -> Dtype {
        let mut dtypes = self.parameters.iter().map(Sharded::used);
        let first = dtypes.next().unwrap_or(Dtype::Byte);
        if dtypes.all(|dtype| dtype == first) { first } else { Dtype::Byte }
    }
}
