//! One timeline of many tapes: phases laid one behind the other, what passes shifted to where its phase lies, what persists
//! spread over all of them by who needs it when.

use super::composed::{Composed, Group, OF};
use super::models::{Model, Models};
use super::pass::Pass;
use super::rollout::{Sampled, Sampler};
use super::vllm::Pool;
use super::{OffloadBetween, PostTraining};
use crate::contributors::Places;
use crate::parallel::Sharding;
use crate::{Plan, Step};
use peakledger_core::{
    Bytes, Category, Device, Ledger, Moment, Phase, Residencies, Residency, Slot, State, Timeline,
};
use peakledger_input::Problem;
use std::num::NonZeroU32;

/// A tape, or vLLM's rollout, which has none.
pub(super) struct Part<'a> {
    pub(super) pass: Pass,
    plan: Option<&'a Plan>,
    /// Whose weights it runs.
    model: Option<Model>,
    /// Whether what persists in it is listed from here.
    owns: bool,
}

/// A part where it is laid: once, or in each micro-batch.
pub(super) struct Laid {
    pub(super) part: usize,
    pub(super) micro_batch: Option<u32>,
    /// Its phases as its own timeline has them and in its order, each with where it begins now.
    slots: Vec<(Slot, Moment)>,
}

impl Laid {
    /// Where a stay is now; what ends before the first phase that is laid is nowhere.
    fn shifted(&self, stay: &Residency) -> Option<Residency> {
        let first = self.slots.first()?;
        let start = self.moved(stay.start.max(first.0.first))?;
        (stay.end >= first.0.first)
            .then(|| Some(Residency { device: stay.device, start, end: self.moved(stay.end)? }))?
    }

    fn moved(&self, moment: Moment) -> Option<Moment> {
        let at = self.slots.partition_point(|(slot, _)| slot.first <= moment).checked_sub(1)?;
        let (slot, first) = self.slots.get(at)?;
        (moment <= slot.last).then(|| Moment(first.0 + (moment.0 - slot.first.0)))
    }

    pub(super) fn last(&self) -> Moment {
        self.slots.last().map_or(Moment(0), |(slot, first)| Moment(first.0 + (slot.last.0 - slot.first.0)))
    }
}

/// The states of the ledger, and what each is grouped under.
#[derive(Default)]
pub(super) struct List {
    groups: Vec<Group>,
    states: Vec<State>,
}

impl List {
    pub(super) fn push(&mut self, group: Group, state: State) {
        self.groups.push(group);
        self.states.push(state);
    }
}

/// Puts the parts together.
pub(super) struct Composer<'a> {
    pub(super) parts: Vec<Part<'a>>,
    pub(super) pool: Option<&'a Pool>,
    pub(super) request: &'a PostTraining,
    timeline: Timeline,
    pub(super) laid: Vec<Laid>,
    /// The phases in order: which of the laid they are of, and their moments.
    order: Vec<(usize, Moment, Moment)>,
    peak_ops: Vec<Option<Box<str>>>,
    is_full: bool,
}

impl<'a> Composer<'a> {
    pub(super) fn new(
        request: &'a PostTraining,
        models: &'a Models,
        sampled: Option<&'a Sampled>,
    ) -> Composer<'a> {
        let mut parts = Vec::new();
        let mut pool = None;
        if let Some(sampled) = sampled {
            let (plan, model) = match &sampled.by {
                Sampler::Generate(plan) => (Some(&**plan), Some(Model::Actor)),
                Sampler::Pool(own) => {
                    pool = Some(own);
                    if own.gathered > Bytes::ZERO {
                        let model = Some(Model::Actor);
                        parts.push(Part { pass: Pass::Sync, plan: None, model, owns: false });
                    }
                    (None, None)
                }
            };
            parts.push(Part { pass: Pass::Rollout, plan, model, owns: false });
        }
        let scorers = models.scorers.iter().map(|scorer| Part {
            pass: Pass::Score(scorer.scores_as),
            plan: Some(&scorer.plan),
            model: Some(scorer.model),
            owns: scorer.owns_weights,
        });
        parts.extend(scorers);
        let trained = [(Model::Actor, Some(&models.actor)), (Model::Critic, models.critic.as_ref())];
        for (model, plan) in trained {
            let Some(plan) = plan else { continue };
            parts.push(Part { pass: Pass::Train(model), plan: Some(plan), model: Some(model), owns: true });
        }
        Composer {
            parts,
            pool,
            request,
            timeline: Timeline::empty(),
            laid: Vec::new(),
            order: Vec::new(),
            peak_ops: Vec::new(),
            is_full: false,
        }
    }

    /// Lays the phases: those before training, then the training steps, with what runs inside their micro-batches.
    pub(super) fn lay_out(&mut self) {
        let inside = self.request.algorithm.scores_inside();
        for part in 0..self.parts.len() {
            let trains = self.parts.get(part).is_some_and(|part| part.pass.trains());
            if trains {
                self.lay_training(part, inside);
            } else if !inside {
                self.lay(part, None);
            }
        }
    }

    /// Lays a part that is not trained.
    fn lay(&mut self, part: usize, micro_batch: Option<u32>) {
        let laid = self.begin(part, micro_batch);
        match self.parts.get(part).and_then(|part| part.plan) {
            Some(plan) => {
                let phases = plan.steady.timeline.slots().iter().zip(&plan.steady.phases);
                for (slot, phase) in phases.filter(|(slot, _)| slot.phase != Phase::Load) {
                    self.push(laid, slot, slot.phase.clone(), micro_batch, Some(phase.place().into()));
                }
            }
            None => {
                let pass = self.parts.get(part).map_or(Pass::Rollout, |part| part.pass);
                let phase = Phase::named(pass.as_str());
                let slot = Slot { phase, micro_batch, first: Moment(0), last: Moment(0) };
                self.push(laid, &slot, slot.phase.clone(), micro_batch, None);
            }
        }
    }

    fn lay_training(&mut self, part: usize, inside: bool) {
        let Some((plan, model)) = self.parts.get(part).and_then(|part| Some((part.plan?, part.model?)))
        else {
            return;
        };
        let laid = self.begin(part, None);
        let scorers: Vec<usize> =
            (0..part).filter(|_| inside).filter(|other| self.parts.get(*other).is_some()).collect();
        let phases = plan.steady.timeline.slots().iter().zip(&plan.steady.phases);
        for (slot, phase) in phases.filter(|(slot, _)| slot.phase != Phase::Load) {
            let named = match model {
                Model::Critic => Phase::named(&format!("critic_{}", slot.phase)),
                _ => slot.phase.clone(),
            };
            self.push(laid, slot, named, slot.micro_batch, Some(phase.place().into()));
            if slot.phase == Phase::Loss {
                scorers.iter().for_each(|scorer| self.lay(*scorer, slot.micro_batch));
            }
        }
    }

    fn begin(&mut self, part: usize, micro_batch: Option<u32>) -> usize {
        self.laid.push(Laid { part, micro_batch, slots: Vec::new() });
        self.laid.len() - 1
    }

    fn push(
        &mut self,
        laid: usize,
        slot: &Slot,
        phase: Phase,
        micro_batch: Option<u32>,
        op: Option<Box<str>>,
    ) {
        let first = Moment(u32::try_from(self.timeline.moments()).unwrap_or(u32::MAX));
        let moments = NonZeroU32::new(slot.moments()).unwrap_or(NonZeroU32::MIN);
        if !self.timeline.try_push(phase, micro_batch, moments) {
            self.is_full = true;
            return;
        }
        self.order.push((laid, first, Moment(first.0 + moments.get() - 1)));
        self.peak_ops.push(op);
        if let Some(laid) = self.laid.get_mut(laid) {
            laid.slots.push((slot.clone(), first));
        }
    }

    /// The ledger; so many sequences of a rollout are kept until they are trained on.
    pub(super) fn compose(self, sequences: u64) -> Result<Composed, Problem> {
        let too_big = || {
            Problem::anywhere("the sizes of this step do not fit into 64 bits of bytes")
                .mend("check --micro-batch-size, --prompt-len, --response-len and the sizes in the config")
        };
        if self.is_full {
            return Err(too_big());
        }
        let mut list = List::default();
        for (number, part) in self.parts.iter().enumerate() {
            if let Some(plan) = part.plan {
                self.storages(number, part, plan, &mut list);
            }
        }
        self.engine(&mut list);
        self.experience(sequences, &mut list);
        let List { groups, states } = list;
        let ledger = Ledger::new(self.timeline, states).map_err(|_| too_big())?;
        Ok(Composed { ledger, peak_ops: self.peak_ops, groups })
    }

    /// The storages of a part: what passes, wherever it is laid; what persists, where it is listed from here.
    fn storages(&self, number: usize, part: &Part<'_>, plan: &Plan, list: &mut List) {
        let places = Places::of(plan.tape());
        let own: Vec<(usize, &Laid)> =
            self.laid.iter().enumerate().filter(|(_, laid)| laid.part == number).collect();
        for (id, state) in plan.states(|stored| plan.residency(Step::Steady, stored)) {
            let Some(stored) = plan.tape().get(id) else { continue };
            let (key, layer) = places.group_key(stored);
            if state.persistent {
                // a workspace is the process's, whoever took it first
                let is_workspace = state.category == Category::Workspace;
                let is_listed = if is_workspace { part.pass == Pass::Train(Model::Actor) } else { part.owns };
                let Some(model) = part.model.filter(|_| is_listed) else { continue };
                let of = model.as_str();
                let Some(residencies) = self.schedule(model, number, &state) else { continue };
                let name = format!("{of}{OF}{}", state.name).into();
                let group = match is_workspace {
                    true => Group::Named("cuBLAS workspaces"),
                    false => Group::Storage { of, key, layer },
                };
                list.push(group, State { name, residencies, ..state });
                continue;
            }
            let stays_whole = !part.pass.trains() && stays_whole(plan, &state);
            for (at, laid) in own.iter().copied() {
                let stays = state.residencies.as_slice().iter().filter_map(|stay| laid.shifted(stay));
                let mut stays: Vec<Residency> = stays.collect();
                if stays_whole && let Some(stay) = stays.last_mut() {
                    self.until_used_again(at, part, stay);
                }
                if part.pass.trains() && state.category == Category::Parameter {
                    self.around_training(laid, &state, &mut stays);
                }
                let Some(residencies) = residencies(stays) else { continue };
                let of = part.pass.as_str();
                let name = match laid.micro_batch {
                    None => format!("{of}{OF}{}", state.name),
                    Some(i) => format!("{of}.{i}{OF}{}", state.name),
                };
                let state = State { name: name.into(), residencies, ..state.clone() };
                list.push(Group::Storage { of, key, layer }, state);
            }
        }
    }

    /// Where a state of a model that persists is: on the device where it is needed, and between it where it was told to wait.
    fn schedule(&self, model: Model, number: usize, state: &State) -> Option<Residencies> {
        let OffloadBetween { actor, optimizer, reference, reward, critic } = self.request.offload_between;
        let is_weight = state.category == Category::Parameter;
        let waits = match (model, state.category) {
            (_, Category::OptimizerState | Category::MasterWeight | Category::Gradient) => optimizer,
            (_, Category::Workspace | Category::Activation | Category::CommunicationBuffer) => false,
            (Model::Actor, _) => actor,
            (Model::Reference, _) => reference,
            (Model::Reward, _) => reward,
            (Model::Critic, _) => critic,
        };
        if state.residencies.as_slice().iter().any(|stay| stay.device == Device::Cpu) {
            return self.held_out(number, state);
        }
        let away = if waits { Some(Device::Cpu) } else { Some(Device::Gpu) };
        self.periods(away, |laid| match self.parts.get(laid.part) {
            Some(part) if is_weight => part.model == Some(model),
            Some(_) => laid.part == number,
            None => false,
        })
    }

    /// What training itself keeps on the host, or moves: as it begins a step, so it was before; as it ends, so it stays.
    fn held_out(&self, number: usize, state: &State) -> Option<Residencies> {
        let laid = self.laid.iter().find(|laid| laid.part == number)?;
        let (begins, ends) = (laid.slots.first()?.1, laid.last());
        let stays = state.residencies.as_slice().iter().filter_map(|stay| laid.shifted(stay));
        let spread = stays.map(|stay| Residency {
            start: if stay.start == begins { Moment(0) } else { stay.start },
            end: if stay.end == ends { self.last() } else { stay.end },
            ..stay
        });
        residencies(spread.collect())
    }

    /// What a pass leaves whole is there until its model runs again; of a model that is never trained, and does not wait on
    /// the host, it was there before too.
    fn until_used_again(&self, at: usize, part: &Part<'_>, stay: &mut Residency) {
        let OffloadBetween { reference, reward, .. } = self.request.offload_between;
        let is_never_trained = match part.model {
            Some(Model::Reference) if reference => return,
            Some(Model::Reward) if reward => return,
            model => matches!(model, Some(Model::Reference | Model::Reward)),
        };
        let is_of_it =
            |laid: &&Laid| self.parts.get(laid.part).is_some_and(|other| other.model == part.model);
        let next = self.laid.iter().skip(at + 1).filter(is_of_it).find_map(|laid| laid.slots.first());
        match next {
            Some((_, begins)) => stay.end = Moment(begins.0.saturating_sub(1)),
            None if is_never_trained => stay.end = self.last(),
            None => {}
        }
        if is_never_trained && !self.laid.iter().take(at).any(|laid| is_of_it(&laid)) {
            stay.start = Moment(0);
        }
    }

    /// Small parameters, which ZeRO 3 has whole and gathers anew in each update, are there from one to the next whatever runs;
    /// unless all weights wait on the host.
    fn around_training(&self, laid: &Laid, state: &State, stays: &mut [Residency]) {
        let OffloadBetween { actor, critic, .. } = self.request.offload_between;
        let model = self.parts.get(laid.part).and_then(|part| part.model);
        if model == Some(Model::Actor) && actor || model == Some(Model::Critic) && critic {
            return;
        }
        let own = state.residencies.as_slice();
        let begins = laid.slots.first().map(|(slot, _)| slot.first);
        if let (Some(own), Some(begins), Some(first)) = (own.first(), begins, stays.first_mut())
            && own.start < begins
        {
            first.start = Moment(0);
        }
        if let Some(last) = stays.last_mut().filter(|last| last.end == laid.last()) {
            last.end = self.last();
        }
    }

    pub(super) fn last(&self) -> Moment {
        self.order.last().map_or(Moment(0), |(_, _, last)| *last)
    }

    /// On the device in the phases of which that is true, and in the others away, if anywhere.
    pub(super) fn periods(
        &self,
        away: Option<Device>,
        is_there: impl Fn(&Laid) -> bool,
    ) -> Option<Residencies> {
        let mut stays: Vec<Residency> = Vec::new();
        for (laid, start, end) in &self.order {
            let is_there = self.laid.get(*laid).is_some_and(&is_there);
            let Some(device) = (if is_there { Some(Device::Gpu) } else { away }) else { continue };
            match stays.last_mut() {
                Some(last) if last.device == device && last.end.0 + 1 == start.0 => last.end = *end,
                _ => stays.push(Residency { device, start: *start, end: *end }),
            }
        }
        residencies(stays)
    }
}

/// Whether a storage of a pass that gathers parameters is still there when the pass ends.
fn stays_whole(plan: &Plan, state: &State) -> bool {
    let end = plan.steady.timeline.moments().checked_sub(1);
    let is_shared_out = plan.options.parallel.sharding != Sharding::Replicated;
    let last = state.residencies.as_slice().last();
    is_shared_out && last.is_some_and(|stay| stay.device == Device::Gpu && Some(stay.end.index()) == end)
}

/// Stays as residencies, if there are any.
fn residencies(mut stays: Vec<Residency>) -> Option<Residencies> {
    match stays.len() {
        0 => None,
        1 => stays.pop().map(Residencies::One),
        _ => Some(Residencies::Many(stays)),
    }
}
