//! Which phase of a step each event is in.
//!
//! The ranges that the user or torch put around the events tell it (`record_function`, `external_annotations`); where
//! they name no forward and no backward, the words that the user set on the events (`_set_memory_metadata`); and where
//! there are none, the stacks: a module's call is forward, autograd's engine backward, and torch's optimizers update.
//!
//! What lies in no range is `between`; but between forward and backward it is the loss, and before the first forward it is
//! `load`. Where nothing tells a phase, all events are one: `recording`.

use crate::category::of_word;
use crate::maker::Makers;
use crate::names::RangeNames;
use crate::snapshot::{Snapshot, TextId};
use peakledger_core::Phase;
use std::collections::BTreeMap;

/// A stretch of events in one phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The phase.
    pub phase: Phase,
    /// Which of several of this phase, counted from 0; nothing where there is one.
    pub number: Option<u32>,
    /// Its first event, counted from the device's first.
    pub first: u32,
}

/// What tells the phases of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToldBy {
    /// Ranges that the program named.
    Ranges,
    /// The user's words on the events.
    Words,
    /// The stacks of the events.
    Stacks,
    /// Nothing.
    Nothing,
}

impl ToldBy {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            ToldBy::Ranges => "the ranges that the program named",
            ToldBy::Words => "the user's words on the events",
            ToldBy::Stacks => "the stacks: modules, autograd, optimizers",
            ToldBy::Nothing => "nothing in the file",
        }
    }
}

/// When another phase begins, or none, by the first event in it.
type Changes = Vec<(u32, Option<Phase>)>;

/// The most stretches that are told apart.
const MOST_SPANS: usize = 10_000;

/// The stretches of a device, in order: one or more, the first from event 0. Also what tells them.
pub fn spans(snapshot: &Snapshot, device: u32, names: &RangeNames) -> (Vec<Span>, ToldBy) {
    let (changes, told_by) = changes(snapshot, device, names);
    let events = snapshot.trace(device).len();
    let mut spans = vec![Span { phase: between(), number: None, first: 0 }];
    for (first, phase) in changes {
        if first as usize >= events {
            break; // nothing happens in it, nor after it
        }
        let phase = phase.unwrap_or_else(between);
        match spans.last_mut() {
            // one that nothing happened in is none
            Some(last) if last.first == first => last.phase = phase,
            _ => spans.push(Span { phase, number: None, first }),
        }
    }
    spans.dedup_by(|next, before| next.phase == before.phase && next.phase == between());
    if spans.iter().all(|span| span.phase == between()) {
        return (vec![Span { phase: Phase::named("recording"), number: None, first: 0 }], ToldBy::Nothing);
    }
    name_gaps(&mut spans);
    number(&mut spans);
    (spans, told_by)
}

/// The changes that the best witness tells: one that knows a forward or a backward, else one that knows any phase.
fn changes(snapshot: &Snapshot, device: u32, names: &RangeNames) -> (Changes, ToldBy) {
    let ranges = by_ranges(snapshot, device, names);
    if is_of_a_step(&ranges) {
        return (ranges, ToldBy::Ranges);
    }
    let words = by_words(snapshot, device, names);
    if is_of_a_step(&words) {
        return (words, ToldBy::Words);
    }
    let stacks = Makers::of(snapshot, device).phases();
    let stacks: Changes =
        stacks.into_iter().take(MOST_SPANS).map(|(first, phase)| (first, Some(phase))).collect();
    let witnesses = [(stacks, ToldBy::Stacks), (ranges, ToldBy::Ranges), (words, ToldBy::Words)];
    let told = witnesses.into_iter().find(|(changes, _)| !changes.is_empty());
    told.unwrap_or((Vec::new(), ToldBy::Nothing))
}

fn is_of_a_step(changes: &Changes) -> bool {
    changes.iter().any(|(_, phase)| matches!(phase, Some(Phase::Forward | Phase::Backward)))
}

/// The words that name a phase; events without one, as those of autograd's threads are, go on in the phase before.
fn by_words(snapshot: &Snapshot, device: u32, names: &RangeNames) -> Changes {
    let trace = snapshot.trace(device);
    let mut known: BTreeMap<TextId, Option<Phase>> = BTreeMap::new();
    let mut changes: Changes = Vec::new();
    for (event, word) in snapshot.events.words(trace.clone()) {
        let of_the_word = || {
            let text = snapshot.texts.text(word);
            // `optimizer` on a block says whose it is
            if of_word(&text).is_some() { None } else { names.phase(&text) }
        };
        let phase = known.entry(word).or_insert_with(of_the_word).clone();
        if phase.is_some() && changes.last().is_none_or(|(_, last)| *last != phase) {
            changes.push((event - trace.start, phase));
        }
        if changes.len() >= MOST_SPANS {
            break;
        }
    }
    changes
}

fn between() -> Phase {
    Phase::named("between")
}

/// The ranges: the innermost that is open is the phase.
fn by_ranges(snapshot: &Snapshot, device: u32, names: &RangeNames) -> Changes {
    let mut marks: Vec<(u64, bool, Phase)> = Vec::new();
    for annotation in snapshot.annotations.iter().filter(|annotation| annotation.device == device) {
        if let Some(phase) = names.phase(&snapshot.texts.text(annotation.name)) {
            marks.push((annotation.time_us, annotation.start, phase));
        }
    }
    if marks.is_empty() {
        return Vec::new();
    }
    let times: Vec<u64> =
        snapshot.events.between(snapshot.trace(device)).map(|event| event.time_us).collect();
    let first_at = |time| u32::try_from(times.partition_point(|at| *at < time)).unwrap_or(u32::MAX);
    marks.sort_by_key(|(time, ..)| *time);
    marks.truncate(MOST_SPANS);
    let mut open: Vec<Phase> = Vec::new();
    let mut changes = Vec::new();
    for (time, start, phase) in marks {
        let before = open.last().cloned();
        if start {
            open.push(phase);
        } else if let Some(at) = open.iter().rposition(|open| *open == phase) {
            open.remove(at);
        }
        if open.last() != before.as_ref() {
            changes.push((first_at(time), open.last().cloned()));
        }
    }
    changes
}

/// Gives gaps a name where the phases around them do.
fn name_gaps(spans: &mut [Span]) {
    let has = |phase: &Phase| spans.iter().any(|span| span.phase == *phase);
    let (forward, loss) = (has(&Phase::Forward), has(&Phase::Loss));
    let phases: Vec<Phase> = spans.iter().map(|span| span.phase.clone()).collect();
    for (at, span) in spans.iter_mut().enumerate().filter(|(_, span)| span.phase == between()) {
        let before = at.checked_sub(1).and_then(|at| phases.get(at));
        match (before, phases.get(at + 1)) {
            (None, _) if forward => span.phase = Phase::Load,
            (Some(Phase::Forward), Some(Phase::Backward)) if !loss => span.phase = Phase::Loss,
            _ => {}
        }
    }
}

/// Counts the stretches of each phase that has several.
fn number(spans: &mut [Span]) {
    let mut seen: Vec<(Phase, u32)> = Vec::new();
    for span in spans.iter_mut() {
        let count = match seen.iter_mut().find(|(phase, _)| *phase == span.phase) {
            Some((_, count)) => {
                *count += 1;
                *count
            }
            None => {
                seen.push((span.phase.clone(), 0));
                0
            }
        };
        span.number = Some(count);
    }
    for span in spans.iter_mut() {
        if seen.iter().any(|(phase, last)| *phase == span.phase && *last == 0) {
            span.number = None;
        }
    }
}
