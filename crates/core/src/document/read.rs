//! From records to a ledger: sizes become bytes, names of phases become moments, and every error knows its place.

use super::error::{RecordError, RecordErrorKind};
use super::{Candidates, Document, PhaseRecord, ResidencyRecord, SCHEMA, StateRecord};
use crate::{
    Bytes, Device, Ledger, LedgerError, LedgerErrorKind, Phase, Residencies, Residency, Slot, State, Timeline,
};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::num::NonZeroU32;
use std::sync::Arc;

/// The longest timeline of a file, in moments: sums take memory for each of them. And the most that a file may ask for in
/// all, where it has candidates: the moments of the timeline for the states and for each candidate.
pub const MOST_MOMENTS: u32 = 1 << 24;

/// What a ledger file holds.
#[derive(Clone, Debug)]
pub struct LedgerFile {
    /// Which of the two forms it has.
    pub form: Form,
    /// What made it, for people.
    pub note: Option<Box<str>>,
    /// Why it is only a part of what there was, where it is.
    pub incomplete: Option<Box<str>>,
    /// The ledger.
    pub ledger: Ledger,
    /// What runs at each phase's largest moment, in the order of the timeline, where the file says so.
    pub peak_ops: Vec<Option<Box<str>>>,
    /// Other versions of the states on the same timeline, in file order.
    pub candidates: Vec<(Box<str>, Ledger)>,
}

/// The two forms of a ledger file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The seed's: a list of states on the six standard phases.
    Array,
    /// An object with a schema number.
    Document,
}

impl LedgerFile {
    /// A ledger that was made and not read: a note on what made it, and what runs at the peak of each phase.
    pub fn made(ledger: Ledger, note: impl Into<Box<str>>, peak_ops: Vec<Option<Box<str>>>) -> LedgerFile {
        LedgerFile {
            form: Form::Document,
            note: Some(note.into()),
            incomplete: None,
            ledger,
            peak_ops,
            candidates: Vec::new(),
        }
    }

    /// The same, marked as only a part of what there was, where there is a reason.
    #[must_use]
    pub fn incomplete(mut self, why: Option<String>) -> LedgerFile {
        self.incomplete = why.map(Into::into);
        self
    }

    /// A ledger from the seed's form.
    ///
    /// # Errors
    /// The first state that breaks a rule.
    pub fn from_states(states: &[StateRecord<'_>]) -> Result<LedgerFile, RecordError> {
        let form = SeedForm::new()?;
        let states = states.iter().enumerate().map(|(index, record)| form.state(index, record));
        let states = states.collect::<Result<Vec<_>, _>>()?;
        form.ledger(states)
    }

    /// A ledger and its candidates from the document form.
    ///
    /// # Errors
    /// The first thing that breaks a rule.
    pub fn from_document(document: &Document<'_>) -> Result<LedgerFile, RecordError> {
        let found = document.schema_version;
        if found == 0 || found > SCHEMA {
            return Err(RecordErrorKind::SchemaVersion { found }.at("/schema_version"));
        }
        let reader = match &document.timeline {
            None => Reader::standard()?,
            Some(phases) => Reader::of(phases)?,
        };
        let ledger = reader.ledger(&Place::Root.field("states"), &document.states)?;
        let peak_ops = match &document.timeline {
            None => vec![None; reader.timeline.slots().len()],
            Some(phases) => phases.iter().map(|p| p.peak_op.as_deref().map(Box::from)).collect(),
        };
        let candidates = reader.candidates(&document.candidates)?;
        let note = document.note.as_deref().map(Box::from);
        let incomplete = document.incomplete.as_deref().map(Box::from);
        Ok(LedgerFile { form: Form::Document, note, incomplete, ledger, peak_ops, candidates })
    }

    /// What runs at the ledger's peak, where the file says so.
    pub fn peak_op(&self) -> Option<&str> {
        let peak = self.ledger.peak().slot;
        let mut slots = self.ledger.timeline().slots().iter().zip(&self.peak_ops);
        slots.find(|(slot, _)| *slot == peak).and_then(|(_, op)| op.as_deref())
    }
}

/// The seed's form state by state, for files of which no more than the ledger itself is to be in memory.
#[derive(Debug)]
pub struct SeedForm(Reader);

impl SeedForm {
    /// On the standard timeline.
    ///
    /// # Errors
    /// None in practice: the standard timeline keeps the rules.
    pub fn new() -> Result<SeedForm, RecordError> {
        Reader::standard().map(SeedForm)
    }

    /// One state, by its place in the list.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn state(&self, index: usize, record: &StateRecord<'_>) -> Result<State, RecordError> {
        self.0.state(&Place::Root.item(index), record)
    }

    /// The ledger of all of them.
    ///
    /// # Errors
    /// The first rule that they break together.
    pub fn ledger(self, states: Vec<State>) -> Result<LedgerFile, RecordError> {
        let timeline = self.0.timeline;
        let peak_ops = vec![None; timeline.slots().len()];
        let ledger = Ledger::on(timeline, states).map_err(|error| placed(&Place::Root, error))?;
        Ok(LedgerFile {
            form: Form::Array,
            note: None,
            incomplete: None,
            ledger,
            peak_ops,
            candidates: Vec::new(),
        })
    }
}

/// A path of the file, written as a JSON pointer only where something is wrong.
#[derive(Clone, Copy)]
enum Place<'a> {
    Root,
    Field(&'a Place<'a>, &'a str),
    Item(&'a Place<'a>, usize),
}

impl<'a> Place<'a> {
    fn field(&'a self, name: &'a str) -> Place<'a> {
        Place::Field(self, name)
    }

    fn item(&'a self, index: usize) -> Place<'a> {
        Place::Item(self, index)
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Root => Ok(()),
            Place::Item(parent, index) => write!(f, "{parent}/{index}"),
            Place::Field(parent, name) => {
                write!(f, "{parent}/")?;
                name.chars().try_for_each(|c| match c {
                    '~' => f.write_str("~0"),
                    '/' => f.write_str("~1"),
                    _ => f.write_char(c),
                })
            }
        }
    }
}

impl From<Place<'_>> for String {
    fn from(place: Place<'_>) -> String {
        place.to_string()
    }
}

/// So few names are quicker tried one by one: most differ in length already.
const FEW: usize = 8;

/// A timeline and the names by which its phases are called.
#[derive(Debug)]
struct Reader {
    timeline: Arc<Timeline>,
    /// Sorted by name: the first and the last slot that it names.
    names: Vec<(Box<str>, usize, usize)>,
}

impl Reader {
    fn standard() -> Result<Reader, RecordError> {
        Reader::named(Timeline::standard())
    }

    fn of(phases: &[PhaseRecord<'_>]) -> Result<Reader, RecordError> {
        let place = Place::Root.field("timeline");
        if phases.is_empty() {
            return Err(RecordErrorKind::Ledger(LedgerErrorKind::NoPhases).at(place));
        }
        let mut timeline = Timeline::empty();
        for (index, record) in phases.iter().enumerate() {
            if record.phase.is_empty() {
                return Err(RecordErrorKind::EmptyPhase.at(place.item(index).field("phase")));
            }
            let moments = record.moments.unwrap_or(NonZeroU32::MIN);
            let room = timeline.try_push(Phase::named(&record.phase), record.micro_batch, moments);
            if !room || timeline.moments() > MOST_MOMENTS as usize {
                let kind = RecordErrorKind::TooManyMoments { most: MOST_MOMENTS };
                return Err(kind.at(place.item(index).field("moments")));
            }
        }
        Reader::named(timeline)
    }

    /// Each phase goes by its own name, and where it has micro-batches, by its bare name together with the others.
    fn named(timeline: Timeline) -> Result<Reader, RecordError> {
        let mut names: BTreeMap<Box<str>, (usize, usize)> = BTreeMap::new();
        for (index, slot) in timeline.slots().iter().enumerate() {
            let id = slot.id();
            if let Some((first, _)) = names.insert(id.as_str().into(), (index, index)) {
                let place = Place::Root.field("timeline");
                let kind = LedgerErrorKind::DuplicatePhase { id, first, second: index };
                let mut error = RecordErrorKind::Ledger(kind).at(place.item(index).field("phase"));
                error.other = Some(place.item(first).field("phase").into());
                return Err(error);
            }
        }
        let mut runs: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (index, slot) in timeline.slots().iter().enumerate() {
            runs.entry(slot.phase.as_str()).or_insert((index, index)).1 = index;
        }
        for (name, run) in runs {
            names.entry(name.into()).or_insert(run);
        }
        let names = names.into_iter().map(|(name, (first, last))| (name, first, last)).collect();
        Ok(Reader { timeline: timeline.into(), names })
    }

    fn candidates(&self, candidates: &Candidates<'_>) -> Result<Vec<(Box<str>, Ledger)>, RecordError> {
        let place = Place::Root.field("candidates");
        let (moments, versions) = (self.timeline.moments(), candidates.0.len().saturating_add(1));
        if moments.saturating_mul(versions) > MOST_MOMENTS as usize {
            let kind =
                RecordErrorKind::TooManyCandidates { candidates: versions - 1, moments, most: MOST_MOMENTS };
            return Err(kind.at(place));
        }
        let read = |(name, states): &(super::Text<'_>, Vec<StateRecord<'_>>)| {
            let place = place.field(name);
            if name.is_empty() {
                return Err(RecordErrorKind::EmptyCandidateName.at(place));
            }
            let mut ledger = self.ledger(&place, states)?;
            ledger.let_go_of_sums();
            Ok((Box::from(&**name), ledger))
        };
        candidates.0.iter().map(read).collect()
    }

    fn ledger(&self, place: &Place<'_>, records: &[StateRecord<'_>]) -> Result<Ledger, RecordError> {
        let mut states = Vec::with_capacity(records.len());
        for (index, record) in records.iter().enumerate() {
            states.push(self.state(&place.item(index), record)?);
        }
        Ledger::on(Arc::clone(&self.timeline), states).map_err(|error| placed(place, error))
    }

    fn state(&self, place: &Place<'_>, record: &StateRecord<'_>) -> Result<State, RecordError> {
        Ok(State {
            name: Box::from(&*record.name),
            category: record.category,
            detail: record.detail,
            bytes: size(place, record)?,
            persistent: record.persistent,
            residencies: self.residencies(place, record)?,
        })
    }

    fn residencies(&self, place: &Place<'_>, record: &StateRecord<'_>) -> Result<Residencies, RecordError> {
        let own = (record.device, record.start_phase.as_deref(), record.end_phase.as_deref());
        if !record.residencies.is_empty() {
            if own != (None, None, None) {
                return Err(RecordErrorKind::TwoForms.at(*place));
            }
            let list = place.field("residencies");
            let read = |(index, record)| self.residency(&list.item(index), &Named::of(record));
            let residencies = record.residencies.iter().enumerate().map(read);
            let mut residencies = residencies.collect::<Result<Vec<_>, _>>()?;
            return Ok(match residencies.pop() {
                Some(only) if residencies.is_empty() => Residencies::One(only),
                last => {
                    residencies.extend(last);
                    Residencies::Many(residencies)
                }
            });
        }
        let missing = |field| RecordErrorKind::MissingField { field }.at(*place);
        let (device, start, end) = match own {
            (None, None, None) => return Err(RecordErrorKind::NoResidency.at(*place)),
            (None, ..) => return Err(missing("device")),
            (_, None, _) => return Err(missing("start_phase")),
            (_, _, None) => return Err(missing("end_phase")),
            (Some(device), Some(start), Some(end)) => (device, start, end),
        };
        let named = Named { device, start: (start, None), end: (end, None) };
        self.residency(place, &named).map(Residencies::One)
    }

    fn residency(&self, place: &Place<'_>, named: &Named<'_>) -> Result<Residency, RecordError> {
        let (first_slot, _) =
            self.slots(named.start.0).ok_or_else(|| self.unknown(named.start.0, place, "start_phase"))?;
        let (_, last_slot) =
            self.slots(named.end.0).ok_or_else(|| self.unknown(named.end.0, place, "end_phase"))?;
        let start = match named.start.1 {
            None => first_slot.first,
            Some(number) => {
                first_slot.moment(number).ok_or_else(|| outside(first_slot, number, place, "start_moment"))?
            }
        };
        let end = match named.end.1 {
            None => last_slot.last,
            Some(number) => {
                last_slot.moment(number).ok_or_else(|| outside(last_slot, number, place, "end_moment"))?
            }
        };
        if end < start {
            let kind = RecordErrorKind::EndBeforeStart { start: first_slot.id(), end: last_slot.id() };
            return Err(kind.at(place.field("end_phase")));
        }
        Ok(Residency { device: named.device, start, end })
    }

    /// The first and the last slot of that name.
    fn slots(&self, name: &str) -> Option<(&Slot, &Slot)> {
        let (_, first, last) = if self.names.len() <= FEW {
            self.names.iter().find(|(known, ..)| **known == *name)?
        } else {
            self.names.get(self.names.binary_search_by(|(known, ..)| (**known).cmp(name)).ok()?)?
        };
        let slots = self.timeline.slots();
        slots.get(*first).zip(slots.get(*last))
    }

    fn unknown(&self, word: &str, place: &Place<'_>, field: &str) -> RecordError {
        let known = self.names.iter().map(|(name, ..)| name.to_string()).collect();
        RecordErrorKind::UnknownPhase { word: word.to_owned(), known }.at(place.field(field))
    }
}

/// A residency by the names of its phases, with the numbers of moments in them.
struct Named<'a> {
    device: Device,
    start: (&'a str, Option<u32>),
    end: (&'a str, Option<u32>),
}

impl<'a> Named<'a> {
    fn of(record: &'a ResidencyRecord<'a>) -> Named<'a> {
        Named {
            device: record.device,
            start: (&record.start_phase, record.start_moment),
            end: (&record.end_phase, record.end_moment),
        }
    }
}

fn outside(slot: &Slot, moment: u32, place: &Place<'_>, field: &str) -> RecordError {
    let kind = RecordErrorKind::MomentOutside { moment, phase: slot.id(), moments: slot.moments() };
    kind.at(place.field(field))
}

fn size(place: &Place<'_>, record: &StateRecord<'_>) -> Result<Bytes, RecordError> {
    match (record.size_mb, record.size_bytes) {
        (None, Some(bytes)) => Ok(Bytes::new(bytes)),
        (Some(mib), None) => Bytes::from_mib(mib)
            .map_err(|reason| RecordErrorKind::Size { mib, reason }.at(place.field("size_mb"))),
        (None, None) => Err(RecordErrorKind::NoSize.at(*place)),
        (Some(_), Some(_)) => Err(RecordErrorKind::TwoSizes.at(*place)),
    }
}

/// An error of the ledger's own rules, at the record that breaks it.
fn placed(place: &Place<'_>, error: LedgerError) -> RecordError {
    let Some(state) = error.state.map(|id| id.0 as usize) else {
        return RecordErrorKind::Ledger(error.kind).at(*place);
    };
    let item = place.item(state);
    let (pointer, other) = match &error.kind {
        LedgerErrorKind::EmptyName => (item.field("name").into(), None),
        LedgerErrorKind::DuplicateName { first, .. } => {
            (item.field("name").into(), Some(place.item(first.0 as usize).field("name").into()))
        }
        LedgerErrorKind::Overlap { first, second } => {
            let list = item.field("residencies");
            (list.item(*second).into(), Some(list.item(*first).into()))
        }
        _ => (item.into(), None),
    };
    RecordError { pointer, other, kind: RecordErrorKind::Ledger(error.kind) }
}
