//! What one device did hold: peaks, who formed them, failed requests, and the state at the end.

use crate::end::EndState;
use crate::history::{Curve, History, TooLarge};
use crate::levels::{Level, Levels};
use crate::notes::Notes;
use crate::oom::{MOST_EXPLAINED, Oom};
use crate::replay::{Live, Replay, Watched};
use crate::snapshot::{Action, Snapshot};
use std::ops::Range;

/// The figures of one device. Events are counted from the device's first.
#[derive(Clone, Debug)]
pub struct DeviceMeasurement {
    /// The past, with requested and reserved bytes.
    pub history: History,
    /// The events in which the peaks are looked for.
    pub window: Range<u32>,
    /// Requested bytes in use.
    pub requested: Curve,
    /// Block bytes in use: what `torch.cuda.max_memory_allocated` counts.
    pub allocated: Curve,
    /// The same with blocks that wait for a stream.
    pub active: Curve,
    /// Bytes of segments: what `torch.cuda.max_memory_reserved` counts.
    pub reserved: Curve,
    /// How allocated and reserved bytes ran over the window; its moment 0 is before the first event of it.
    pub levels: Levels,
    /// The blocks in use where the requested bytes peak, largest first.
    pub at_peak: Vec<Live>,
    /// Failed requests.
    pub oom: Vec<Oom>,
    /// Failed requests beyond those.
    pub more_oom: u64,
    /// Allocations outside every segment.
    pub outside: u64,
    /// Allocations of more than the rounded request.
    pub uncut: u64,
    /// The state at the end.
    pub end: EndState,
    /// Blocks in use at the end whose bytes the replay gets exactly, and those that it does not.
    pub exact_blocks: [u64; 2],
    /// What is to be said.
    pub notes: Notes,
    /// Whether the file is whole, has a trace, and the trace leads to the state at the end.
    pub complete: bool,
}

impl DeviceMeasurement {
    /// Measures a device, over all its events or a window of them.
    ///
    /// # Errors
    /// A sum of bytes passes 64 bits.
    pub fn of(
        snapshot: &Snapshot,
        device: u32,
        window: Option<Range<u32>>,
    ) -> Result<DeviceMeasurement, TooLarge> {
        let history = History::of(snapshot, device)?;
        let events = history.events.end - history.events.start;
        let window = window.map_or(0..events, |w| w.start.min(events)..w.end.min(events));
        let peak = match window == (0..events) {
            true => history.requested.event,
            false => peak_within(snapshot, &history, &window),
        };
        let mut watched = Sums::new();
        let mut replay = Replay::new(snapshot, &history);
        let (mut at_peak, mut oom, mut more_oom) = (Vec::new(), Vec::new(), 0);
        watched.see(&replay, &window, None);
        if peak.is_none() && window.start == 0 {
            at_peak = in_use(&replay);
        }
        while let Some((number, event, _)) = replay.step() {
            watched.see(&replay, &window, Some(number));
            if Some(number) == peak || (peak.is_none() && number + 1 == window.start) {
                at_peak = in_use(&replay);
            }
            if event.action == Action::Oom && window.contains(&number) {
                match oom.len() < MOST_EXPLAINED {
                    true => oom.push(Oom::of(snapshot, number, &event, &replay)),
                    false => more_oom += 1,
                }
            }
        }
        let end = EndState::of(snapshot, device);
        let exact_blocks = compare_with_the_end(snapshot, device, &replay);
        let mut notes = history.notes.clone();
        notes.extend(&replay.notes);
        let levels = std::mem::take(&mut watched.levels);
        let [requested, allocated, active, reserved] = watched.curves()?;
        let mut measured = DeviceMeasurement {
            window,
            requested,
            allocated,
            active,
            reserved,
            levels,
            at_peak,
            oom,
            more_oom,
            outside: replay.outside,
            uncut: replay.uncut,
            end,
            exact_blocks,
            notes,
            complete: snapshot.lost.is_none() && events > 0,
            history,
        };
        measured.judge();
        Ok(measured)
    }

    /// How many events there are.
    pub fn events(&self) -> u32 {
        self.history.events.end - self.history.events.start
    }

    /// Requested bytes at the end by the events, less those that the segments have.
    pub fn end_difference(&self) -> i128 {
        i128::from(self.history.requested.end) - i128::from(self.end.requested)
    }

    /// Whether more than one event in a hundred makes no sense.
    pub fn is_senseless(&self) -> bool {
        self.history.agreement.senseless.saturating_mul(100) > u64::from(self.events())
    }

    /// How many events that are.
    pub(crate) fn senseless(&self) -> String {
        let senseless = self.history.agreement.senseless;
        format!("{senseless} of {} events make no sense after those before them", self.events())
    }

    /// What it means that the last events are lost, if they are.
    pub(crate) fn cut_short(&self) -> Option<String> {
        let (device, agreement) = (self.history.device, self.history.agreement);
        if !agreement.cut {
            return None;
        }
        let least = format!(
            "device {device}: the events after the {} that are left are lost, so at least this much was handed out; reserved bytes are of the segments at the end that these come to",
            self.events()
        );
        let bytes = peakledger_core::Bytes::new(agreement.left_out_requested);
        Some(match agreement.left_out {
            0 => least,
            1 => format!(
                "{least}; 1 block of {bytes} that is there at the end and that none of these handed out is not counted: it came later, or was there before them"
            ),
            blocks => format!(
                "{least}; {bytes} in {blocks} blocks that are there at the end and that none of these handed out are not counted: they came later, or were there before them"
            ),
        })
    }

    /// Says aloud what is not as it should be.
    fn judge(&mut self) {
        let device = self.history.device;
        let agreement = self.history.agreement;
        let on = |text: String| format!("device {device}: {text}");
        let mut faults = Vec::new();
        let leads_to_the_end = self.events() > 0 && !agreement.cut;
        if leads_to_the_end && self.end_difference() != 0 {
            let cause = "requested bytes at the end by the events and by the segments differ";
            faults.push(format!("{cause} by {}", self.end_difference()));
        }
        if leads_to_the_end && agreement.missing > 0 {
            faults.push(format!(
                "{} blocks that the events leave in use are not there at the end",
                agreement.missing
            ));
        }
        if leads_to_the_end && agreement.mismatched > 0 {
            faults.push(format!("{} blocks are not of the size that was asked for", agreement.mismatched));
        }
        if agreement.reserved_negative {
            faults.push(
                "the segment events free more than there was (map and unmap events are not paired)"
                    .to_owned(),
            );
        }
        if agreement.senseless > 0 {
            faults.push(format!("{} events make no sense after those before them", agreement.senseless));
        }
        self.complete &= faults.is_empty();
        for fault in faults {
            self.notes.say(on(fault));
        }
        if self.end.overlapping_segments > 0 {
            self.notes.say(on(format!(
                "{} segments overlap; sums use them as given",
                self.end.overlapping_segments
            )));
        }
        if self.end.stray_blocks > 0 {
            self.notes.say(on(format!(
                "{} blocks lie outside their segment; sums use them as given",
                self.end.stray_blocks
            )));
        }
        if !self.end.tiled {
            self.notes.say(on("the blocks do not fill their segments; sums use both as given".to_owned()));
        }
        if self.outside > 0 {
            let outside = self.outside;
            self.notes.say(on(format!(
                "{outside} allocations lie outside every segment; their bytes are the request, rounded"
            )));
        }
        if agreement.freed + agreement.survivors > 0 && self.events() > 0 {
            let start = peakledger_core::Bytes::new(self.history.requested_active.start);
            let (blocks, unit) = match agreement.freed + agreement.survivors {
                1 => (1, "block was"),
                blocks => (blocks, "blocks were"),
            };
            self.notes.say(on(format!("history starts at event 0: {start} in {blocks} {unit} already live")));
        }
    }
}

/// The four sums as they run.
struct Sums {
    sums: Option<[Watched; 4]>,
    levels: Levels,
}

impl Sums {
    fn new() -> Sums {
        Sums { sums: None, levels: Levels::default() }
    }

    /// Sees the sums after an event, or before the first.
    #[inline]
    fn see(&mut self, replay: &Replay<'_>, window: &Range<u32>, event: Option<u32>) {
        let now = [replay.requested(), replay.allocated(), replay.active(), replay.reserved()];
        let bytes = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX); // where it is more, no curve is made
        let level = Level { allocated: bytes(replay.allocated()), reserved: bytes(replay.reserved()) };
        match (&mut self.sums, event) {
            (Some(sums), Some(event)) if event >= window.start => {
                if event < window.end {
                    self.levels.see(level);
                    for (sum, now) in sums.iter_mut().zip(now) {
                        sum.see(now, event);
                    }
                }
            }
            // the state before the window is where it starts
            (sums, _) => {
                *sums = Some(now.map(Watched::from));
                self.levels.start(level);
            }
        }
    }

    fn curves(self) -> Result<[Curve; 4], TooLarge> {
        let [requested, allocated, active, reserved] = self.sums.unwrap_or([Watched::from(0); 4]);
        Ok([requested.curve()?, allocated.curve()?, active.curve()?, reserved.curve()?])
    }
}

/// Where the requested bytes peak within a window.
fn peak_within(snapshot: &Snapshot, history: &History, window: &Range<u32>) -> Option<u32> {
    let mut sums = Sums::new();
    let mut replay = Replay::new(snapshot, history);
    sums.see(&replay, window, None);
    while let Some((number, ..)) = replay.step() {
        sums.see(&replay, window, Some(number));
    }
    sums.curves().ok().and_then(|[requested, ..]| requested.event)
}

/// The blocks in use, largest first, then by the event that handed them out, then by address.
fn in_use(replay: &Replay<'_>) -> Vec<Live> {
    let mut live: Vec<Live> = replay.live().filter(|live| !live.pending).copied().collect();
    live.sort_by_key(|live| (std::cmp::Reverse(live.requested), live.event, live.address));
    live
}

/// The blocks in use just after an event, or before the first, largest first.
///
/// # Errors
/// A sum of bytes passes 64 bits.
pub fn live_after(snapshot: &Snapshot, device: u32, event: Option<u32>) -> Result<Vec<Live>, TooLarge> {
    let history = History::of(snapshot, device)?;
    let mut replay = Replay::new(snapshot, &history);
    while event.is_some_and(|event| replay.next_event() <= event) && replay.step().is_some() {}
    Ok(in_use(&replay))
}

/// How many of the blocks in use at the end have the bytes that the replay found.
fn compare_with_the_end(snapshot: &Snapshot, device: u32, replay: &Replay<'_>) -> [u64; 2] {
    let mut counts = [0; 2];
    for segment in snapshot.segments_of(device) {
        for block in snapshot.blocks_of(segment).iter().filter(|block| block.state.is_active()) {
            let same = replay.at(block.address).is_some_and(|live| live.size == block.size);
            if let Some(count) = counts.get_mut(usize::from(!same)) {
                *count += 1;
            }
        }
    }
    counts
}
