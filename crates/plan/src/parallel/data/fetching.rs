//! What ZeRO 3 has of whole parameters, and when (`PartitionedParameterCoordinator`,
//! `deepspeed/runtime/zero/partitioned_param_coordinator.py`).

use super::ZeroSizes;
use super::communication::buffer;
use super::gathered::GATHERED;
use crate::nn::Parameter;
use crate::torch::cost::Collective;
use crate::torch::tape::{Role, rounded};
use crate::torch::{Layout, Tensor, Torch};
use peakledger_core::{Category, Device};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Numbers of other parameters until which the next use of one counts as soon (`stage3_max_reuse_distance`).
const SOON: u64 = 1_000_000_000;

/// The parameters, in units that are used together.
pub(super) struct Fetching {
    torch: Rc<Torch>,
    parameters: Vec<Parameter>,
    /// The parameters of the embedding, of each layer, and of what follows the layers.
    units: Vec<Vec<usize>>,
    /// The uses of parameters in a micro-batch, in order: forward, then backward.
    trace: Vec<usize>,
    ranks: u32,
    sizes: ZeroSizes,
    from: Device,
    state: RefCell<Vec<State>>,
    /// What is on its way, or was.
    handles: RefCell<Vec<Option<Handle>>>,
    /// Numbers that are here or on their way (`__n_available_params`).
    available: Cell<u64>,
    /// The use that is to be fetched next.
    next: Cell<usize>,
    /// The use that is reached.
    reached: Cell<usize>,
}

/// A buffer, and the parameters that will be copied out of it (`AllGatherCoalescedHandle`).
struct Handle {
    flat: Tensor,
    parameters: Vec<usize>,
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
        ranks: u32,
        sizes: ZeroSizes,
        from: Device,
    ) -> Fetching {
        let layer = |parameter: &Parameter| torch.tape.borrow().layer(parameter.module);
        let layers = parameters.iter().filter_map(layer).max().map_or(0, |last| last as usize + 1);
        let mut units: Vec<Vec<usize>> = vec![Vec::new(); layers + 2];
        let mut after_layers = false;
        for (index, parameter) in parameters.iter().enumerate() {
            let unit = match layer(parameter) {
                Some(layer) => layer as usize + 1,
                None if after_layers => layers + 1,
                None => 0,
            };
            after_layers |= unit > 0;
            if let Some(unit) = units.get_mut(unit) {
                unit.push(index);
            }
        }
        let is_matrix = |index: &usize| parameters.get(*index).is_some_and(|p| p.tensor.sizes().len() > 1);
        let has_head = units.last().is_some_and(|back| back.iter().any(is_matrix));
        let embedding = units.first().and_then(|front| front.first()).copied();
        if let (false, Some(embedding), Some(back)) = (has_head, embedding, units.last_mut()) {
            back.push(embedding); // a tied head
        }
        let in_backward = units.iter().rev().flat_map(|unit| unit.iter().rev());
        let trace = units.iter().flatten().chain(in_backward).copied().collect();
        let state = parameters.iter().map(|parameter| {
            let numbers = parameter.tensor.layout().numel();
            let persists = numbers <= sizes.param_persistence_threshold;
            let tensor = &parameter.tensor;
            if persists {
                let padded = numbers.div_ceil(u64::from(ranks)).saturating_mul(u64::from(ranks));
                let bytes = rounded(padded.saturating_mul(tensor.dtype().width()));
                tensor.relabel(|stored| stored.bytes = bytes);
                return State::Persistent { _parameter: None };
            }
            let now = torch.tape.borrow().next();
            tensor.relabel(|stored| (stored.bytes, stored.death) = (0, now));
            State::Partitioned
        });
        let state = RefCell::new(state.collect());
        Fetching {
            torch: torch.clone(),
            units,
            trace,
            ranks,
            sizes,
            from,
            state,
            handles: RefCell::new(Vec::new()),
            available: Cell::new(0),
            next: Cell::new(0),
            reached: Cell::new(0),
            parameters,
        }
    }

    /// The embedding and what else is before the layers.
    pub(super) fn front(&self) -> usize {
        0
    }

    pub(super) fn layer(&self, index: usize) -> usize {
        index + 1
    }

    /// The norm and the head.
    pub(super) fn back(&self) -> usize {
        self.units.len() - 1
    }

    /// Whether parts are fetched from the host.
    pub(super) fn is_from_host(&self) -> bool {
        self.from == Device::Cpu
    }

    pub(super) fn forward(&self, unit: usize) {
        let before = self.units.iter().take(unit).map(Vec::len).sum();
        self.fetch(unit, before);
    }

    pub(super) fn backward(&self, unit: usize) {
        let after: usize = self.units.iter().skip(unit + 1).map(Vec::len).sum();
        self.fetch(unit, self.trace.len() / 2 + after);
    }

    /// `fetch_sub_module`: what the unit needs, and what comes after it, a bucket for each of its modules.
    fn fetch(&self, unit: usize, at: usize) {
        let Some(members) = self.units.get(unit) else { return };
        for index in members {
            self.gather(&[*index]);
            self.wait(*index);
        }
        let here = at + members.len();
        self.reached.set(here);
        self.next.set(self.next.get().max(here));
        let mut modules: Vec<_> = members.iter().filter_map(|index| self.parameters.get(*index)).collect();
        modules.dedup_by_key(|parameter| parameter.module);
        for _ in modules {
            let room = self.sizes.max_live_parameters.saturating_sub(self.available.get());
            let most = room.min(self.sizes.prefetch_bucket_size);
            let (mut ahead, mut numbers) = (Vec::new(), 0u64);
            while numbers < most {
                let Some(index) = self.trace.get(self.next.get()).copied() else { break };
                self.next.set(self.next.get() + 1);
                if self.is_partitioned(index) && !ahead.contains(&index) {
                    numbers = numbers.saturating_add(self.numbers(index));
                    ahead.push(index);
                }
            }
            if ahead.is_empty() {
                break;
            }
            self.gather(&ahead);
        }
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
    fn gather(&self, indices: &[usize]) {
        let indices: Vec<usize> =
            indices.iter().copied().filter(|index| self.is_partitioned(*index)).collect();
        let Some(first) = indices.first().and_then(|index| self.parameters.get(*index)) else { return };
        let torch = &self.torch;
        let ranks = u64::from(self.ranks);
        let padded = |index: &usize| self.numbers(*index).div_ceil(ranks).saturating_mul(ranks);
        let numbers = indices.iter().map(padded).fold(0, u64::saturating_add);
        let dtype = first.tensor.dtype();
        torch.inside(first.module, || {
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
                    several.iter().for_each(|index| self.set(*index, State::InFlight(handles.len())));
                    handles.push(Some(Handle { flat, parameters: several.to_vec() }));
                }
            }
            torch.launch("_allgather_base_");
            torch.communicates(Collective::AllGather, numbers.saturating_mul(dtype.width()), self.ranks);
        });
        let all =
            indices.iter().map(|index| self.numbers(*index)).fold(self.available.get(), u64::saturating_add);
        self.available.set(all);
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
        self.persistent()
            .for_each(|(_, parameter)| parameter.tensor.relabel(|stored| stored.death = now));
    }

    /// It ends with these whole again, each in a place of its own (`_allgather_params_coalesced`).
    pub(super) fn gather_persistent(&self) {
        let ranks = u64::from(self.ranks);
        let persistent: Vec<(usize, &Parameter)> = self.persistent().collect();
        for (index, parameter) in persistent {
            self.torch.launch("empty.memory_format");
            let numbers = self.numbers(index).div_ceil(ranks).saturating_mul(ranks);
            self.set(index, State::Persistent { _parameter: Some(self.whole(parameter, numbers)) });
            self.torch.communicates(
                Collective::AllGather,
                numbers.saturating_mul(parameter.tensor.dtype().width()),
                self.ranks,
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
        let handle = match self.state.borrow().get(index) {
            Some(State::InFlight(handle)) => *handle,
            _ => return,
        };
        let taken = self.handles.borrow_mut().get_mut(handle).and_then(Option::take);
        let Some(Handle { flat, parameters }) = taken else { return };
        for index in parameters {
            let Some(parameter) = self.parameters.get(index) else { continue };
            self.torch.launch("cat");
            self.set(index, State::Whole { _parameter: self.whole(parameter, self.numbers(index)) });
        }
        drop(flat);
    }

    /// `release_sub_module`: what is not used again soon goes.
    pub(super) fn release(&self, unit: usize) {
        for index in self.units.get(unit).into_iter().flatten() {
            let is_whole = matches!(self.state.borrow().get(*index), Some(State::Whole { .. }));
            if is_whole && !self.is_soon(*index) {
                self.set(*index, State::Partitioned);
                self.available.set(self.available.get().saturating_sub(self.numbers(*index)));
            }
        }
    }

    /// Whether its next use is near, or was passed over as it was here when parameters were fetched ahead.
    fn is_soon(&self, index: usize) -> bool {
        let mut between = 0u64;
        for (at, used) in self.trace.iter().enumerate().skip(self.reached.get()) {
            if *used == index {
                return at < self.next.get() || between < SOON;
            }
            between = between.saturating_add(self.numbers(*used));
        }
        false
    }

    /// A micro-batch has ended: all go but those that stay for good.
    pub(super) fn reset(&self) {
        for slot in self.state.borrow_mut().iter_mut() {
            if !matches!(slot, State::Persistent { .. }) {
                *slot = State::Partitioned;
            }
        }
        self.handles.borrow_mut().clear();
        self.available.set(0);
        self.next.set(0);
        self.reached.set(0);
    }
}
