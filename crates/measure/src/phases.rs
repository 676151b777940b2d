//! Which phase of a step each event is in, by the named ranges that the user or torch put around it.
//!
//! What lies in no range is `between`; but between forward and backward it is the loss, and before the first forward it is
//! `load`. Where no range has the name of a phase, all events are one: `recording`.

use crate::names::RangeNames;
use crate::snapshot::Snapshot;
use peakledger_core::Phase;

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

/// The most stretches that are told apart.
const MOST_SPANS: usize = 10_000;

/// The stretches of a device, in order: one or more, the first from event 0.
pub fn spans(snapshot: &Snapshot, device: u32, names: &RangeNames) -> Vec<Span> {
    let changes = changes(snapshot, device, names);
    if changes.is_empty() {
        return vec![Span { phase: Phase::named("recording"), number: None, first: 0 }];
    }
    let times: Vec<u64> =
        snapshot.events.between(snapshot.trace(device)).map(|event| event.time_us).collect();
    let mut spans = vec![Span { phase: between(), number: None, first: 0 }];
    for (time, phase) in changes {
        let first = u32::try_from(times.partition_point(|at| *at < time)).unwrap_or(u32::MAX);
        if first as usize >= times.len() {
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
    name_gaps(&mut spans);
    number(&mut spans);
    spans
}

fn between() -> Phase {
    Phase::named("between")
}

/// When another phase begins, or none.
fn changes(snapshot: &Snapshot, device: u32, names: &RangeNames) -> Vec<(u64, Option<Phase>)> {
    let mut marks: Vec<(u64, bool, Phase)> = Vec::new();
    for annotation in snapshot.annotations.iter().filter(|annotation| annotation.device == device) {
        if let Some(phase) = names.phase(&snapshot.texts.text(annotation.name)) {
            marks.push((annotation.time_us, annotation.start, phase));
        }
    }
    marks.sort_by_key(|(time, ..)| *time);
    marks.truncate(MOST_SPANS);
    // the ranges that are open, the innermost last: it is the phase
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
            changes.push((time, open.last().cloned()));
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
