//! Sums over the timeline by a difference array: residencies + moments, never residencies × moments.

use crate::{Bytes, Category, Device, Moment, Slot, State, Timeline};
use std::ops::Range;

/// One residency of a state, with what the sums need of the state.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Stay {
    pub device: Device,
    pub category: Category,
    pub bytes: Bytes,
    pub start: Moment,
    pub end: Moment,
}

impl Stay {
    /// Each residency of a state.
    pub fn all_of(state: &State) -> impl Iterator<Item = Stay> + Clone + '_ {
        state.residencies.as_slice().iter().map(|residency| Stay {
            device: residency.device,
            category: state.category,
            bytes: state.bytes,
            start: residency.start,
            end: residency.end,
        })
    }
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
    pub fn of(moments: usize, stays: impl Iterator<Item = Stay> + Clone) -> Result<Totals, Overflow> {
        let mut gpu = vec![0u64; moments + 1];
        let mut cpu = Vec::new(); // most ledgers have nothing there
        let mut all = Some(0u64);
        // (`for_each` and not `for`: a nested iterator then runs as two plain loops)
        stays.clone().for_each(|stay| {
            let change = match stay.device {
                Device::Gpu => &mut gpu,
                Device::Cpu => {
                    if cpu.is_empty() {
                        cpu.resize(moments + 1, 0u64);
                    }
                    &mut cpu
                }
            };
            let bytes = stay.bytes.get();
            all = all.and_then(|all| all.checked_add(bytes));
            if let Some(cell) = change.get_mut(stay.start.index()) {
                *cell = cell.wrapping_add(bytes);
            }
            if let Some(cell) = change.get_mut(stay.end.index() + 1) {
                *cell = cell.wrapping_sub(bytes);
            }
        });
        // no total passes 64 bits where all stays together do not; changes that wrap around come out right
        if all.is_none() {
            overflow(moments, stays)?;
        }
        for column in [&mut gpu, &mut cpu] {
            column.truncate(moments);
            let mut total = 0u64;
            for cell in column {
                total = total.wrapping_add(*cell);
                *cell = total;
            }
        }
        Ok(Totals { gpu, cpu })
    }

    /// These totals with the GPU column of `more` added, moment by moment; the cpu column is these totals' alone.
    ///
    /// # Errors
    /// The first moment at which the total does not fit into 64 bits.
    pub fn plus(&self, more: &Totals) -> Result<Totals, Overflow> {
        let mut sum = self.clone();
        for (moment, (total, more)) in (0u32..).zip(sum.gpu.iter_mut().zip(&more.gpu)) {
            *total = total.checked_add(*more).ok_or(Overflow(Moment(moment)))?;
        }
        Ok(sum)
    }

    /// These totals with both columns of `more` added, moment by moment.
    ///
    /// # Errors
    /// The first moment at which the GPU's total does not fit into 64 bits, or else the cpu's.
    pub fn joined(&self, more: &Totals) -> Result<Totals, Overflow> {
        let mut sum = self.plus(more)?;
        if sum.cpu.is_empty() {
            sum.cpu.resize(more.cpu.len(), 0);
        }
        for (moment, (total, more)) in (0u32..).zip(sum.cpu.iter_mut().zip(&more.cpu)) {
            *total = total.checked_add(*more).ok_or(Overflow(Moment(moment)))?;
        }
        Ok(sum)
    }

    /// These totals without some moments, which are in order.
    pub fn without(&self, gone: &[Range<u32>]) -> Totals {
        let left = |column: &Vec<u64>| {
            let mut left = Vec::with_capacity(column.len());
            let mut from = 0;
            for Range { start, end } in gone {
                left.extend_from_slice(column.get(from..*start as usize).unwrap_or_default());
                from = from.max(*end as usize);
            }
            left.extend_from_slice(column.get(from..).unwrap_or_default());
            left
        };
        Totals { gpu: left(&self.gpu), cpu: left(&self.cpu) }
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

    /// The whole cpu column; empty where nothing is ever there.
    pub fn cpu(&self) -> &[u64] {
        &self.cpu
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

/// The first moment at which a total does not fit into 64 bits, if there is one: the GPU is looked at first.
fn overflow(moments: usize, stays: impl Iterator<Item = Stay> + Clone) -> Result<(), Overflow> {
    for device in [Device::Gpu, Device::Cpu] {
        let mut changes = vec![0i128; moments + 1];
        stays.clone().filter(|stay| stay.device == device).for_each(|stay| {
            let bytes = i128::from(stay.bytes.get());
            for (moment, bytes) in [(stay.start.index(), bytes), (stay.end.index() + 1, -bytes)] {
                if let Some(cell) = changes.get_mut(moment) {
                    *cell += bytes;
                }
            }
        });
        let mut total = 0i128;
        for (moment, change) in (0u32..).zip(changes.iter().take(moments)) {
            total += change;
            u64::try_from(total).map_err(|_| Overflow(Moment(moment)))?;
        }
    }
    Ok(())
}

/// Bytes by category, in the order of [`Category::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByCategory([u64; Category::ALL.len()]);

impl ByCategory {
    /// The bytes of one category.
    pub fn get(&self, category: Category) -> Bytes {
        Bytes::new(self.0.get(category as usize).copied().unwrap_or(0))
    }

    /// These bytes and those, which are parts of a total that fits into 64 bits.
    pub fn plus(mut self, more: &ByCategory) -> ByCategory {
        for (sum, more) in self.0.iter_mut().zip(more.0) {
            *sum = sum.saturating_add(more);
        }
        self
    }

    /// Each category of these bytes and those together.
    pub fn zip(mut self, other: &ByCategory, with: impl Fn(u64, u64) -> u64) -> ByCategory {
        for (this, other) in self.0.iter_mut().zip(other.0) {
            *this = with(*this, other);
        }
        self
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
    /// The largest sum on the cpu over the phase's moments.
    pub cpu: Bytes,
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
    let mut phases = phase_peaks(timeline, totals);
    let peaks: Vec<Moment> = phases.iter().map(|phase| phase.moment).collect();
    for (phase, by_category) in phases.iter_mut().zip(by_category_at(totals.gpu.len(), &peaks, stays)) {
        phase.by_category = by_category;
    }
    phases
}

/// The same with no bytes by category, which alone need the stays.
pub fn phase_peaks(timeline: &Timeline, totals: &Totals) -> Vec<PhaseTotal> {
    let phase = |slot: &Slot| {
        let (moment, total) = totals.peak_between(slot.first, slot.last);
        let cpu = totals.cpu.get(slot.first.index()..=slot.last.index()).unwrap_or(&[]);
        PhaseTotal {
            total,
            moment,
            end: totals.at(Device::Gpu, slot.last),
            cpu: Bytes::new(cpu.iter().copied().max().unwrap_or(0)),
            by_category: ByCategory::default(),
        }
    };
    timeline.slots().iter().map(phase).collect()
}

/// What each category holds on the GPU at some moments, in order, of a timeline of that length. Of these a stay covers a
/// contiguous run, so it touches the two ends of that only.
pub fn by_category_at(
    length: usize,
    moments: &[Moment],
    stays: impl Iterator<Item = Stay>,
) -> Vec<ByCategory> {
    // sums of one category wrap around on the way but not in the end: they are parts of totals that fit
    let mut change = vec![ByCategory::default(); moments.len() + 1];
    // how many of them lie before each moment: most stays are short and cover none
    let mut before = vec![0_u32; length + 1];
    for moment in moments {
        if let Some(cell) = before.get_mut(moment.index() + 1) {
            *cell += 1;
        }
    }
    let mut so_far = 0;
    before.iter_mut().for_each(|cell| {
        so_far += *cell;
        *cell = so_far;
    });
    let count_before = |moment: usize| before.get(moment).map_or(moments.len(), |count| *count as usize);
    stays.filter(|stay| stay.device == Device::Gpu).for_each(|stay| {
        let (first, after) = (count_before(stay.start.index()), count_before(stay.end.index() + 1));
        if first >= after {
            return;
        }
        let bytes = stay.bytes.get();
        for (at, bytes) in [(first, bytes), (after, bytes.wrapping_neg())] {
            if let Some(cell) = change.get_mut(at).and_then(|c| c.0.get_mut(stay.category as usize)) {
                *cell = cell.wrapping_add(bytes);
            }
        }
    });
    let mut running = ByCategory::default();
    for at in &mut change {
        for (sum, more) in running.0.iter_mut().zip(at.0) {
            *sum = sum.wrapping_add(more);
        }
        *at = running;
    }
    change.truncate(moments.len());
    change
}

/// Both sums at once. Where every phase has one moment, as in the seed's form, one pass over the stays is enough.
///
/// # Errors
/// The first moment at which a device's total does not fit into 64 bits.
pub fn sums<S: Iterator<Item = Stay> + Clone>(
    timeline: &Timeline,
    stays: impl Fn() -> S,
) -> Result<(Totals, Vec<PhaseTotal>), Overflow> {
    if timeline.moments() == timeline.slots().len() {
        return one_moment_each(timeline.moments(), stays());
    }
    let totals = Totals::of(timeline.moments(), stays())?;
    let phases = phase_totals(timeline, &totals, stays());
    Ok((totals, phases))
}

/// A row for each moment: the GPU's categories, then the cpu's. Few rows and no branch, so a stay costs a few cycles.
fn one_moment_each(
    moments: usize,
    stays: impl Iterator<Item = Stay>,
) -> Result<(Totals, Vec<PhaseTotal>), Overflow> {
    const CPU: usize = 8;
    const _: () = assert!(Category::ALL.len() <= CPU);
    let mut change = vec![[0i128; 2 * CPU]; moments + 1];
    stays.for_each(|stay| {
        let column = stay.device as usize * CPU + stay.category as usize;
        let bytes = i128::from(stay.bytes.get());
        for (moment, bytes) in [(stay.start.index(), bytes), (stay.end.index() + 1, -bytes)] {
            if let Some(cell) = change.get_mut(moment).and_then(|row| row.get_mut(column)) {
                *cell += bytes;
            }
        }
    });
    let (mut gpu, mut cpu, mut phases) = (Vec::new(), Vec::new(), Vec::with_capacity(moments));
    let mut row = [0i128; 2 * CPU];
    for (moment, change) in (0u32..).map(Moment).zip(change.iter().take(moments)) {
        row.iter_mut().zip(change).for_each(|(sum, more)| *sum += more);
        let (on_gpu, on_cpu) = row.split_at(CPU);
        let fits = |part: &[i128]| u64::try_from(part.iter().sum::<i128>()).map_err(|_| Overflow(moment));
        let (total, total_on_cpu) = (fits(on_gpu)?, fits(on_cpu)?);
        let mut by_category = ByCategory::default();
        for (cell, sum) in by_category.0.iter_mut().zip(on_gpu) {
            *cell = u64::try_from(*sum).unwrap_or(u64::MAX); // part of a total that fits
        }
        let (gpu_bytes, cpu_bytes) = (Bytes::new(total), Bytes::new(total_on_cpu));
        phases.push(PhaseTotal { total: gpu_bytes, moment, end: gpu_bytes, cpu: cpu_bytes, by_category });
        gpu.push(total);
        cpu.push(total_on_cpu);
    }
    if cpu.iter().all(|total| *total == 0) {
        cpu.clear(); // as in a ledger with nothing on the cpu
    }
    Ok((Totals { gpu, cpu }, phases))
}

/// The phase that holds the peak: the largest total, ties to the earliest.
pub(crate) fn peak_phase(phases: &[PhaseTotal]) -> Option<usize> {
    let mut best: Option<(usize, Bytes)> = None;
    for (index, phase) in phases.iter().enumerate() {
        if best.is_none_or(|(_, total)| phase.total > total) {
            best = Some((index, phase.total));
        }
    }
    best.map(|(index, _)| index)
}
