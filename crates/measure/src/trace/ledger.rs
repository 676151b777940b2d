//! A measured step as a ledger, so that everything that works on a planned one works on it.
//!
//! Each phase has a moment for its beginning and one for each memory event in it. Blocks of the card are on the gpu, those
//! of the machine on the cpu, so no peak counts them. Which of the seven categories a block is of, a trace does not say:
//! it is concluded from when the block comes and goes.

use super::balance::Block;
use super::device::{name, place};
use super::{DeviceTrace, Span, Trace};
use peakledger_core::{
    Bytes, Category, Detail, Device, Ledger, LedgerError, LedgerErrorKind, Moment, Phase, Residencies,
    Residency, State, Timeline,
};
use std::num::NonZeroU32;

impl Trace {
    /// The ledger of a step, by its place in [`Trace::steps`], for one device of [`Trace::devices`]. The machine's own
    /// memory is in it too, on the cpu. None where there is no such step.
    ///
    /// # Errors
    /// A total does not fit into 64 bits, or there are more events than a timeline has moments.
    pub fn ledger(&self, step: usize, device: usize) -> Option<Result<Ledger, LedgerError>> {
        let spans = &self.steps.get(step)?.spans;
        let chosen = self.devices.get(device)?;
        let host = self.devices.iter().find(|other| other.is_cpu() && other.device != chosen.device);
        let of = [Some(chosen), host];
        let mut clock = Clock::new(of.into_iter().flatten(), spans);
        Some(clock.timeline(spans).and_then(|timeline| {
            let mut states = Vec::new();
            for side in of.into_iter().flatten() {
                self.states(side, step, spans, &clock, &mut states);
            }
            Ledger::new(timeline, states)
        }))
    }

    fn states(&self, of: &DeviceTrace, step: usize, spans: &[Span], clock: &Clock, states: &mut Vec<State>) {
        let device = if of.is_cpu() { Device::Cpu } else { Device::Gpu };
        let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return };
        let begins = of.times.partition_point(|time| *time < first.start);
        let ends = of.times.partition_point(|time| *time < last.end);
        let (mut older, mut rest) = (0u32, of.opening.get() > 0);
        for block in &of.blocks {
            let born = block.born.map_or(0, |event| event as usize + 1);
            let died = block.died.map_or(usize::MAX, |event| event as usize);
            if born > ends || died < begins || block.bytes == 0 {
                continue;
            }
            let start = if born <= begins {
                Moment(0)
            } else {
                clock.at(of.times.get(born - 1).copied(), born - 1, of)
            };
            let end = match of.times.get(died) {
                Some(time) if died < ends => Moment(clock.at(Some(*time), died, of).0.saturating_sub(1)),
                _ => clock.last(),
            };
            if end < start {
                continue;
            }
            let (category, detail, persistent) = self.kind(block, step, of);
            let name = match block.born {
                Some(event) => format!("{} #{event}", name(&self.names, block)),
                None if block.is_rest && std::mem::take(&mut rest) => name(&self.names, block),
                None => {
                    older += 1;
                    format!("{} #-{older}", name(&self.names, block))
                }
            };
            // two devices have events of the same number
            let name = if of.is_cpu() { format!("cpu: {name}") } else { name };
            let residencies = Residencies::One(Residency { device, start, end });
            states.push(State {
                name: name.into(),
                category,
                detail,
                bytes: Bytes::new(block.bytes),
                persistent,
                residencies,
            });
        }
    }

    /// What a block is, from the phase that takes it and the one that gives it back.
    fn kind(&self, block: &Block, step: usize, of: &DeviceTrace) -> (Category, Option<Detail>, bool) {
        let span = |(step, span): (usize, usize)| self.steps.get(step).and_then(|step| step.spans.get(span));
        let died = block.died.and_then(|event| of.times.get(event as usize)).copied();
        let step_end =
            self.steps.get(step).and_then(|step| step.spans.last()).map_or(i64::MAX, |span| span.end);
        let outlives = died.is_none_or(|died| died >= step_end);
        let taken = block.born.and_then(|event| of.times.get(event as usize));
        let born = taken.and_then(|time| place(&self.steps, *time)).and_then(span);
        // it goes in the phase in which it came
        let brief = born.zip(died).is_some_and(|(span, died)| died < span.end);
        match born.map(|span| &span.phase) {
            None if outlives => (Category::Parameter, None, true),
            None => (Category::Activation, None, false),
            Some(_) if brief => (Category::Workspace, Some(Detail::Temporary), false),
            Some(Phase::Update) => (Category::OptimizerState, None, outlives),
            Some(Phase::Backward) => (Category::Gradient, None, false),
            Some(Phase::Load) if outlives => (Category::Parameter, None, true),
            Some(Phase::Load) => (Category::Activation, Some(Detail::Input), false),
            Some(_) => (Category::Activation, None, false),
        }
    }
}

/// The moments of a step: one for the beginning of each phase and one for each event of the devices.
struct Clock {
    /// The times of the events of all devices, in order, with the number of those that belong to one after another.
    times: Vec<(i64, bool, usize)>,
    /// The first moment and the first event of each phase.
    firsts: Vec<(i64, u32, usize)>,
    moments: u32,
}

impl Clock {
    fn new<'a>(devices: impl Iterator<Item = &'a DeviceTrace>, spans: &[Span]) -> Clock {
        let (from, to) =
            (spans.first().map_or(0, |span| span.start), spans.last().map_or(0, |span| span.end));
        let mut times: Vec<(i64, bool, usize)> = devices
            .flat_map(|device| device.times.iter().enumerate().map(|(at, time)| (*time, device.is_cpu(), at)))
            .filter(|(time, ..)| (from..to).contains(time))
            .collect();
        times.sort_unstable();
        Clock { times, firsts: Vec::new(), moments: 0 }
    }

    fn timeline(&mut self, spans: &[Span]) -> Result<Timeline, LedgerError> {
        let mut timeline = Timeline::empty();
        let full = || LedgerErrorKind::TooManyStates.anywhere();
        for span in spans {
            let from = self.times.partition_point(|(time, ..)| *time < span.start);
            let to = self.times.partition_point(|(time, ..)| *time < span.end);
            let moments = u32::try_from(to - from)
                .ok()
                .and_then(|events| events.checked_add(1))
                .and_then(NonZeroU32::new)
                .ok_or_else(full)?;
            self.firsts.push((span.start, self.moments, from));
            self.moments = self.moments.checked_add(moments.get()).ok_or_else(full)?;
            if !timeline.try_push(span.phase.clone(), span.micro_batch, moments) {
                return Err(full());
            }
        }
        Ok(timeline)
    }

    /// The moment of an event.
    fn at(&self, time: Option<i64>, event: usize, of: &DeviceTrace) -> Moment {
        let time = time.unwrap_or(i64::MAX);
        let place = self.times.partition_point(|known| *known < (time, of.is_cpu(), event));
        let phase = self.firsts.partition_point(|(start, ..)| *start <= time).saturating_sub(1);
        let (_, moment, first) = self.firsts.get(phase).copied().unwrap_or_default();
        let within = u32::try_from(place.saturating_sub(first)).unwrap_or(u32::MAX);
        Moment(moment.saturating_add(1).saturating_add(within).min(self.last().0))
    }

    fn last(&self) -> Moment {
        Moment(self.moments.saturating_sub(1))
    }
}
