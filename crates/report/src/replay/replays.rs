//! A file replayed: as it was recorded, and under other settings.

use super::device::Recorded;
use super::measured::Measured;
use super::script::{Outcome, Script};
use peakledger_allocator::{Card as Device, Settings};
use peakledger_core::{Category, Ledger, State};
use peakledger_input::Problem;
use peakledger_measure::snapshot::Snapshot;
use peakledger_plan::Verdict;
use peakledger_plan::catalogue::Card;

/// What is replayed, under which settings, on which card.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// Settings beside those of the file; several usual ones where none are said.
    pub settings: Option<Settings>,
    /// The card; where none is said, that of the file as far as it is known, and else one that never runs out.
    pub card: Option<&'a Card>,
    /// The device of a snapshot; that with the most reserved bytes where none is said.
    pub device: Option<u32>,
}

/// A file replayed.
#[derive(Clone, Debug)]
pub struct Replays {
    /// What the numbers of its places are.
    pub(crate) places: Places,
    /// As recorded first, then under other settings.
    pub(crate) runs: Vec<Outcome>,
    /// How well the recorded run follows the trace, if there is one.
    pub(crate) followed: Option<Followed>,
    /// What the allocator may hold at most, where that is known.
    pub(crate) room: Option<u64>,
    /// Whether blocks were there before the first event.
    pub(crate) from_empty: bool,
    /// Whether what ranks exchange is among the blocks, and on the stream of all others: a ledger names no streams.
    pub(crate) exchanges_on_one_stream: bool,
}

/// What the numbers of places are.
#[derive(Clone, Debug)]
pub(crate) enum Places {
    /// Events of a device, and how many there are; spans begin at these.
    Events { device: u32, count: u32, spans: Vec<u32> },
    /// Phases of a ledger.
    Phases(Vec<String>),
}

/// How well a replay follows its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Followed {
    /// Blocks that the trace places.
    pub(crate) blocks: u64,
    /// Those that the replay puts there too.
    pub(crate) in_place: u64,
    /// Segments and pages that the device gave.
    pub(crate) given: u64,
    /// Those that the replay asked for, at the same point and as large.
    pub(crate) asked: u64,
    /// What the trace says was reserved at most.
    pub(crate) reserved: u64,
}

/// The settings that people try first.
const USUAL: [&str; 3] = ["expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8"];

impl Replays {
    /// Replays a device of a snapshot.
    ///
    /// # Errors
    /// There is no such device, nothing was recorded, or a sum of bytes passes 64 bits.
    pub fn of_snapshot(name: &str, snapshot: &Snapshot, asked: &Asked<'_>) -> Result<Replays, Problem> {
        let too_large =
            || Problem::in_file(name, "a sum of bytes exceeds 64 bits").mend("check the sizes in the file");
        let devices = match asked.device {
            Some(device) if device >= snapshot.devices() => {
                let problem =
                    Problem::in_option("--device", format!("there is no device {device} in {name}"));
                return Err(
                    problem.mend(format!("devices are counted from 0; it has {}", snapshot.devices()))
                );
            }
            Some(device) => device..device + 1,
            None => 0..snapshot.devices(),
        };
        let mut best: Option<(u32, Measured)> = None;
        for device in devices.filter(|device| !snapshot.trace(*device).is_empty()) {
            let measured = Measured::of(snapshot, device).map_err(|_| too_large())?;
            if best.as_ref().is_none_or(|(_, best)| measured.reserved_peak > best.reserved_peak) {
                best = Some((device, measured));
            }
        }
        let Some((device, measured)) = best else {
            let problem = Problem::in_file(name, "no events were recorded, so there is nothing to replay");
            return Err(problem.mend(
                "record them: `torch.cuda.memory._record_memory_history()` before the step, `_dump_snapshot` after it",
            ));
        };
        let script = &measured.script;
        let (recorded, left) = script.run(measured.settings, measured.device()).ok_or_else(too_large)?;
        let followed = Followed::of(&measured, &recorded, &left);
        let card = Limits { card: asked.card, room: measured.room, script };
        let mut runs = vec![recorded];
        if asked.card.is_some() {
            runs = vec![card.run(measured.settings).ok_or_else(too_large)?];
        }
        for settings in others(asked.settings, &measured.settings) {
            runs.push(card.run(settings).ok_or_else(too_large)?);
        }
        let places = Places::Events { device, count: measured.events, spans: script.spans.clone() };
        let from_empty = measured.from_empty;
        let (followed, room) = (Some(followed), card.room());
        Ok(Replays { places, runs, followed, room, from_empty, exchanges_on_one_stream: false })
    }

    /// Replays a ledger; a hand-written one, or a step that was planned.
    ///
    /// # Errors
    /// A sum of bytes passes 64 bits.
    pub fn of_ledger(name: &str, ledger: &Ledger, asked: &Asked<'_>) -> Result<Replays, Problem> {
        if asked.device.is_some_and(|device| device > 0) {
            let problem =
                Problem::in_option("--device", format!("{name} is a ledger, and a ledger is of one device"));
            return Err(problem.mend("leave it out"));
        }
        let script = Script::of_ledger(ledger);
        let card = Limits { card: asked.card, room: None, script: &script };
        let own = Settings::default();
        let settings = std::iter::once(own).chain(others(asked.settings, &own));
        let runs: Option<Vec<Outcome>> = settings.map(|settings| card.run(settings)).collect();
        let runs = runs.ok_or_else(|| {
            Problem::in_file(name, "a sum of bytes exceeds 64 bits").mend("check the sizes in the file")
        })?;
        let slots = ledger.timeline().slots();
        let places = Places::Phases(slots.iter().map(|slot| slot.id()).collect());
        let is_exchanged = |state: &State| state.category == Category::CommunicationBuffer;
        let exchanges_on_one_stream = ledger.states().iter().any(is_exchanged);
        let room = card.room();
        Ok(Replays { places, runs, followed: None, room, from_empty: true, exchanges_on_one_stream })
    }

    /// The run that is asked about: under the settings that were said, else as recorded.
    pub(crate) fn asked_about(&self, said: bool) -> Option<&Outcome> {
        if said { self.runs.get(1).or(self.runs.first()) } else { self.runs.first() }
    }

    /// Whether the run that is asked about ends by running out of memory.
    pub fn runs_out(&self, said: bool) -> bool {
        self.asked_about(said).is_some_and(|run| run.oom.is_some())
    }
}

/// The settings beside the file's own.
fn others(said: Option<Settings>, own: &Settings) -> Vec<Settings> {
    let usual = || std::iter::once("").chain(USUAL).filter_map(|text| text.parse().ok());
    let list: Vec<Settings> = match said {
        Some(settings) => vec![settings],
        None => usual().collect(),
    };
    list.into_iter().filter(|settings| settings != own || said.is_some()).collect()
}

/// Where scripts run under other settings.
struct Limits<'a> {
    card: Option<&'a Card>,
    room: Option<u64>,
    script: &'a Script,
}

impl Limits<'_> {
    /// What the allocator may hold at most.
    fn room(&self) -> Option<u64> {
        let of_card = |card: &Card| card.total.get().saturating_sub(Verdict::context(Some(card)).get());
        self.card.map(of_card).or(self.room)
    }

    fn device(&self) -> Device {
        let device = match (self.card, self.room) {
            (Some(card), _) => Device::of(card.total.get(), Verdict::context(Some(card)).get()),
            (None, Some(room)) => Device::of(room, 0),
            (None, None) => Device::unlimited(),
        };
        if self.script.held.is_empty() {
            return device;
        }
        let pieces = self.script.held.iter().flat_map(|segment| &segment.pieces);
        device.holding(pieces.fold(0u64, |sum, piece| sum.saturating_add(piece.size)))
    }

    fn run(&self, settings: Settings) -> Option<Outcome> {
        self.script.run(settings, self.device()).map(|(outcome, _)| outcome)
    }
}

impl Followed {
    fn of(measured: &Measured, outcome: &Outcome, left: &Recorded) -> Followed {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let asked = left.matched;
        let given = asked.saturating_add(left.strayed.max(count(left.left_over())));
        let (blocks, reserved) = (count(measured.script.placed.len()), measured.reserved_peak);
        Followed { blocks, in_place: outcome.in_place, given, asked, reserved }
    }

    /// Whether every block and every segment is where the trace has it.
    pub(crate) fn is_exact(self) -> bool {
        self.blocks == self.in_place && self.given == self.asked
    }
}
