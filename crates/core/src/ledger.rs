//! The ledger: states on a timeline, checked once when it is made, and everything it can be asked.

use crate::sweep::{Overflow, PhaseTotal, Stay, Totals, peak_phase, sums};
use crate::{Bytes, Category, Device, LedgerError, LedgerErrorKind, Moment, Slot, State, Timeline};
use std::sync::{Arc, OnceLock};

/// States on one timeline. A value of this type is sound: every residency lies on the timeline, no name appears twice,
/// no total passes 64 bits.
#[derive(Clone, Debug)]
pub struct Ledger {
    timeline: Arc<Timeline>,
    states: Vec<State>,
    largest: Largest,
    /// Kept, or added up again where they are asked for: a timeline may be long and the states few.
    sums: OnceLock<Sums>,
}

/// Where the largest total is, by the number of its phase.
#[derive(Clone, Copy, Debug)]
struct Largest {
    slot: usize,
    moment: Moment,
    bytes: Bytes,
}

#[derive(Clone, Debug)]
struct Sums {
    totals: Totals,
    phases: Vec<PhaseTotal>,
}

impl Sums {
    fn of(timeline: &Timeline, states: &[State]) -> Result<Sums, Overflow> {
        let (totals, phases) = sums(timeline, || states.iter().flat_map(Stay::all_of))?;
        Ok(Sums { totals, phases })
    }

    fn largest(&self) -> Largest {
        let slot = peak_phase(&self.phases).unwrap_or(0);
        let none = (Moment(0), Bytes::ZERO);
        let (moment, bytes) = self.phases.get(slot).map_or(none, |phase| (phase.moment, phase.total));
        Largest { slot, moment, bytes }
    }
}

/// A state of the ledger, by its place in file order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId(pub u32);

/// Where the largest total is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak<'a> {
    /// The phase.
    pub slot: &'a Slot,
    /// The moment in it.
    pub moment: Moment,
    /// The total.
    pub bytes: Bytes,
}

/// A state resident at the peak and its part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contributor<'a> {
    /// Which.
    pub id: StateId,
    /// The state.
    pub state: &'a State,
    /// The bytes it holds.
    pub bytes: Bytes,
}

impl Ledger {
    /// Checks the states against the timeline and adds them up.
    ///
    /// # Errors
    /// The first rule that is broken, with the state that breaks it.
    pub fn new(timeline: impl Into<Arc<Timeline>>, states: Vec<State>) -> Result<Ledger, LedgerError> {
        let timeline = timeline.into();
        check_timeline(&timeline)?;
        Ledger::on(timeline, states)
    }

    /// The same on a timeline that is checked already.
    pub(crate) fn on(timeline: Arc<Timeline>, states: Vec<State>) -> Result<Ledger, LedgerError> {
        let moments = u32::try_from(timeline.moments()).unwrap_or(u32::MAX);
        let count = u32::try_from(states.len()).map_err(|_| LedgerErrorKind::TooManyStates.anywhere())?;
        for (id, state) in (0..count).map(StateId).zip(&states) {
            check_state(id, state, moments)?;
        }
        check_names(&states, hash)?;
        let sums = Sums::of(&timeline, &states).map_err(|overflow| {
            let phase = timeline.slot_at(overflow.0).map(Slot::id).unwrap_or_default();
            LedgerErrorKind::SumOverflow { phase }.anywhere()
        })?;
        Ok(Ledger { timeline, states, largest: sums.largest(), sums: sums.into() })
    }

    /// Gives the sums' memory back: they are added up again where they are asked for. For one of many ledgers on a long
    /// timeline, which would take its length in memory each.
    pub fn let_go_of_sums(&mut self) {
        self.sums = OnceLock::new();
    }

    fn sums(&self) -> &Sums {
        self.sums.get_or_init(|| match Sums::of(&self.timeline, &self.states) {
            Ok(sums) => sums,
            Err(_) => unreachable!("a ledger was added up when it was made"),
        })
    }

    /// The time axis.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The states in file order.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// The sums at every moment.
    pub fn totals(&self) -> &Totals {
        &self.sums().totals
    }

    /// Each phase with its sums, in order.
    pub fn phases(&self) -> impl ExactSizeIterator<Item = (&Slot, &PhaseTotal)> {
        self.timeline.slots().iter().zip(&self.sums().phases)
    }

    /// The largest phase total; ties go to the earliest.
    pub fn peak(&self) -> Peak<'_> {
        let Largest { slot, moment, bytes } = self.largest;
        match self.timeline.slots().get(slot) {
            Some(slot) => Peak { slot, moment, bytes },
            None => unreachable!("a checked timeline has a phase"),
        }
    }

    /// The earliest of the largest moments of a phase of the timeline.
    pub fn largest_moment(&self, slot: &Slot) -> Moment {
        if let Some(sums) = self.sums.get() {
            return sums.totals.peak_between(slot.first, slot.last).0;
        }
        // only what lies in the phase, so no more than its moments
        let within = |moment: Moment| Moment(moment.0.clamp(slot.first.0, slot.last.0) - slot.first.0);
        let stays = self.states.iter().flat_map(Stay::all_of);
        let there = stays.filter(|s| s.device == Device::Gpu && s.start <= slot.last && s.end >= slot.first);
        let there = there.map(|s| Stay { start: within(s.start), end: within(s.end), ..s });
        match Totals::of(slot.moments() as usize, there) {
            Ok(totals) => {
                let last = Moment(slot.moments() - 1);
                Moment(slot.first.0 + totals.peak_between(Moment(0), last).0.0)
            }
            Err(_) => unreachable!("a ledger was added up when it was made"),
        }
    }

    /// The states on a device at a moment, in file order.
    pub fn resident(&self, device: Device, moment: Moment) -> impl Iterator<Item = (StateId, &State)> {
        (0u32..).map(StateId).zip(&self.states).filter(move |(_, state)| state.resident(device, moment))
    }

    /// The states on the GPU at a moment, largest first, then by name.
    pub fn contributors(&self, moment: Moment) -> Vec<Contributor<'_>> {
        self.largest_contributors(moment, usize::MAX).0
    }

    /// The first so many of the [contributors](Ledger::contributors), and how many there are in all.
    pub fn largest_contributors(&self, moment: Moment, most: usize) -> (Vec<Contributor<'_>>, usize) {
        let on_gpu = self.resident(Device::Gpu, moment);
        let mut list: Vec<Contributor<'_>> =
            on_gpu.map(|(id, state)| Contributor { id, state, bytes: state.bytes }).collect();
        let order = |a: &Contributor<'_>, b: &Contributor<'_>| {
            b.bytes.cmp(&a.bytes).then_with(|| a.state.name.cmp(&b.state.name))
        };
        let all = list.len();
        if most < all {
            list.select_nth_unstable_by(most, order); // to sort a million for ten would take the time
            list.truncate(most);
        }
        list.sort_unstable_by(order);
        (list, all)
    }

    /// The states that make up each phase total, phase by phase, in file order. Takes time in proportion to the length of
    /// the answer, and memory for one phase of it.
    pub fn active_by_phase(&self) -> Active<'_> {
        let phases = &self.sums().phases;
        let mut coming = Vec::new();
        for (id, state) in (0u32..).map(StateId).zip(&self.states) {
            for residency in state.residencies.as_slice().iter().filter(|r| r.device == Device::Gpu) {
                let first = phases.partition_point(|phase| phase.moment < residency.start);
                let after = phases.partition_point(|phase| phase.moment <= residency.end);
                if first < after {
                    coming.push((first, Entry { id, after }));
                }
            }
        }
        coming.sort_by_key(|(first, _)| *first); // stable: in file order where they come together
        Active { ledger: self, phase: 0, coming: coming.into_iter().peekable(), there: Vec::new() }
    }

    /// The state of that number.
    pub fn state(&self, id: StateId) -> Option<&State> {
        self.states.get(id.0 as usize)
    }

    /// The categories that hold bytes in any phase's peak, in table order.
    pub fn categories(&self) -> Vec<Category> {
        let holds = |c: &Category| self.sums().phases.iter().any(|p| p.by_category.get(*c) != Bytes::ZERO);
        Category::ALL.into_iter().filter(holds).collect()
    }

    /// The largest sum on the cpu over the whole timeline.
    pub fn cpu_peak(&self) -> Bytes {
        self.sums().phases.iter().map(|phase| phase.cpu).max().unwrap_or(Bytes::ZERO)
    }
}

/// What [`Ledger::active_by_phase`] walks over.
#[derive(Clone, Debug)]
pub struct Active<'a> {
    ledger: &'a Ledger,
    /// The next phase, by its number.
    phase: usize,
    /// Those to come, by the phase in which they do, then in file order.
    coming: std::iter::Peekable<std::vec::IntoIter<(usize, Entry)>>,
    /// Those of the phase before, in file order.
    there: Vec<Entry>,
}

/// A state in the phases before `after`.
#[derive(Clone, Copy, Debug)]
struct Entry {
    id: StateId,
    after: usize,
}

impl<'a> Active<'a> {
    /// The states of the next phase, until there is none.
    pub fn next_phase(&mut self) -> Option<impl Iterator<Item = (StateId, &'a State)> + '_> {
        let phase = self.phase;
        self.ledger.timeline.slots().get(phase)?;
        self.phase += 1;
        self.there.retain(|entry| entry.after > phase);
        let stayed = self.there.len();
        while let Some((_, entry)) = self.coming.next_if(|(first, _)| *first == phase) {
            self.there.push(entry);
        }
        if (1..self.there.len()).contains(&stayed) {
            self.there.sort_by_key(|entry| entry.id); // two runs in order, which this sort merges
        }
        let ledger = self.ledger;
        Some(self.there.iter().filter_map(move |entry| Some((entry.id, ledger.state(entry.id)?))))
    }
}

fn check_timeline(timeline: &Timeline) -> Result<(), LedgerError> {
    if timeline.slots().is_empty() {
        return Err(LedgerErrorKind::NoPhases.anywhere());
    }
    let mut ids: Vec<(&Slot, usize)> = timeline.slots().iter().zip(0..).collect();
    ids.sort_by(|(a, _), (b, _)| (&a.phase, a.micro_batch).cmp(&(&b.phase, b.micro_batch)));
    for pair in ids.windows(2) {
        if let [(a, first), (b, second)] = pair
            && (&a.phase, a.micro_batch) == (&b.phase, b.micro_batch)
        {
            let kind = LedgerErrorKind::DuplicatePhase { id: a.id(), first: *first, second: *second };
            return Err(kind.anywhere());
        }
    }
    Ok(())
}

fn check_state(id: StateId, state: &State, moments: u32) -> Result<(), LedgerError> {
    if state.name.is_empty() {
        return Err(LedgerErrorKind::EmptyName.at(id));
    }
    let residencies = state.residencies.as_slice();
    if residencies.is_empty() {
        return Err(LedgerErrorKind::NoResidency.at(id));
    }
    for (index, r) in residencies.iter().enumerate() {
        if r.end < r.start {
            return Err(LedgerErrorKind::EndBeforeStart { residency: index }.at(id));
        }
        if r.end.0 >= moments {
            return Err(LedgerErrorKind::OutsideTimeline { residency: index }.at(id));
        }
    }
    if residencies.len() > 1 {
        let mut order: Vec<_> = residencies.iter().zip(0usize..).collect();
        order.sort_by_key(|(r, index)| (r.device, r.start, *index));
        for pair in order.windows(2) {
            if let [(a, first), (b, second)] = pair
                && a.device == b.device
                && b.start <= a.end
            {
                let (first, second) = (*first.min(second), *first.max(second));
                return Err(LedgerErrorKind::Overlap { first, second }.at(id));
            }
        }
    }
    Ok(())
}

/// Finds a name that appears twice by sorting hashes: no table to fill. Names that share a hash are compared by sorting
/// them too, so a file made of such names is no slower than n log n.
fn check_names(states: &[State], hash: impl Fn(&str) -> u64) -> Result<(), LedgerError> {
    let mut order: Vec<u64> =
        states.iter().zip(0u32..).map(|(state, id)| (hash(&state.name) << 32) | u64::from(id)).collect();
    order.sort_unstable();
    let name = |id: u32| states.get(id as usize).map(|s| &s.name);
    let mut duplicate: Option<(u32, u32)> = None;
    for same_hash in order.chunk_by(|a, b| a >> 32 == b >> 32).filter(|run| run.len() > 1) {
        let ids = same_hash.iter().map(|entry| u32::try_from(entry & u64::from(u32::MAX)).unwrap_or(0));
        let mut run: Vec<u32> = ids.collect();
        run.sort_by_key(|id| (name(*id), *id));
        for pair in run.windows(2) {
            if let [a, b] = pair
                && name(*a) == name(*b)
            {
                let pair = (*b, *a); // the earliest second mention is the one to report
                duplicate = Some(duplicate.map_or(pair, |best| best.min(pair)));
            }
        }
    }
    match duplicate {
        None => Ok(()),
        Some((second, first)) => {
            let name = name(second).map(|n| n.to_string()).unwrap_or_default();
            Err(LedgerErrorKind::DuplicateName { name, first: StateId(first) }.at(StateId(second)))
        }
    }
}

/// A quick hash of 32 bits: eight bytes a step, mixed by a multiplication. Only speed depends on it.
fn hash(name: &str) -> u64 {
    const MIX: u64 = 0x9E37_79B9_7F4A_7C15; // 2^64 by the golden ratio
    let (words, rest) = name.as_bytes().as_chunks::<8>();
    let mut last = [0; 8];
    last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    let all = words.iter().chain(std::iter::once(&last)).map(|word| u64::from_le_bytes(*word));
    all.fold(name.len() as u64, |hash, word| (hash ^ word).wrapping_mul(MIX).rotate_left(31)) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Residencies, Residency};

    fn named(name: &str) -> State {
        let residency = Residency { device: Device::Gpu, start: Moment(0), end: Moment(0) };
        State {
            name: name.into(),
            category: Category::Workspace,
            detail: None,
            bytes: Bytes::ZERO,
            persistent: false,
            residencies: Residencies::One(residency),
        }
    }

    #[test]
    fn names_that_share_a_hash_are_told_apart_and_soon() {
        let names: Vec<String> = (0..100_000).map(|i| format!("tensor {}", i * 7919 % 100_000)).collect();
        let mut states: Vec<State> = names.iter().map(|name| named(name)).collect();
        // all in one run of equal hashes: pairwise comparison would take minutes
        for hash in [hash, |_: &str| 0, |name: &str| u64::from(name.ends_with('7'))] {
            assert_eq!(check_names(&states, hash), Ok(()));
        }
        // the earliest second mention is the one that is told, whatever the hash
        for (second, first) in [(90_000, 3), (80_000, 70_000), (80_001, 2)] {
            states[second].name = states[first].name.clone();
        }
        for hash in [hash, |_: &str| 0, |name: &str| u64::from(name.ends_with('7'))] {
            let error = check_names(&states, hash).unwrap_err();
            let kind = LedgerErrorKind::DuplicateName { name: names[70_000].clone(), first: StateId(70_000) };
            assert_eq!(error, kind.at(StateId(80_000)));
        }
    }
}
