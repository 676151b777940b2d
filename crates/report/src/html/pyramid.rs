//! A long timeline in few figures: buckets of moments over the whole of it, and finer and finer windows around the peak. Each
//! bucket is shown at its largest moment, so the picture's parts are those of a real moment and no peak is lost.

use super::document::Level;
use super::picture::Picture;
use super::series::Room;
use peakledger_core::sweep::by_category_at;
use peakledger_core::{Bytes, Category, Device, Moment};

/// How much finer each window is than the one around it.
const STEP: u32 = 4;

/// The fewest buckets of a picture.
const FEWEST: u32 = 64;

/// The levels of a picture in the bytes of JSON that there are for it: as many buckets as these allow.
pub(super) fn levels(picture: &Picture<'_>, room: Room) -> Vec<Level> {
    let mut levels = in_buckets(picture, room.buckets, room.windows);
    let mut buckets = room.buckets;
    while buckets > FEWEST && levels.iter().map(length).sum::<usize>() > room.picture {
        buckets /= 2;
        levels = in_buckets(picture, buckets, room.windows);
    }
    levels
}

/// The bytes that a level's columns take in JSON.
fn length(level: &Level) -> usize {
    let digits = |number: u64| number.checked_ilog10().map_or(1, |log| log as usize + 1);
    let columns = level.by_category.iter().chain([&level.min, &level.cpu]).flatten();
    let magnitude = |n: &i128| u64::try_from(n.unsigned_abs()).unwrap_or(u64::MAX); // a difference of such
    let columns = columns.map(|n| digits(magnitude(n)) + usize::from(*n < 0) + 1);
    columns.chain(level.at.iter().map(|n| digits(u64::from(*n)) + 1)).sum()
}

/// At most so many buckets for the whole, and a quarter of that for each window, where those are asked for.
fn in_buckets(picture: &Picture<'_>, buckets: u32, windows: bool) -> Vec<Level> {
    let moments = u32::try_from(picture.timeline.moments()).unwrap_or(u32::MAX);
    let mut per = moments.div_ceil(buckets.max(1)).max(1);
    let mut cuts = vec![Cut { first: 0, per, end: moments }];
    while windows && per > 1 {
        per = per.div_ceil(STEP);
        let half = (buckets / 8).max(1).saturating_mul(per);
        let first = picture.peak_moment().0.saturating_sub(half) / per * per;
        cuts.push(Cut { first, per, end: moments.min(first.saturating_add(2 * half)) });
    }
    cuts.into_iter().map(|cut| cut.level(picture)).collect()
}

/// Moments from `first` to before `end`, in buckets of `per`.
struct Cut {
    first: u32,
    per: u32,
    end: u32,
}

impl Cut {
    fn level(&self, picture: &Picture<'_>) -> Level {
        let totals = &picture.totals;
        let per = self.per as usize;
        let column = totals.gpu().get(self.first as usize..self.end as usize).unwrap_or(&[]);
        let starts = (self.first..self.end).step_by(per);
        let largest: Vec<(u32, u32)> =
            starts.clone().zip(column.chunks(per)).map(|(start, bucket)| (start, largest(bucket))).collect();
        let moments: Vec<Moment> = largest.iter().map(|(start, at)| Moment(start + at)).collect();
        let by_category = by_category_at(totals.gpu().len(), &moments, picture.stays.iter().copied());
        let on_cpu = |start: u32| {
            let bucket = start..self.end.min(start.saturating_add(self.per));
            bucket.map(|moment| totals.at(Device::Cpu, Moment(moment))).max().unwrap_or(Bytes::ZERO).get()
        };
        let finest = self.per == 1;
        let shown = |column: Vec<u64>| if finest { Vec::new() } else { differences(column) };
        Level {
            first: self.first,
            per: self.per,
            count: moments.len(),
            at: if finest { Vec::new() } else { largest.iter().map(|(_, at)| *at).collect() },
            min: shown(column.chunks(per).map(|bucket| bucket.iter().copied().min().unwrap_or(0)).collect()),
            cpu: match picture.cpu_peak() {
                Bytes::ZERO => Vec::new(),
                _ => differences(starts.map(on_cpu).collect()),
            },
            by_category: Category::ALL
                .into_iter()
                .map(|category| {
                    differences(by_category.iter().map(|sums| sums.get(category).get()).collect())
                })
                .collect(),
        }
    }
}

/// The earliest of the largest, counted from the first.
fn largest(bucket: &[u64]) -> u32 {
    let mut best = (0, None);
    for (at, total) in (0u32..).zip(bucket) {
        if best.1.is_none_or(|most| *total > most) {
            best = (at, Some(*total));
        }
    }
    best.0
}

/// Each less the one before it; nothing where all are zero.
fn differences(column: Vec<u64>) -> Vec<i128> {
    if column.iter().all(|value| *value == 0) {
        return Vec::new();
    }
    let mut before = 0;
    let difference = |value: u64| i128::from(value) - i128::from(std::mem::replace(&mut before, value));
    column.into_iter().map(difference).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use peakledger_core::{Ledger, Phase, Residencies, Residency, State, Timeline};
    use std::num::NonZeroU32;

    fn ledger(moments: u32, states: impl Iterator<Item = (u64, u32, u32)>) -> Ledger {
        let mut timeline = Timeline::empty();
        assert!(timeline.try_push(Phase::Forward, None, NonZeroU32::new(moments).unwrap()));
        let state = |(index, (bytes, start, end)): (usize, _)| State {
            name: index.to_string().into(),
            category: Category::ALL[index % 7],
            detail: None,
            bytes: Bytes::new(bytes),
            persistent: false,
            residencies: Residencies::One(Residency {
                device: if index % 5 == 4 { Device::Cpu } else { Device::Gpu },
                start: Moment(start),
                end: Moment(end),
            }),
        };
        Ledger::new(timeline, states.enumerate().map(state).collect()).unwrap()
    }

    fn sums(differences: &[i128], count: usize) -> Vec<i128> {
        let mut sum = 0;
        let running = differences.iter().map(|d| {
            sum += d;
            sum
        });
        let column: Vec<i128> = running.collect();
        if column.is_empty() { vec![0; count] } else { column }
    }

    /// Every bucket of every level against a walk over its moments.
    #[test]
    fn buckets_are_what_a_walk_over_their_moments_finds() {
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for moments in [1, 2, 15, 16, 17, 100, 1000] {
            let states: Vec<(u64, u32, u32)> = (0..60)
                .map(|_| {
                    let ends = [random(u64::from(moments)), random(u64::from(moments))];
                    let [a, b] = ends.map(|end| u32::try_from(end).unwrap());
                    (random(1 << 40), a.min(b), a.max(b))
                })
                .collect();
            let ledger = ledger(moments, states.into_iter());
            let levels = in_buckets(&Picture::of(&ledger), 16, true);
            assert_eq!((levels[0].first, levels.last().unwrap().per), (0, 1), "all of it, down to moments");
            for level in &levels {
                assert!(level.count <= 16, "{} buckets", level.count);
                let by_category: Vec<_> =
                    level.by_category.iter().map(|column| sums(column, level.count)).collect();
                let (min, cpu) = (sums(&level.min, level.count), sums(&level.cpu, level.count));
                for bucket in 0..level.count {
                    let first = level.first + u32::try_from(bucket).unwrap() * level.per;
                    let walk: Vec<Moment> = (first..moments.min(first + level.per)).map(Moment).collect();
                    let at = |moment: &Moment| i128::from(ledger.totals().gpu()[moment.index()]);
                    let top = walk.iter().map(at).max().unwrap();
                    let shown: i128 = by_category.iter().map(|column| column[bucket]).sum();
                    assert_eq!(shown, top);
                    let moment = Moment(first + level.at.get(bucket).copied().unwrap_or(0));
                    assert_eq!(at(&moment), top);
                    for (category, column) in Category::ALL.into_iter().zip(&by_category) {
                        let there = ledger.resident(Device::Gpu, moment).map(|(_, state)| state);
                        let there = there.filter(|state| state.category == category);
                        let sum: u64 = there.map(|state| state.bytes.get()).sum();
                        assert_eq!(column[bucket], i128::from(sum));
                    }
                    if level.per > 1 {
                        assert_eq!(min[bucket], walk.iter().map(at).min().unwrap());
                    }
                    let on_cpu = walk.iter().map(|m| ledger.totals().at(Device::Cpu, *m).get()).max();
                    assert_eq!(cpu[bucket], i128::from(on_cpu.unwrap()));
                }
                let peak = ledger.peak();
                let end = level.first + u32::try_from(level.count).unwrap() * level.per;
                assert!((level.first..end).contains(&peak.moment.0), "the peak is in every window");
            }
        }
    }
}
