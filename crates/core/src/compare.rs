//! A candidate against a baseline: what the peak becomes, and which states moved at the baseline's peak.

use crate::{Bytes, Device, Ledger, Peak, Phase, Slot, State};
use std::collections::{BTreeMap, BTreeSet};

/// What a candidate ledger does to the baseline's peak.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    /// The candidate's own peak.
    pub peak: Peak<'a>,
    /// Baseline peak minus candidate peak, in bytes; negative where the candidate needs more.
    pub saving: i128,
    /// The states that hold other bytes than before where the baseline peaked, largest change first, then by name.
    pub moved: Vec<Moved<'a>>,
    /// Phases of the baseline that the candidate does not have (and the other way round), by name.
    pub unaligned: Vec<String>,
}

/// A state whose part in the baseline's peak phase changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it held at the baseline's peak.
    pub before: Bytes,
    /// What it holds at the candidate's largest moment of that phase.
    pub after: Bytes,
    /// How it changed.
    pub change: Change,
}

/// How a state of the baseline's peak changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is not in the candidate at all.
    Gone,
    /// It is new in the candidate.
    Added,
    /// It has another size.
    Resized,
    /// It sits on the cpu there.
    ToCpu,
    /// It came from the cpu.
    FromCpu,
    /// It is there in other phases.
    OtherTime,
}

impl Change {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Change::Gone => "gone",
            Change::Added => "added",
            Change::Resized => "resized",
            Change::ToCpu => "on the cpu then",
            Change::FromCpu => "was on the cpu",
            Change::OtherTime => "not resident then",
        }
    }
}

/// Compares two ledgers. Timelines are aligned by phase and micro-batch; the number of moments does not matter. A
/// baseline phase that the candidate lacks is looked up without its micro-batch number or at the last one it has.
pub fn compare<'a>(baseline: &'a Ledger, candidate: &'a Ledger) -> Comparison<'a> {
    let (before, after) = (baseline.peak(), candidate.peak());
    Comparison {
        peak: after,
        saving: before.bytes.minus(after.bytes),
        moved: moved(baseline, candidate),
        unaligned: unaligned(baseline, candidate),
    }
}

fn moved<'a>(baseline: &'a Ledger, candidate: &'a Ledger) -> Vec<Moved<'a>> {
    let peak = baseline.peak();
    let then = aligned(candidate, peak.slot).map(|slot| candidate.largest_moment(slot));
    let mut sides: BTreeMap<&str, [Option<&State>; 2]> = BTreeMap::new();
    for (_, state) in baseline.resident(Device::Gpu, peak.moment) {
        sides.entry(&state.name).or_default()[0] = Some(state);
    }
    for (_, state) in then.into_iter().flat_map(|moment| candidate.resident(Device::Gpu, moment)) {
        sides.entry(&state.name).or_default()[1] = Some(state);
    }
    let bytes = |state: Option<&State>| state.map_or(Bytes::ZERO, |s| s.bytes);
    sides.retain(|_, [a, b]| bytes(*a) != bytes(*b));

    // only states that changed are looked for in the ledger where they are not resident
    let elsewhere = |ledger: &'a Ledger, side: usize| -> BTreeMap<&'a str, &'a State> {
        let wanted = |s: &&State| sides.get(&*s.name).is_some_and(|pair| pair.get(side) == Some(&None));
        ledger.states().iter().filter(wanted).map(|s| (&*s.name, s)).collect()
    };
    let (in_baseline, in_candidate) = (elsewhere(baseline, 0), elsewhere(candidate, 1));
    let mut list: Vec<Moved<'a>> = sides
        .iter()
        .map(|(name, [a, b])| {
            let change = match (a, b) {
                (Some(_), Some(_)) => Change::Resized,
                (Some(_), None) => match in_candidate.get(name) {
                    None => Change::Gone,
                    Some(s) if then.is_some_and(|m| s.resident(Device::Cpu, m)) => Change::ToCpu,
                    Some(_) => Change::OtherTime,
                },
                _ => match in_baseline.get(name) {
                    None => Change::Added,
                    Some(s) if s.resident(Device::Cpu, peak.moment) => Change::FromCpu,
                    Some(_) => Change::OtherTime,
                },
            };
            Moved { name, before: bytes(*a), after: bytes(*b), change }
        })
        .collect();
    list.sort_by_key(|m| (std::cmp::Reverse(m.before.minus(m.after).unsigned_abs()), m.name));
    list
}

/// The candidate's phase that answers to a phase of the baseline.
fn aligned<'a>(candidate: &'a Ledger, slot: &Slot) -> Option<&'a Slot> {
    let timeline = candidate.timeline();
    let same_phase = || timeline.slots().iter().filter(|other| other.phase == slot.phase);
    timeline.find(&slot.phase, slot.micro_batch).or_else(|| same_phase().next_back())
}

fn unaligned(baseline: &Ledger, candidate: &Ledger) -> Vec<String> {
    if std::ptr::eq(baseline.timeline(), candidate.timeline()) {
        return Vec::new(); // the versions in one file
    }
    let only = |a: &Ledger, b: &Ledger| -> Vec<String> {
        let others: BTreeSet<&Phase> = b.timeline().slots().iter().map(|slot| &slot.phase).collect();
        let mut seen = BTreeSet::new();
        let phases = a.timeline().slots().iter().map(|slot| &slot.phase);
        let missing = phases.filter(|phase| !others.contains(phase) && seen.insert(*phase));
        missing.map(Phase::to_string).collect()
    };
    let mut names = only(baseline, candidate);
    names.extend(only(candidate, baseline));
    names
}
