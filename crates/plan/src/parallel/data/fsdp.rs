//! FSDP2 (`torch/distributed/fsdp/_fully_shard`): parameters come in groups that are gathered together and whose gradients are
//! reduced together. `groups.rs` says which.
//!
//! On a card the collectives run on streams of their own, and so lie on them: what is gathered and what was cast for it
//! (`foreach_all_gather`), what gradients are reduced to, which is the shards' gradients (`foreach_reduce`). Whole parameters
//! and what goes out to be reduced are on the stream of the model. Memory is handed out and let go of as the loop's thread
//! comes to it, whatever the streams have done by then, so that is the order here: they wait for each other, and nothing calls
//! `record_stream`.

use super::communication::{all_reduce, buffer};
use super::forward_only::Way;
use super::gathered::Sharded;
use super::groups::{Group, Part, State, Within, grouped};
use crate::nn::Parameter;
use crate::options::Options;
use crate::parallel::{Mesh, Sharding};
use crate::torch::autograd::{on_gradient, on_gradients};
use crate::torch::hooks::{Inner, InnerExperts, ModuleHooks};
use crate::torch::network::Collective;
use crate::torch::tape::Role;
use crate::torch::{Dtype, ModuleId, Stream, Tensor, Torch, ops, trail};
use peakledger_core::{Category, Device};
use peakledger_input::Problem;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// The groups, and what is on its way between ranks.
pub(crate) struct Fsdp {
    torch: Rc<Torch>,
    /// In the order in which their forward passes end; backward fetches ahead the other way round.
    groups: Vec<Group>,
    reshard_after_forward: bool,
    /// Whether the group of the model itself is resharded too.
    reshards_root: bool,
    /// Whether the head has been called as a module in this forward, and not its weight reached for.
    called_head: Cell<bool>,
    /// The type that parameters are gathered in, where it is another than they are kept in.
    param_dtype: Option<Dtype>,
    reduce_dtype: Option<Dtype>,
    sync_each_batch: bool,
    /// Whether the schedule of a pipeline says when gradients are reduced.
    in_pipeline: bool,
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

impl Fsdp {
    /// Shares out the parameters of a model, and gives with the hooks what the optimizer steps.
    pub(crate) fn new(
        torch: &Rc<Torch>,
        options: &Options,
        mesh: &Mesh,
        parameters: Vec<Parameter>,
    ) -> Result<(Rc<Fsdp>, Vec<Parameter>), Problem> {
        let (groups, shards) = grouped(torch, options, mesh, parameters, false)?;
        Ok((Rc::new(Fsdp::of(torch, options, groups)), shards))
    }

    fn of(torch: &Rc<Torch>, options: &Options, groups: Vec<Group>) -> Fsdp {
        let data = &options.parallel.data;
        let reshard_after_forward = options.parallel.sharding != Sharding::ShardGradOp;
        Fsdp {
            torch: torch.clone(),
            groups,
            reshard_after_forward,
            reshards_root: reshard_after_forward && data.wrap.unwrap_or_default().reshards_root(),
            called_head: Cell::new(false),
            param_dtype: options.gathered(),
            reduce_dtype: data.reduce_dtype,
            sync_each_batch: data.sync_each_batch,
            in_pipeline: options.parallel.pp > 1,
            offloaded: options.offload.parameters,
            reduces: Cell::new(true),
            last_gathered: RefCell::new(None),
            last_reduced: RefCell::new(None),
        }
    }

    /// Shares out the parameters of a model that only runs forward. Whoever is whole at the end of that stays so
    /// (`FSDPState._post_forward`: nothing but a backward reshards what forward does not).
    pub(super) fn forward_only(
        torch: &Rc<Torch>,
        options: &Options,
        parameters: Vec<Parameter>,
        way: Way,
    ) -> Result<Rc<Fsdp>, Problem> {
        let (groups, _) = grouped(torch, options, &options.mesh()?, parameters, way.in_one_group)?;
        let mut fsdp = Fsdp::of(torch, options, groups);
        fsdp.reshards_root |= way.reshards_root;
        let stays = |group: &&Group| fsdp.stays_whole(group);
        for group in fsdp.groups.iter().filter(|_| way.within_training).filter(stays) {
            *group.state.borrow_mut() = State::Unsharded { _parameters: Vec::new() };
        }
        Ok(Rc::new(fsdp))
    }

    /// Everything is shared out again.
    pub(super) fn let_go(&self) {
        self.last_gathered.borrow_mut().take();
        self.groups.iter().for_each(|group| *group.state.borrow_mut() = State::Sharded);
    }

    /// The place of the group of a part, if it has one.
    fn group(&self, part: Part) -> Option<(usize, &Group)> {
        let at = self.groups.binary_search_by_key(&part, |group| group.part).ok()?;
        Some((at, self.groups.get(at)?))
    }

    /// A group's parameters come for its forward, and what the gather before them put out goes.
    fn pre_forward(&self, part: Part) {
        let Some((_, group)) = self.group(part) else { return };
        self.unshard_of(group);
        self.wait_for_unshard_of(group, true);
    }

    /// They go again, unless they stay to backward. Within backward, where a checkpoint runs a second time, they stay; who
    /// brought them there lets go of what the gather put out, as the outermost module of that run.
    fn post_forward(&self, part: Part) {
        if self.torch.is_recomputing() {
            self.last_gathered.borrow_mut().take();
        } else if let Some((_, group)) = self.group(part).filter(|(_, group)| !self.stays_whole(group)) {
            group.reshard();
        }
    }

    /// Whether a group stays whole from forward to backward, as what backward begins with does.
    fn stays_whole(&self, group: &Group) -> bool {
        match group.part {
            Part::Tail => true,
            Part::Root => !self.reshards_root,
            Part::Embedding | Part::InLayer(..) => !self.reshard_after_forward,
        }
    }

    /// A group's parameters come for its backward, and those of the one that comes next set out.
    fn pre_backward(&self, part: Part) {
        let Some((at, group)) = self.group(part) else { return };
        self.unshard_of(group);
        self.wait_for_unshard_of(group, false);
        let left_out = self.torch.left_out();
        let mut before = self.groups.iter().take(at).rev();
        if let Some(next) = before.find(|group| !group.is_of(&left_out)) {
            self.unshard_of(next);
        }
    }

    /// `unshard`: a group's parameters set out, cast to the type that they are used in.
    fn unshard_of(&self, group: &Group) {
        self.unshard_on(Stream::AllGather, group);
    }

    /// The same, on the stream that it is asked for on where that does not wait (`get_all_gather_streams`).
    fn unshard_on(&self, stream: Stream, group: &Group) {
        let mut state = group.state.borrow_mut();
        if !matches!(*state, State::Sharded) {
            return;
        }
        let (ranks, [peers, _]) = (group.ranks.shards, group.ranks.peers);
        if ranks == 1 {
            *state = State::Gathering(None);
            return;
        }
        let torch = &self.torch;
        let gather = || {
            let inputs = self.gather_inputs(group);
            let shard = group.parameters.iter().fold(0, |sum: u64, p| sum.saturating_add(p.shard_bytes()));
            let bytes = shard.saturating_mul(u64::from(ranks));
            torch.launch("empty.memory_format");
            let dtype = group.one_dtype();
            let output = buffer(torch, bytes / dtype.width(), dtype, "all-gather output");
            torch.launch("all_gather_copy_in");
            torch.moves(shard.saturating_mul(2));
            torch.launch("_allgather_base_");
            torch.communicates(Collective::AllGather, bytes, peers);
            drop(inputs);
            *state = State::Gathering(Some(output));
        };
        torch.inside(group.module, || torch.on_stream(stream, gather));
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
    fn wait_for_unshard_of(&self, group: &Group, in_forward: bool) {
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
                    let whole = |parameter: &Sharded| parameter.whole(group.ranks.shards);
                    let parameters = group.parameters.iter().map(whole).collect();
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

    /// The same, of a part that has a group.
    fn post_backward_of(&self, part: Part) {
        if let Some((_, group)) = self.group(part) {
            self.post_backward(group);
        }
    }

    /// `post_backward`: whole gradients are reduced to those of this rank's shards, and the parameters go. Where both wait for
    /// the other micro-batches of a pipeline, nothing goes.
    fn post_backward(&self, group: &Group) {
        group.done.set(true);
        if !self.reduces.get() {
            if !self.in_pipeline {
                group.reshard();
            }
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

    /// `_end_backward_iteration`: what was kept until all reductions are done goes.
    fn end_iteration(&self) {
        self.last_reduced.borrow_mut().take();
        for group in &self.groups {
            group.all_reduced.borrow_mut().take();
            let mut state = group.state.borrow_mut();
            if matches!(*state, State::Gathering(_)) {
                *state = State::Sharded;
            }
        }
    }

    /// All groups in the order of their modules, of which the model itself is the first.
    fn by_module(&self) -> impl DoubleEndedIterator<Item = &Group> {
        let of = |wanted: fn(&Group) -> bool| self.groups.iter().filter(move |group| wanted(group));
        let root = of(|group| group.part == Part::Root);
        let first = of(|group| group.part != Part::Root && group.begins_with_model);
        root.chain(first).chain(of(|group| !group.begins_with_model))
    }

    /// `foreach_reduce`: gradients side by side, each padded to so many rows as there are ranks; what goes out stays.
    fn reduce(&self, group: &Group, grads: Vec<(&Sharded, Tensor)>) -> Tensor {
        let (torch, ranks) = (&self.torch, group.ranks.shards);
        let [shards, replicas] = group.ranks.peers;
        let promoted = |dtype: Option<Dtype>, kept: Dtype| Some(dtype.map_or(kept, |d| d.promote(kept)));
        let kept =
            grads.iter().map(|(parameter, _)| parameter.kept).fold(None, promoted).unwrap_or(Dtype::F32);
        let dtype = self.reduce_dtype.unwrap_or(kept);
        let numbers = grads.iter().fold(0, |sum: u64, (p, _)| sum.saturating_add(p.shard_numbers()));
        torch.launch("empty.memory_format");
        let input = buffer(torch, numbers.saturating_mul(u64::from(ranks)), dtype, "reduce-scatter input");
        torch.launch("chunk_cat_mixed_dtype");
        torch.moves(grads.iter().fold(0, |sum: u64, (_, grad)| sum.saturating_add(grad.bytes())));
        let trained: Vec<&Sharded> = grads.iter().map(|(parameter, _)| *parameter).collect();
        drop(grads);
        torch.launch("empty.memory_format");
        let on_stream = |stream, dtype, name| torch.on_stream(stream, || buffer(torch, numbers, dtype, name));
        let output = on_stream(Stream::Reduce, dtype, "reduce-scatter output");
        if ranks == 1 {
            let divided = group.divides().then(|| {
                torch.launch("div.Tensor");
                on_stream(Stream::Reduce, dtype, "reduce-scatter input")
            });
            torch.launch("copy_");
            drop(divided);
        } else {
            torch.launch("_reduce_scatter_base_");
            torch.communicates(Collective::ReduceScatter, input.bytes(), shards);
        }
        let mut post_reduce = Stream::Reduce;
        if group.ranks.replicas > 1 {
            all_reduce(torch, output.bytes(), replicas);
            *group.all_reduced.borrow_mut() = Some(output.clone());
            post_reduce = Stream::AllReduce;
        }
        let output = if dtype == kept {
            output
        } else {
            torch.launch("_to_copy");
            on_stream(post_reduce, kept, "reduce-scatter output")
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
            reduced.rename(Category::Gradient, "gradients of the shards");
            held.push(reduced);
        } else {
            trained.iter().for_each(|_| torch.launch("add_.Tensor"));
            torch.reads(&[&reduced, &reduced, &reduced]);
        }
    }
}

impl ModuleHooks for Fsdp {
    /// A pipeline has every backward leave what it made (`backward_maybe_with_nosync`, `torch/distributed/pipelining/stage.py`).
    fn begin(&self, is_last: bool) {
        let reduces = !self.in_pipeline && (is_last || self.sync_each_batch);
        self.reduces.set(reduces);
        let left_out = self.torch.left_out();
        for group in &self.groups {
            group.done.set(group.is_of(&left_out));
            for parameter in &group.parameters {
                let Some(leaf) = &parameter.leaf else { continue };
                // what is reduced at once is cast as it is copied in (`_set_unsharded_grad_dtypes`)
                let summed_in = self.reduce_dtype.unwrap_or(parameter.kept);
                let is_wider = summed_in.width() > parameter.used().width();
                leaf.summed_in.set((!is_wider || !reduces).then_some(summed_in));
            }
        }
    }

    /// The model's own parameters come, and those of the embedding, which is its first module.
    fn enter(&self) {
        self.called_head.set(false);
        for group in self.by_module().filter(|group| group.begins_with_model) {
            self.pre_forward(group.part);
        }
    }

    fn after_embedding(self: Rc<Self>, embedded: Tensor) -> Tensor {
        if self.group(Part::Embedding).is_none() {
            return embedded;
        }
        self.post_forward(Part::Embedding);
        on_gradient(embedded, move || self.pre_backward(Part::Embedding))
    }

    fn around(self: Rc<Self>, layers: Range<usize>, hidden_states: &Tensor, run: Inner<'_>) -> Tensor {
        let part = Part::InLayer(self.torch.in_model(layers.start), Within::Layer);
        self.pre_forward(part);
        let this = self.clone();
        let input = on_gradient(hidden_states.clone(), move || this.post_backward_of(part));
        let output = run(&input);
        self.post_forward(part);
        on_gradient(output, move || self.pre_backward(part))
    }

    /// What goes into the experts is cast to the type that they are gathered in (`cast_forward_inputs`).
    fn around_experts(
        self: Rc<Self>,
        module: ModuleId,
        inputs: [&Tensor; 2],
        run: InnerExperts<'_>,
    ) -> Tensor {
        let layer = self.torch.tape.borrow().layer(module);
        let part = Part::InLayer(layer.map_or(0, |layer| layer as usize), Within::Experts);
        let cast = |input: &Tensor| self.param_dtype.map_or(input.clone(), |dtype| ops::to(input, dtype));
        let inputs = inputs.map(cast);
        self.pre_forward(part);
        let this = self.clone();
        let inputs = on_gradients(inputs, move || this.post_backward_of(part));
        let output = run(&inputs);
        self.post_forward(part);
        on_gradient(output, move || self.pre_backward(part))
    }

    /// The last norm and the head come, where they have not come with the embedding.
    fn before_head(self: Rc<Self>, hidden_states: Tensor) -> Tensor {
        match self.group(Part::Tail) {
            Some((_, tail)) if !tail.begins_with_model => {
                self.pre_forward(Part::Tail);
                on_gradient(hidden_states, move || self.post_backward_of(Part::Tail))
            }
            _ => hidden_states,
        }
    }

    fn after_head(self: Rc<Self>, logits: Tensor) -> Tensor {
        if self.group(Part::Tail).is_none() {
            return logits;
        }
        self.called_head.set(true);
        on_gradient(logits, move || self.pre_backward(Part::Tail))
    }

    /// The root's parameters go, if they do. A head that was not called is taken to have put out what the model does
    /// (`_force_complete_incomplete_states`).
    fn leave(self: Rc<Self>, output: Tensor) -> Tensor {
        self.post_forward(Part::Root);
        self.last_gathered.borrow_mut().take();
        on_gradient(output, move || {
            self.pre_backward(Part::Root);
            if !self.called_head.get() {
                self.pre_backward(Part::Tail);
            }
        })
    }

    /// The groups whose backward nothing told the end of, the root first (`_root_post_backward_final_callback`).
    fn end(&self) {
        for group in self.by_module().filter(|group| !group.done.get()) {
            self.post_backward(group);
        }
        if !self.in_pipeline {
            self.end_iteration();
        }
    }

    /// All groups, in the order of their modules (`_PipelineScheduleRuntime._step_microbatches`).
    fn unshard(&self) {
        self.by_module().for_each(|group| self.unshard_on(Stream::Compute, group));
    }

    fn wait_for_unshard(&self) {
        self.by_module().for_each(|group| self.wait_for_unshard_of(group, false));
    }

    fn reshard(&self) {
        self.groups.iter().for_each(Group::reshard);
    }

    /// What all backwards left is reduced, the last group first and the root in the end (`FSDPState.finalize_backward`).
    fn reduce_grad(&self) {
        self.reduces.set(true);
        let left_out = self.torch.left_out();
        for group in self.by_module().rev().filter(|group| !group.is_of(&left_out)) {
            self.torch.comes_to(match group.part {
                Part::InLayer(layer, _) => trail::Part::Layer(self.torch.as_run(layer)),
                _ => trail::Part::Between,
            });
            self.post_backward(group);
        }
        self.end_iteration();
    }

    fn zero_grad(&self) {
        self.groups.iter().for_each(|group| group.grads.borrow_mut().clear());
    }
}
