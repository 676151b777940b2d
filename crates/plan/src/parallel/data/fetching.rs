//! What ZeRO 3 has of whole parameters, and when (`PartitionedParameterCoordinator`,
//! `deepspeed/runtime/zero/partitioned_param_coordinator.py`).

use super::ZeroSizes;
use super::communication::buffer;
use super::gathered::GATHERED;
use crate::nn::{HEAD, Parameter};
use crate::torch::network::{Collective, Peers};
use crate::torch::tape::{Module, ModuleName, Role, rounded};
use crate::torch::{Layout, ModuleId, Stream, Tensor, Torch};
use peakledger_core::{Category, Device};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Numbers of other parameters until which the next use of one counts as soon (`stage3_max_reuse_distance`).
pub(super) const SOON: u64 = 1_000_000_000;

/// The parameters, as modules use them.
pub(super) struct Fetching {
    torch: Rc<Torch>,
    parameters: Vec<Parameter>,
    /// The parameters that each module has itself.
    of_modules: Vec<SmallVec<[usize; 2]>>,
    /// For which modules a micro-batch fetches, in order: forward, then backward. Nothing where it was not traced.
    trace: Vec<ModuleId>,
    /// The uses of parameters in that order, each with its place in the trace (`__param_order`).
    uses: Vec<(usize, usize)>,
    /// The places in the trace at which each parameter is used.
    places: Vec<SmallVec<[usize; 4]>>,
    /// Numbers of the parameters that are used before each place.
    used_before: Vec<u64>,
    ranks: u32,
    peers: Peers,
    sizes: ZeroSizes,
    from: Device,
    /// Where parameters are gathered and copied out of what was gathered.
    gathers_on: Stream,
    state: RefCell<Vec<State>>,
    /// What is on its way, or was.
    handles: RefCell<Vec<Handle>>,
    /// The handle in which a parameter is registered.
    registry: RefCell<Vec<Option<usize>>>,
    /// Numbers that are here or on their way (`__n_available_params`).
    available: Cell<u64>,
    /// The use that is to be fetched next.
    next: Cell<usize>,
    /// The place in the trace that is reached (`__step_id`).
    reached: Cell<usize>,
    /// For which place in the trace each parameter is here, or was (`__most_recent_step_id_param_fetched_for`).
    here_for: RefCell<Vec<Option<usize>>>,
}

/// A buffer, and the parameters that are copied out of it (`AllGatherCoalescedHandle`). It stays until the module of the last
/// of them is fetched for: each has the handle in the registry till then (`__inflight_param_registry`).
struct Handle {
    flat: Option<Tensor>,
    parameters: Vec<usize>,
    /// How many of them no module has asked for yet.
    registered: usize,
}

enum State {
    Partitioned,
    /// In that handle.
    InFlight(usize),
    Whole {
        _parameter: Tensor,
    },
    /// Below the threshold: whole but for the update, after which it is gathered anew.
    Persistent {
        _parameter: Option<Tensor>,
    },
}

impl Fetching {
    pub(super) fn new(
        torch: &Rc<Torch>,
        parameters: Vec<Parameter>,
        peers: Peers,
        sizes: ZeroSizes,
        from: Device,
    ) -> Fetching {
        let ranks = peers.ranks;
        let mut of_modules = vec![SmallVec::new(); torch.tape.borrow().modules.len()];
        for (index, parameter) in parameters.iter().enumerate() {
            if let Some(own) = of_modules.get_mut(parameter.module.0 as usize) {
                own.push(index);
            }
        }
        let is_head = |module: &Module| module.name == ModuleName::Word(HEAD);
        let head = torch.tape.borrow().modules.iter().position(is_head);
        let head = head.and_then(|head| of_modules.get_mut(head));
        if let Some(own) = head.filter(|own| own.is_empty()) {
            own.push(0); // tied to the embedding
        }
        let state = parameters.iter().map(|parameter| {
            let numbers = parameter.tensor.layout().numel();
            let tensor = &parameter.tensor;
            if numbers <= sizes.param_persistence_threshold {
                let bytes = rounded(padded(numbers, ranks).saturating_mul(tensor.dtype().width()));
                tensor.relabel(|stored| stored.bytes = bytes);
                return State::Persistent { _parameter: None };
            }
            let now = torch.tape.borrow().next();
            tensor.relabel(|stored| (stored.bytes, stored.death) = (0, now));
            State::Partitioned
        });
        let state: Vec<State> = state.collect();
        Fetching {
            torch: torch.clone(),
            of_modules,
            trace: Vec::new(),
            uses: Vec::new(),
            places: vec![SmallVec::new(); state.len()],
            used_before: Vec::new(),
            ranks,
            peers,
            sizes,
            from,
            gathers_on: if sizes.overlaps_in_stage_3() { Stream::AllGather } else { Stream::Compute },
            here_for: RefCell::new(vec![None; state.len()]),
            registry: RefCell::new(vec![None; state.len()]),
            state: RefCell::new(state),
            handles: RefCell::default(),
            available: Cell::new(0),
            next: Cell::new(0),
            reached: Cell::new(0),
            parameters,
        }
    }

    /// Takes the modules of a micro-batch in order.
    pub(super) fn follow(&mut self, trace: Vec<ModuleId>) {
        let mut used = 0u64;
        for (at, module) in trace.iter().enumerate() {
            self.used_before.push(used);
            for index in self.of_modules.get(module.0 as usize).into_iter().flatten() {
                self.uses.push((*index, at));
                if let Some(places) = self.places.get_mut(*index) {
                    places.push(at);
                }
                used = used.saturating_add(self.numbers(*index));
            }
        }
        self.trace = trace;
    }

    pub(super) fn has_parameters(&self, module: ModuleId) -> bool {
        !self.own(module).is_empty()
    }

    fn own(&self, module: ModuleId) -> &[usize] {
        self.of_modules.get(module.0 as usize).map_or(&[], SmallVec::as_slice)
    }

    /// Whether parts are fetched from the host.
    pub(super) fn is_from_host(&self) -> bool {
        self.from == Device::Cpu
    }

    /// `fetch_sub_module`: what the module needs, and a bucket of what comes after it.
    pub(super) fn fetch(&self, module: ModuleId) {
        let own = self.own(module);
        let rest = self.trace.get(self.reached.get()..).unwrap_or_default();
        let Some(ahead) = rest.iter().position(|next| *next == module) else {
            if self.trace.is_empty() {
                self.bring(own);
            }
            return;
        };
        let at = self.reached.get() + ahead;
        self.bring(own);
        let mut due: Vec<usize> = {
            let here_for = self.here_for.borrow();
            let is_due = |index: &&usize| here_for.get(**index).is_some_and(|is| is.is_none_or(|is| is < at));
            own.iter().filter(is_due).copied().collect()
        };
        while !due.is_empty() {
            let Some(index) = self.next_use() else { break };
            due.retain(|due| *due != index);
        }
        let room = self.sizes.max_live_parameters.saturating_sub(self.available.get());
        let most = room.min(self.sizes.prefetch_bucket_size);
        let (mut ahead, mut numbers) = (Vec::new(), 0u64);
        while numbers < most {
            let Some(index) = self.next_use() else { break };
            if self.is_partitioned(index) && !ahead.contains(&index) {
                numbers = numbers.saturating_add(self.numbers(index));
                ahead.push(index);
            }
        }
        self.gather(ahead);
        self.reached.set(at + 1);
    }

    /// The parameter whose turn it is to be fetched, and for which use.
    fn next_use(&self) -> Option<usize> {
        let (index, at) = self.uses.get(self.next.get()).copied()?;
        self.next.set(self.next.get() + 1);
        if let Some(slot) = self.here_for.borrow_mut().get_mut(index) {
            *slot = (*slot).max(Some(at));
        }
        Some(index)
    }

    /// What goes from one layer into the next: numbers that are here, numbers that were asked for ahead of the place that is
    /// reached, and parameters that are registered.
    pub(super) fn carried(&self) -> [u64; 3] {
        let used_before = |at: usize| self.used_before.get(at).copied().unwrap_or(0);
        let asked = self.uses.get(self.next.get()).map_or(0, |(_, at)| used_before(*at));
        let registered: usize = self.handles.borrow().iter().map(|handle| handle.registered).sum();
        [self.available.get(), asked.saturating_sub(used_before(self.reached.get())), registered as u64]
    }

    /// What is not here comes together, and is waited for.
    fn bring(&self, own: &[usize]) {
        self.gather(own.iter().copied().filter(|index| self.is_partitioned(*index)).collect());
        own.iter().for_each(|index| self.wait(*index));
    }

    fn numbers(&self, index: usize) -> u64 {
        self.parameters.get(index).map_or(0, |parameter| parameter.tensor.layout().numel())
    }

    fn is_partitioned(&self, index: usize) -> bool {
        matches!(self.state.borrow().get(index), Some(State::Partitioned))
    }

    fn set(&self, index: usize, state: State) {
        if let Some(slot) = self.state.borrow_mut().get_mut(index) {
            *slot = state;
        }
    }

    /// Parameters that are not here set out: one into its place, several into a buffer (`all_gather_coalesced`).
    fn gather(&self, indices: Vec<usize>) {
        let Some(first) = indices.first().and_then(|index| self.parameters.get(*index)) else { return };
        let torch = &self.torch;
        let ranks = u64::from(self.ranks);
        let padded = |index: &usize| padded(self.numbers(*index), self.ranks);
        let numbers = indices.iter().map(padded).fold(0, u64::saturating_add);
        let dtype = first.tensor.dtype();
        let all =
            indices.iter().map(|index| self.numbers(*index)).fold(self.available.get(), u64::saturating_add);
        self.available.set(all);
        let gather = || {
            if self.from == Device::Cpu {
                torch.launch("_to_copy");
                let _fetched = buffer(torch, numbers / ranks, dtype, "shards to gather");
                torch.fetches_from_host((numbers / ranks).saturating_mul(dtype.width()));
            }
            torch.launch("empty.memory_format");
            match indices.as_slice() {
                [only] => self.set(*only, State::Whole { _parameter: self.whole(first, numbers) }),
                several => {
                    let flat = buffer(torch, numbers, dtype, "all-gather output");
                    let mut handles = self.handles.borrow_mut();
                    let mut registry = self.registry.borrow_mut();
                    for index in several {
                        self.set(*index, State::InFlight(handles.len()));
                        if let Some(slot) = registry.get_mut(*index) {
                            *slot = Some(handles.len());
                        }
                    }
                    handles.push(Handle { flat: Some(flat), registered: indices.len(), parameters: indices });
                }
            }
            torch.launch("_allgather_base_");
            torch.communicates(Collective::AllGather, numbers.saturating_mul(dtype.width()), self.peers);
        };
        torch.said_of(first.module, || torch.on_stream(self.gathers_on, gather));
    }

    /// A weight that is reached for outside its module is gathered by itself, unless it is here
    /// (`maybe_gather_lm_head_ctx`, `trl/trainer/utils.py`).
    pub(super) fn reached_for(&self, weight: &Tensor) -> Option<Tensor> {
        let is_it = |parameter: &Parameter| parameter.tensor.storage_id() == weight.storage_id();
        let index = self.parameters.iter().position(is_it).filter(|index| self.is_partitioned(*index))?;
        self.gathered_alone(index)
    }

    /// Every parameter that is not here, whole and each in a place of its own (`_allgather_params_coalesced`).
    pub(super) fn gathered(&self) -> Vec<Tensor> {
        let partitioned = (0..self.parameters.len()).filter(|index| self.is_partitioned(*index));
        partitioned.filter_map(|index| self.gathered_alone(index)).collect()
    }

    fn gathered_alone(&self, index: usize) -> Option<Tensor> {
        let (parameter, torch) = (self.parameters.get(index)?, &self.torch);
        let numbers = padded(self.numbers(index), self.ranks);
        torch.launch("empty.memory_format");
        let whole = self.whole(parameter, numbers);
        torch.launch("_allgather_base_");
        let bytes = numbers.saturating_mul(parameter.tensor.dtype().width());
        torch.communicates(Collective::AllGather, bytes, self.peers);
        Some(whole)
    }

    fn whole(&self, parameter: &Parameter, numbers: u64) -> Tensor {
        let whole = self.torch.empty(Layout::contiguous(&[numbers]), parameter.tensor.dtype());
        whole.relabel(|stored| {
            (stored.category, stored.detail) = (Category::Parameter, None);
            stored.module = parameter.module;
            stored.role = Role::Of { parameter: parameter.id, state: GATHERED };
        });
        whole
    }

    fn persistent(&self) -> impl Iterator<Item = (usize, &Parameter)> {
        let persists =
            |index: &usize| matches!(self.state.borrow().get(*index), Some(State::Persistent { .. }));
        self.parameters.iter().enumerate().filter(move |(index, _)| persists(index))
    }

    /// An update begins with all parameters shared out.
    pub(super) fn release_persistent(&self) {
        let now = self.torch.tape.borrow().now();
        self.persistent().for_each(|(_, parameter)| parameter.tensor.relabel(|stored| stored.death = now));
    }

    /// It ends with these whole again, each in a place of its own (`_allgather_params_coalesced`).
    pub(super) fn gather_persistent(&self) {
        let persistent: Vec<(usize, &Parameter)> = self.persistent().collect();
        for (index, parameter) in persistent {
            self.torch.launch("empty.memory_format");
            let numbers = padded(self.numbers(index), self.ranks);
            self.set(index, State::Persistent { _parameter: Some(self.whole(parameter, numbers)) });
            self.torch.communicates(
                Collective::AllGather,
                numbers.saturating_mul(parameter.tensor.dtype().width()),
                self.peers,
            );
        }
    }

    /// The next step begins with them as this one did.
    pub(super) fn forget_persistent(&self) {
        for slot in self.state.borrow_mut().iter_mut() {
            if let State::Persistent { _parameter } = slot {
                *_parameter = None;
            }
        }
    }

    /// What came in a buffer is copied out, all of it (`AllGatherCoalescedHandle.wait`).
    fn wait(&self, index: usize) {
        let in_flight = match self.state.borrow().get(index) {
            Some(State::InFlight(handle)) => Some(*handle),
            _ => None,
        };
        let take = |handle: usize| {
            self.handles.borrow_mut().get_mut(handle).map(|handle| std::mem::take(&mut handle.parameters))
        };
        let parameters = in_flight.and_then(take);
        for index in parameters.into_iter().flatten() {
            let Some(parameter) = self.parameters.get(index) else { continue };
            self.torch.launch("cat");
            let copy = || self.whole(parameter, self.numbers(index));
            self.set(index, State::Whole { _parameter: self.torch.on_stream(self.gathers_on, copy) });
        }
        let handle = self.registry.borrow_mut().get_mut(index).and_then(Option::take);
        let mut handles = self.handles.borrow_mut();
        if let Some(handle) = handle.and_then(|handle| handles.get_mut(handle)) {
            handle.registered = handle.registered.saturating_sub(1);
            if handle.registered == 0 {
                handle.flat = None;
            }
        }
    }

    /// `release_sub_module`: what is not used again soon goes.
    pub(super) fn release(&self, module: ModuleId) {
        let is_whole = |index: usize| matches!(self.state.borrow().get(index), Some(State::Whole { .. }));
        for index in self.own(module).iter().copied() {
            if is_whole(index) && !self.is_passed_over(index) && !self.is_used_soon(index) {
                self.set(index, State::Partitioned);
                self.available.set(self.available.get().saturating_sub(self.numbers(index)));
            }
        }
    }

    /// Whether a parameter was fetched for a later place than the one that is reached.
    fn is_passed_over(&self, index: usize) -> bool {
        let here_for = self.here_for.borrow();
        here_for.get(index).is_some_and(|at| at.is_some_and(|at| at > self.reached.get()))
    }

    /// Whether fewer than so many numbers are used before the next use of a parameter.
    fn is_used_soon(&self, index: usize) -> bool {
        let reached = self.reached.get();
        let used_before = |at: usize| self.used_before.get(at).copied().unwrap_or(0);
        let next = self.places.get(index).and_then(|places| places.iter().find(|at| **at >= reached));
        next.is_some_and(|next| used_before(*next).saturating_sub(used_before(reached)) < SOON)
    }

    /// A micro-batch has ended: all go but those that stay for good.
    pub(super) fn reset(&self) {
        for slot in self.state.borrow_mut().iter_mut() {
            if !matches!(slot, State::Persistent { .. }) {
                *slot = State::Partitioned;
            }
        }
        self.handles.borrow_mut().clear();
        self.registry.borrow_mut().fill(None);
        self.available.set(0);
        self.next.set(0);
        self.reached.set(0);
        self.here_for.borrow_mut().fill(None);
    }
}

/// A rank's part of so many numbers; the last may be padded (`ds_tensor`).
pub(super) fn part(numbers: u64, ranks: u32) -> u64 {
    numbers.div_ceil(u64::from(ranks.max(1)))
}

/// The parts of all ranks together.
fn padded(numbers: u64, ranks: u32) -> u64 {
    part(numbers, ranks).saturating_mul(u64::from(ranks))
}
