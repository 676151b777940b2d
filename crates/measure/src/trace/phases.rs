//! From ranges to the phases of steps: what runs at each time of a trace.
//!
//! Ranges overlap: a module's forward runs again inside backward (recomputing), a loss is taken inside forward. So backward,
//! update and zero_grad count from the outside, forward and loss from the inside. What runs between two of them belongs to
//! the one before it, but for what precedes an update (clipping), which is part of it, and for what precedes the forward of
//! a new step, which is its load. A step ends with its update and the zero_grad after it; where a loop begins with
//! zero_grad, or has it before backward, it stays where it is.

use super::record::{Range, Recorded};
use super::{Span, Step};
use peakledger_core::Phase;
use std::collections::{BTreeMap, BTreeSet};

/// The steps of a trace from its first time to its last, and what had to be taken for granted.
pub(super) fn steps(recorded: &Recorded, first: i64, last: i64) -> (Vec<Step>, Vec<String>) {
    let has_update =
        recorded.ranges.iter().any(|range| recorded.names.phase(range.name) == Some(&Phase::Update));
    let cuts = if has_update { Vec::new() } else { step_starts(recorded) };
    let runs = runs(recorded, &cuts);
    if runs.is_empty() {
        let all = Span { phase: Phase::Other("trace".into()), micro_batch: None, start: first, end: last };
        let note = "no range in it is named after a phase, so all of it is one; `--phase NAME=forward` says which names are";
        return (vec![Step { spans: vec![all] }], vec![note.to_owned()]);
    }
    let has = |phase: Phase| runs.iter().any(|run| run.phase == phase);
    let mut notes = Vec::new();
    let guess_forward = !has(Phase::Forward) && (has(Phase::Backward) || has(Phase::Loss));
    if guess_forward {
        notes.push("no range is named forward: what runs before each loss and backward is taken for it, with the batch's load".to_owned());
    }
    let mut steps = Steps { steps: Vec::new(), guess_forward, cuts, reached: first, seen: BTreeSet::new() };
    runs.into_iter().for_each(|run| steps.take(run));
    (steps.end(last), notes)
}

/// A stretch of one phase.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    phase: Phase,
    start: i64,
    end: i64,
}

/// Where ranges of a phase run, without overlaps, in order. A phase with a gap is one run, unless a step begins in the gap.
fn runs(recorded: &Recorded, cuts: &[i64]) -> Vec<Run> {
    let phased: Vec<(&Range, &Phase)> =
        recorded.ranges.iter().filter_map(|range| Some((range, recorded.names.phase(range.name)?))).collect();
    let mut edges: Vec<(i64, bool, usize)> = Vec::with_capacity(2 * phased.len());
    for (number, (range, _)) in phased.iter().enumerate() {
        edges.push((range.start, true, number));
        edges.push((range.end, false, number));
    }
    edges.sort_unstable_by_key(|(time, begins, number)| (*time, *begins, *number));
    let (mut outer, mut inner) = (BTreeSet::new(), BTreeSet::new());
    let mut runs: Vec<Run> = Vec::new();
    let mut edges = edges.into_iter().peekable();
    while let Some((time, begins, number)) = edges.next() {
        let Some((range, phase)) = phased.get(number) else { continue };
        let from_inside = matches!(phase, Phase::Forward | Phase::Loss);
        let open = if from_inside { &mut inner } else { &mut outer };
        // of two that begin together the longer is outside
        let key = (range.start, std::cmp::Reverse(range.end), number);
        if begins {
            open.insert(key)
        } else {
            open.remove(&key)
        };
        if edges.peek().is_some_and(|(next, ..)| *next == time) {
            continue;
        }
        let now = outer.first().or(inner.last()).and_then(|(_, _, number)| phased.get(*number));
        if let Some(run) = runs.last_mut().filter(|run| run.end == i64::MAX) {
            if now.is_some_and(|(_, phase)| run.phase == **phase) {
                continue;
            }
            run.end = time;
        }
        if let Some((_, phase)) = now {
            match runs.last_mut() {
                Some(run) if run.phase == **phase && !is_cut(cuts, run.end.saturating_sub(1), time) => {
                    run.end = i64::MAX;
                }
                _ => runs.push(Run { phase: (*phase).clone(), start: time, end: i64::MAX }),
            }
        }
    }
    runs
}

/// Whether a step begins after one time and not after the other.
fn is_cut(cuts: &[i64], after: i64, up_to: i64) -> bool {
    cuts.get(cuts.partition_point(|cut| *cut <= after)).is_some_and(|cut| *cut <= up_to)
}

fn step_starts(recorded: &Recorded) -> Vec<i64> {
    let starts =
        recorded.ranges.iter().filter(|range| recorded.names.is_step(range.name)).map(|range| range.start);
    let mut starts: Vec<i64> = starts.collect();
    starts.sort_unstable();
    starts
}

/// Steps as they form, run by run.
struct Steps {
    steps: Vec<Step>,
    guess_forward: bool,
    /// Where steps begin that have no update to tell.
    cuts: Vec<i64>,
    /// The end of what was taken in.
    reached: i64,
    /// The phases that the last step has had before the one that it is in.
    seen: BTreeSet<Phase>,
}

/// The place of a phase in a step.
fn rank(phase: &Phase) -> usize {
    Phase::STANDARD.iter().position(|known| known == phase).unwrap_or(0)
}

const BACKWARD: usize = 3;

impl Steps {
    fn take(&mut self, run: Run) {
        let Some((before, since)) = self.last().map(|span| (span.phase.clone(), span.start)) else {
            return self.begin(run);
        };
        let done = self.step_has(&Phase::Update);
        let goes_back = rank(&run.phase) < rank(&before);
        let cut = is_cut(&self.cuts, since, run.start);
        match (&before, &run.phase) {
            _ if cut || (done && rank(&run.phase) <= BACKWARD) => self.begin(run),
            (Phase::ZeroGrad, Phase::ZeroGrad) => self.enter(run),
            (_, Phase::ZeroGrad) if self.step_has(&Phase::ZeroGrad) && done => self.begin(run),
            (_, Phase::ZeroGrad) if self.step_has(&Phase::ZeroGrad) => self.reached = run.end,
            // the next micro-batch, of which only the loss or the backward is named
            (Phase::Backward, Phase::Loss) if self.guess_forward => self.enter_after(Phase::Forward, run),
            (Phase::ZeroGrad, Phase::Loss | Phase::Backward)
                if self.guess_forward && !self.step_has(&Phase::Forward) =>
            {
                self.enter_after(Phase::Forward, run);
            }
            // a loop that begins with zero_grad takes its batch after it
            (Phase::ZeroGrad, Phase::Forward)
                if !self.step_has(&Phase::Forward) && !self.step_has(&Phase::Load) =>
            {
                self.enter_after(Phase::Load, run);
            }
            // clipping
            (Phase::Backward, Phase::Update) => self.enter_after(Phase::Update, run),
            (_, Phase::Other(_)) | (Phase::Backward, _) => self.enter(run),
            (Phase::ZeroGrad, _) if !done => self.enter(run),
            // what is left of forward after a loss inside it, or of an update after its zero_grad
            _ if goes_back => self.reached = run.end,
            _ => self.enter(run),
        }
    }

    /// Begins a step with what precedes its first run.
    fn begin(&mut self, run: Run) {
        let gap = match run.phase {
            Phase::Loss | Phase::Backward if self.guess_forward => Phase::Forward,
            Phase::ZeroGrad if !self.steps.is_empty() => Phase::ZeroGrad,
            _ => Phase::Load,
        };
        self.steps.push(Step { spans: Vec::new() });
        self.seen.clear();
        self.enter_after(gap, run);
    }

    /// Enters a run after a phase that has lasted since the run before.
    fn enter_after(&mut self, gap: Phase, run: Run) {
        self.open(gap, self.reached);
        self.enter(run);
    }

    fn step_has(&self, phase: &Phase) -> bool {
        self.seen.contains(phase) || self.last().is_some_and(|span| span.phase == *phase)
    }

    fn enter(&mut self, run: Run) {
        if self.last().is_none_or(|span| span.phase != run.phase) {
            self.open(run.phase, run.start);
        }
        self.reached = run.end;
    }

    /// Begins a phase. One that would have no time is not kept.
    fn open(&mut self, phase: Phase, start: i64) {
        let Some(step) = self.steps.last_mut() else { return };
        if let Some(mut span) = step.spans.pop_if(|span| span.start < start) {
            self.seen.insert(span.phase.clone());
            span.end = start;
            step.spans.push(span);
        } else {
            step.spans.pop();
        }
        match step.spans.last_mut() {
            Some(span) if span.phase == phase => span.end = i64::MAX,
            _ => step.spans.push(Span { phase, micro_batch: None, start, end: i64::MAX }),
        }
    }

    fn last(&self) -> Option<&Span> {
        self.steps.last()?.spans.last()
    }

    /// The steps, each up to where the next begins, and their micro-batches counted.
    fn end(mut self, last: i64) -> Vec<Step> {
        let mut end = last;
        for step in self.steps.iter_mut().rev() {
            if let Some(span) = step.spans.last_mut() {
                span.end = end.max(span.start); // ranges may go on after the last memory event
            }
            end = step.spans.first().map_or(end, |span| span.start);
            count_micro_batches(&mut step.spans);
        }
        self.steps
    }
}

/// A micro-batch begins where forward, loss and backward do not go on in this order. Of the others, the second is counted.
fn count_micro_batches(spans: &mut [Span]) {
    let (mut number, mut before) = (0u32, 0);
    let mut others: BTreeMap<Phase, u32> = BTreeMap::new();
    for span in spans {
        let now = rank(&span.phase);
        if (1..=BACKWARD).contains(&now) {
            number += u32::from(now <= before);
            before = now;
            span.micro_batch = Some(number);
        } else {
            let times = others.entry(span.phase.clone()).or_default();
            span.micro_batch = Some(*times).filter(|times| *times > 0);
            *times += 1;
        }
    }
}
