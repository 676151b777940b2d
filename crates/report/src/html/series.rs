//! A ledger as a series of a page.

use super::document::{Contributor, Exact, Peak, Phase, Role, Series, States};
use super::picture::Picture;
use super::pyramid::levels;
use super::states::{short, states};
use crate::figures::unnumbered;
use crate::json::length_in_html;
use peakledger_core::{ByCategory, Category, Detail, Device, Ledger, PhaseTotal, Slot};
use std::collections::BTreeMap;

/// How much of a ledger a page takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Buckets of the picture, and bytes for them.
    pub(super) buckets: u32,
    pub(super) picture: usize,
    /// Whether there are finer windows around the peak.
    pub(super) windows: bool,
    /// States that can be told apart.
    pub(super) states: usize,
    /// Bytes for the states, and a part of that for phases and contributors.
    pub(super) bytes: usize,
}

impl Room {
    /// For what the page is about.
    pub(super) const SUBJECT: Room =
        Room { buckets: 1 << 14, picture: 1_500_000, windows: true, states: 8192, bytes: 1_200_000 };

    /// For a picture that the next one follows at once, while a knob moves: as fine as a screen shows it.
    pub(super) const IN_MOTION: Room =
        Room { buckets: 1024, picture: 80_000, windows: false, states: 512, bytes: 60_000 };

    /// For a small picture beside that.
    pub(super) const BESIDE_IN_MOTION: Room = Room { buckets: 256, picture: 20_000, ..Room::IN_MOTION };

    /// For each of so many others.
    pub(super) fn shared(others: usize) -> Room {
        let others = others.max(1);
        let share = |whole: usize, least: usize, most: usize| (whole / others).clamp(least, most);
        Room {
            buckets: u32::try_from(share(1 << 14, 128, 2048)).unwrap_or(128),
            picture: share(1_500_000, 20_000, 400_000),
            windows: true,
            states: share(16_384, 64, 4096),
            bytes: share(900_000, 14_000, 450_000),
        }
    }
}

/// What a list of phases, or of contributors, may take of a room.
fn part(room: Room) -> usize {
    room.bytes / 5
}

/// The series of a ledger; the op of each of its phases where it is known.
pub(super) fn series<'a>(
    name: &str,
    role: Role,
    ledger: &Ledger,
    ops: impl Iterator<Item = Option<&'a str>>,
    room: Room,
) -> Series {
    let contributors = contributors(ledger);
    let all = contributors.len();
    let contributors = that_fit(contributors.into_iter().take(room.states / 8), part(room));
    let shown: u64 = contributors.iter().map(|c| c.bytes.0).sum(); // part of a total that fits
    let peak = ledger.peak().bytes.get();
    Series {
        states: states(ledger, room.states, room.bytes),
        contributors_left_out: (all - contributors.len(), Exact(peak - shown)),
        contributors,
        ..drawn(name, role, &Picture::of(ledger), ops, room)
    }
}

/// The picture of a series and its phases, without those who form it.
pub(super) fn drawn<'a>(
    name: &str,
    role: Role,
    picture: &Picture<'_>,
    ops: impl Iterator<Item = Option<&'a str>>,
    room: Room,
) -> Series {
    let ops = ops.chain(std::iter::repeat(None));
    let all: Vec<Phase> = picture.phases().zip(ops).map(|((slot, sums), op)| phase(slot, sums, op)).collect();
    let moment = picture.peak_moment();
    let (bytes, op, by_category) = all
        .iter()
        .find(|phase| phase.moment == moment.0)
        .map(|phase| (phase.total, phase.op.clone(), phase.by_category.clone()))
        .unwrap_or_default();
    let count = all.len();
    let phases = largest_phases(all, part(room));
    Series {
        name: short(name).into_owned(),
        role,
        moments: u32::try_from(picture.timeline.moments()).unwrap_or(u32::MAX),
        phases_left_out: count - phases.len(),
        phases,
        peak: Peak {
            phase: picture.peak().map(|(slot, _)| short(&slot.id()).into_owned()).unwrap_or_default(),
            moment: moment.0,
            bytes,
            by_category,
            op,
        },
        reserved: Vec::new(),
        levels: levels(picture, room),
        states: States::default(),
        contributors_left_out: (0, Exact(0)),
        contributors: Vec::new(),
        saving: None,
        verdict: None,
        moved: Vec::new(),
    }
}

/// Who is there at the peak. States that only a number at the end of their names tells apart (`mlp: mul #2`) are one.
fn contributors(ledger: &Ledger) -> Vec<Contributor> {
    let mut groups: BTreeMap<(&str, Category, Option<Detail>), (u64, u32)> = BTreeMap::new();
    for (_, state) in ledger.resident(Device::Gpu, ledger.peak().moment) {
        let (bytes, count) =
            groups.entry((unnumbered(&state.name), state.category, state.detail)).or_default();
        *bytes += state.bytes.get(); // part of a total that fits
        *count += 1;
    }
    let group =
        |((name, category, detail), (bytes, count)): ((&str, Category, Option<Detail>), _)| Contributor {
            name: short(name).into_owned(),
            category: category.as_str(),
            detail: detail.map(Detail::as_str),
            bytes: Exact(bytes),
            count,
        };
    let mut list: Vec<Contributor> = groups.into_iter().map(group).collect();
    list.sort_by_key(|contributor| std::cmp::Reverse(contributor.bytes.0)); // stable: then by name
    list
}

fn phase(slot: &Slot, sums: &PhaseTotal, op: Option<&str>) -> Phase {
    Phase {
        id: short(&slot.id()).into_owned(),
        phase: short(slot.phase.as_str()).into_owned(),
        micro_batch: slot.micro_batch,
        first: slot.first.0,
        last: slot.last.0,
        moment: sums.moment.0,
        total: Exact(sums.total.get()),
        end: Exact(sums.end.get()),
        cpu: Exact(sums.cpu.get()),
        device: None,
        by_category: columns(&sums.by_category),
        op: op.map(|op| short(op).into_owned()),
    }
}

fn columns(sums: &ByCategory) -> Vec<Exact> {
    Category::ALL.into_iter().map(|category| Exact(sums.get(category).get())).collect()
}

/// All of them where there is room, else the largest, in order; the peak's is one of those.
fn largest_phases(phases: Vec<Phase>, mut room: usize) -> Vec<Phase> {
    const FIGURES: usize = 440;
    let mut order: Vec<usize> = (0..phases.len()).collect();
    order.sort_by_key(|at| (phases.get(*at).map(|phase| std::cmp::Reverse(phase.total.0)), *at));
    let mut kept = vec![false; phases.len()];
    for at in order {
        let Some(phase) = phases.get(at) else { continue };
        let words = [phase.id.as_str(), &phase.phase, phase.op.as_deref().unwrap_or_default()];
        let takes = FIGURES + words.into_iter().map(length_in_html).sum::<usize>();
        let (Some(left), Some(kept)) = (room.checked_sub(takes), kept.get_mut(at)) else { break };
        room = left;
        *kept = true;
    }
    phases.into_iter().zip(kept).filter_map(|(phase, kept)| kept.then_some(phase)).collect()
}

/// The first of them that there is room for.
pub(super) fn that_fit(list: impl Iterator<Item = Contributor>, mut room: usize) -> Vec<Contributor> {
    const FIGURES: usize = 140;
    list.take_while(|contributor| {
        let takes = FIGURES + length_in_html(&contributor.name);
        let left = room.checked_sub(takes);
        room = left.unwrap_or(0);
        left.is_some()
    })
    .collect()
}
