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
    let moments = NonZeroU32::new(slot.last.0 - slot.first.0 + 1).filter(|moments| moments.get() > 1);
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
    let mut stays = state.residencies.as_slice().iter().map(|stay| residency(timeline, stay));
    match &state.residencies {
        Residencies::One(stay) => {
            let written = residency(timeline, stay);
            if written.start_moment.is_none() && written.end_moment.is_none() {
                record.device = Some(written.device);
                record.start_phase = Some(written.start_phase);
                record.end_phase = Some(written.end_phase);
            } else {
                record.residencies.extend(stays.next());
            }
        }
        Residencies::Many(_) => record.residencies.extend(stays),
    }
    record
}

fn residency<'a>(timeline: &'a Timeline, stay: &Residency) -> ResidencyRecord<'a> {
    let end = |moment| match timeline.slot_at(moment) {
        Some(slot) => (id(slot), slot.first, slot.last),
        None => unreachable!("a ledger's residencies lie on its timeline"),
    };
    let (start_phase, first, _) = end(stay.start);
    let (end_phase, first_of_end, last) = end(stay.end);
    ResidencyRecord {
        device: stay.device,
        start_phase,
        start_moment: (stay.start != first).then(|| stay.start.0 - first.0),
        end_phase,
        end_moment: (stay.end != last).then(|| stay.end.0 - first_of_end.0),
    }
}

fn id(slot: &Slot) -> Text<'_> {
    match slot.micro_batch {
        None => Text::from(slot.phase.as_str()),
        Some(_) => Text::from(slot.id()),
    }
}
