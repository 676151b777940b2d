//! Sums over the timeline by a difference array: residencies + moments, never residencies × moments.

use crate::{Bytes, Category, Device, Moment, Timeline};

/// One state's stay, as the sums see it.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Stay {
    pub device: Device,
    pub category: Category,
    pub bytes: Bytes,
    pub start: Moment,
    pub end: Moment,
}

/// Resident bytes at every moment, a column for each device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals {
    gpu: Vec<u64>,
    cpu: Vec<u64>,
}

/// A total passes 64 bits at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow(pub Moment);

impl Totals {
    /// Adds up the stays, all of which lie inside `moments`.
    ///
    /// # Errors
    /// The first moment at which a device's total does not fit into 64 bits.
    pub fn of(moments: usize, stays: impl Iterator<Item = Stay>) -> Result<Totals, Overflow> {
        let mut change = vec![[0i128; 2]; moments + 1];
        for stay in stays {
            let (device, bytes) = (stay.device as usize, i128::from(stay.bytes.get()));
            if let Some(cell) = change.get_mut(stay.start.index()).and_then(|c| c.get_mut(device)) {
                *cell += bytes;
            }
            if let Some(cell) = change.get_mut(stay.end.index() + 1).and_then(|c| c.get_mut(device)) {
                *cell -= bytes;
            }
        }
        change.truncate(moments);
        let mut totals = Totals { gpu: Vec::with_capacity(moments), cpu: Vec::with_capacity(moments) };
        let [mut gpu, mut cpu] = [0i128; 2];
        for (moment, [more_gpu, more_cpu]) in (0u32..).zip(change) {
            gpu += more_gpu;
            cpu += more_cpu;
            let fits = |total: i128| u64::try_from(total).map_err(|_| Overflow(Moment(moment)));
            totals.gpu.push(fits(gpu)?);
            totals.cpu.push(fits(cpu)?);
        }
        Ok(totals)
    }

    /// What sits on the device at that moment.
    pub fn at(&self, device: Device, moment: Moment) -> Bytes {
        let column = match device {
            Device::Gpu => &self.gpu,
            Device::Cpu => &self.cpu,
        };
        Bytes::new(column.get(moment.index()).copied().unwrap_or(0))
    }

    /// The whole GPU column.
    pub fn gpu(&self) -> &[u64] {
        &self.gpu
    }

    /// The earliest of the largest moments from `first` to `last`, on the GPU.
    pub fn peak_between(&self, first: Moment, last: Moment) -> (Moment, Bytes) {
        let mut best = (first, Bytes::ZERO);
        let column = self.gpu.get(first.index()..=last.index()).unwrap_or(&[]);
        for (offset, total) in (0u32..).zip(column) {
            if *total > best.1.get() {
                best = (Moment(first.0 + offset), Bytes::new(*total));
            }
        }
        best
    }
}

/// Bytes by category, in the order of [`Category::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByCategory([u64; Category::ALL.len()]);

impl ByCategory {
    /// The bytes of one category.
    pub fn get(&self, category: Category) -> Bytes {
        Bytes::new(self.0.get(category as usize).copied().unwrap_or(0))
    }

    /// Those that are not zero.
    pub fn iter(&self) -> impl Iterator<Item = (Category, Bytes)> + '_ {
        Category::ALL.into_iter().map(|c| (c, self.get(c))).filter(|(_, bytes)| *bytes != Bytes::ZERO)
    }
}

/// One phase's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseTotal {
    /// The phase total: the largest sum over the phase's moments.
    pub total: Bytes,
    /// The earliest moment that reaches it.
    pub moment: Moment,
    /// The sum at the phase's last moment.
    pub end: Bytes,
    /// The largest sum on the host over the phase's moments.
    pub host: Bytes,
    /// The phase total by category; sums to it.
    pub by_category: ByCategory,
}

/// The sums of every phase of a timeline, in order. Stays × phases is avoided: at the phases' peak moments a stay covers
/// a contiguous run of phases, so it touches its two ends only.
pub fn phase_totals(
    timeline: &Timeline,
    totals: &Totals,
    stays: impl Iterator<Item = Stay>,
) -> Vec<PhaseTotal> {
    let mut phases: Vec<PhaseTotal> = timeline
        .slots()
        .iter()
        .map(|slot| {
            let (moment, total) = totals.peak_between(slot.first, slot.last);
            let host = totals.cpu.get(slot.first.index()..=slot.last.index()).unwrap_or(&[]);
            PhaseTotal {
                total,
                moment,
                end: totals.at(Device::Gpu, slot.last),
                host: Bytes::new(host.iter().copied().max().unwrap_or(0)),
                by_category: ByCategory::default(),
            }
        })
        .collect();
    let mut change = vec![[0i128; Category::ALL.len()]; phases.len() + 1];
    for stay in stays.filter(|stay| stay.device == Device::Gpu) {
        let first = phases.partition_point(|phase| phase.moment < stay.start);
        let after = phases.partition_point(|phase| phase.moment <= stay.end);
        let bytes = i128::from(stay.bytes.get());
        for (at, sign) in [(first, 1), (after, -1)] {
            if let Some(cell) = change.get_mut(at).and_then(|c| c.get_mut(stay.category as usize)) {
                *cell += sign * bytes;
            }
        }
    }
    let mut running = [0i128; Category::ALL.len()];
    for (phase, change) in phases.iter_mut().zip(change) {
        for ((sum, more), cell) in running.iter_mut().zip(change).zip(&mut phase.by_category.0) {
            *sum += more;
            *cell = u64::try_from(*sum).unwrap_or(u64::MAX); // never larger than the total, which fits
        }
    }
    phases
}

/// The phase that holds the peak: the largest total, ties to the earliest.
pub fn peak_phase(phases: &[PhaseTotal]) -> Option<usize> {
    let mut best: Option<(usize, Bytes)> = None;
    for (index, phase) in phases.iter().enumerate() {
        if best.is_none_or(|(_, total)| phase.total > total) {
            best = Some((index, phase.total));
        }
    }
    best.map(|(index, _)| index)
}
