//! From a ledger to records: the document form, in which a ledger that is read back is the same.

use super::{Candidates, Document, PhaseRecord, ResidencyRecord, SCHEMA, StateRecord, Text};
use crate::{Ledger, Residencies, Residency, Slot, State, Timeline};
use std::num::NonZeroU32;

impl<'a> Document<'a> {
    /// The document of a ledger.
    pub fn from_ledger(ledger: &'a Ledger) -> Document<'a> {
        let timeline = ledger.timeline();
        let own = *timeline != Timeline::standard();
        Document {
            schema_version: SCHEMA,
            note: None,
            incomplete: None,
            timeline: own.then(|| phases(timeline)),
            states: ledger.states().iter().map(|state| record(timeline, state)).collect(),
            candidates: Candidates::default(),
        }
    }

    /// With a word on what made it.
    #[must_use]
    pub fn with_note(mut self, note: impl Into<Text<'a>>) -> Document<'a> {
        self.note = Some(note.into());
        self
    }

    /// With the reason why it is only a part, if it is.
    #[must_use]
    pub fn with_incomplete(mut self, why: Option<impl Into<Text<'a>>>) -> Document<'a> {
        self.incomplete = why.map(Into::into);
        self
    }

    /// With what runs at each phase's largest moment, in the order of the timeline.
    #[must_use]
    pub fn with_peak_ops(mut self, peak_ops: impl IntoIterator<Item = Option<&'a str>>) -> Document<'a> {
        let phases = self.timeline.get_or_insert_with(phases_of_standard);
        for (phase, op) in phases.iter_mut().zip(peak_ops) {
            phase.peak_op = op.map(Text::from);
        }
        self
    }

    /// With one more version of the states, on the same timeline.
    #[must_use]
    pub fn with_candidate(mut self, name: impl Into<Text<'a>>, ledger: &'a Ledger) -> Document<'a> {
        let states = ledger.states().iter().map(|state| record(ledger.timeline(), state)).collect();
        self.candidates.0.push((name.into(), states));
        self
    }
}

fn phases(timeline: &Timeline) -> Vec<PhaseRecord<'_>> {
    let record = |slot| phase(slot, Text::from(slot.phase.as_str()));
    timeline.slots().iter().map(record).collect()
}

fn phases_of_standard<'a>() -> Vec<PhaseRecord<'a>> {
    let timeline = Timeline::standard();
    timeline.slots().iter().map(|slot| phase(slot, Text::from(slot.phase.to_string()))).collect()
}

fn phase<'a>(slot: &Slot, name: Text<'a>) -> PhaseRecord<'a> {
    let moments = NonZeroU32::new(slot.moments()).filter(|moments| moments.get() > 1);
    PhaseRecord { phase: name, micro_batch: slot.micro_batch, moments, peak_op: None }
}

fn record<'a>(timeline: &'a Timeline, state: &'a State) -> StateRecord<'a> {
    let mut record = StateRecord {
        name: Text::from(&*state.name),
        category: state.category,
        detail: state.detail,
        size_mb: None,
        size_bytes: Some(state.bytes.get()),
        start_phase: None,
        end_phase: None,
        device: None,
        persistent: state.persistent,
        residencies: Vec::new(),
    };
    let mut residencies = state.residencies.as_slice().iter().map(|one| residency(timeline, one));
    match &state.residencies {
        Residencies::One(one) => {
            let written = residency(timeline, one);
            if written.start_moment.is_none() && written.end_moment.is_none() {
                record.device = Some(written.device);
                record.start_phase = Some(written.start_phase);
                record.end_phase = Some(written.end_phase);
            } else {
                record.residencies.extend(residencies.next());
            }
        }
        Residencies::Many(_) => record.residencies.extend(residencies),
    }
    record
}

fn residency<'a>(timeline: &'a Timeline, residency: &Residency) -> ResidencyRecord<'a> {
    let Residency { device, start, end } = *residency;
    let slot = |moment| match timeline.slot_at(moment) {
        Some(slot) => slot,
        None => unreachable!("a ledger's residencies lie on its timeline"),
    };
    let (first, last) = (slot(start), slot(end));
    ResidencyRecord {
        device,
        start_phase: id(first),
        start_moment: (start != first.first).then(|| first.moment_in(start)),
        end_phase: id(last),
        end_moment: (end != last.last).then(|| last.moment_in(end)),
    }
}

fn id(slot: &Slot) -> Text<'_> {
    match slot.micro_batch {
        None => Text::from(slot.phase.as_str()),
        Some(_) => Text::from(slot.id()),
    }
}
