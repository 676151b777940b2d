//! The fast sums against slow ones that anyone can check: every property of the ledger on random timelines.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // helpers of tests

use peakledger_core::document::{Document, LedgerFile};
use peakledger_core::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::num::NonZeroU32;

/// Phases of one to four moments each; some are micro-batches, some have names of their own.
fn timelines() -> impl Strategy<Value = Timeline> {
    let lengths = prop_oneof![vec(1u32..=4, 1..7), vec(Just(1u32), 1..7)]; // the second as in the seed's form
    lengths.prop_map(|lengths| {
        let mut timeline = Timeline::empty();
        for (index, moments) in (0u32..).zip(lengths) {
            let (phase, micro_batch) = match index % 3 {
                0 => (Phase::Forward, Some(index)),
                1 => (Phase::Backward, Some(index)),
                _ => (Phase::named(&format!("phase {index}")), None),
            };
            assert!(timeline.try_push(phase, micro_batch, NonZeroU32::new(moments).unwrap()));
        }
        timeline
    })
}

/// A state by its size, its category, and cuts of the timeline between which it is here, there or nowhere.
type Draft = (u64, usize, bool, Vec<(u32, u8)>);

fn drafts() -> impl Strategy<Value = Vec<Draft>> {
    vec((0u64..40, 0usize..7, any::<bool>(), vec((0u32..25, 0u8..3), 1..5)), 0..12)
}

fn state(timeline: &Timeline, index: usize, (bytes, category, persistent, cuts): &Draft) -> State {
    let moments = u32::try_from(timeline.moments()).unwrap();
    let mut cuts: Vec<(u32, u8)> = cuts.iter().map(|(at, place)| (at % moments, *place)).collect();
    cuts.sort_unstable();
    cuts.dedup_by_key(|(at, _)| *at);
    let ends = cuts.iter().skip(1).map(|(at, _)| at - 1).chain([moments - 1]);
    let stays = cuts.iter().zip(ends).filter_map(|((start, place), end)| {
        let device = [Some(Device::Gpu), Some(Device::Cpu), None][usize::from(*place)]?;
        Some(Residency { device, start: Moment(*start), end: Moment(end) })
    });
    let mut stays: Vec<Residency> = stays.collect();
    let residencies = match stays.len() {
        0 => Residencies::One(Residency { device: Device::Gpu, start: Moment(0), end: Moment(0) }),
        1 => Residencies::One(stays.remove(0)),
        _ => Residencies::Many(stays),
    };
    State {
        name: format!("state {index}").into(),
        category: Category::ALL[*category],
        detail: None,
        bytes: Bytes::new(*bytes),
        persistent: *persistent,
        residencies,
    }
}

fn states(timeline: &Timeline, drafts: &[Draft]) -> Vec<State> {
    drafts.iter().enumerate().map(|(index, draft)| state(timeline, index, draft)).collect()
}

fn ledgers() -> impl Strategy<Value = Ledger> {
    (timelines(), drafts()).prop_map(|(timeline, drafts)| {
        let states = states(&timeline, &drafts);
        Ledger::new(timeline, states).unwrap()
    })
}

/// States × moments, one after the other.
fn slow_total(ledger: &Ledger, device: Device, moment: Moment, of: Option<Category>) -> u64 {
    let mut total = 0;
    for state in ledger.states() {
        for stay in state.residencies.as_slice() {
            let counts = of.is_none_or(|category| category == state.category);
            if counts && stay.device == device && stay.start <= moment && moment <= stay.end {
                total += state.bytes.get();
            }
        }
    }
    total
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn phases_are_what_slow_sums_say(ledger in ledgers()) {
        let mut peak: Option<(usize, u64, Moment)> = None;
        for (index, (slot, phase)) in ledger.phases().enumerate() {
            let mut best: Option<(u64, Moment)> = None;
            let mut cpu = 0;
            for moment in (slot.first.0..=slot.last.0).map(Moment) {
                let total = slow_total(&ledger, Device::Gpu, moment, None);
                prop_assert_eq!(ledger.totals().at(Device::Gpu, moment).get(), total);
                if best.is_none_or(|(largest, _)| total > largest) {
                    best = Some((total, moment));
                }
                cpu = cpu.max(slow_total(&ledger, Device::Cpu, moment, None));
            }
            let (total, moment) = best.unwrap();
            prop_assert_eq!((phase.total.get(), phase.moment), (total, moment));
            prop_assert_eq!(phase.end.get(), slow_total(&ledger, Device::Gpu, slot.last, None));
            prop_assert_eq!(phase.cpu.get(), cpu);
            let mut sum = 0;
            for category in Category::ALL {
                let bytes = slow_total(&ledger, Device::Gpu, moment, Some(category));
                prop_assert_eq!(phase.by_category.get(category).get(), bytes);
                sum += bytes;
            }
            prop_assert_eq!(sum, total, "categories sum to the total");
            if peak.is_none_or(|(_, largest, _)| total > largest) {
                peak = Some((index, total, moment));
            }
        }
        let (index, total, moment) = peak.unwrap();
        let found = ledger.peak();
        prop_assert_eq!(found.slot, &ledger.timeline().slots()[index], "ties go to the earliest phase");
        prop_assert_eq!((found.bytes.get(), found.moment), (total, moment));
    }

    #[test]
    fn contributors_sum_to_the_peak_and_stand_in_order(ledger in ledgers()) {
        let peak = ledger.peak();
        let contributors = ledger.contributors(peak.moment);
        prop_assert_eq!(contributors.iter().map(|c| c.bytes.get()).sum::<u64>(), peak.bytes.get());
        for most in 0..=contributors.len() + 1 {
            let (largest, all) = ledger.largest_contributors(peak.moment, most);
            prop_assert_eq!(all, contributors.len());
            prop_assert_eq!(&largest[..], &contributors[..most.min(all)]);
        }
        for pair in contributors.windows(2) {
            let (a, b) = (&pair[0], &pair[1]);
            prop_assert!(a.bytes > b.bytes || (a.bytes == b.bytes && a.state.name < b.state.name));
        }
    }

    #[test]
    fn active_states_are_those_of_the_phase_total(ledger in ledgers()) {
        let mut active = ledger.active_by_phase();
        for (_, phase) in ledger.phases() {
            let active: Vec<StateId> = active.next_phase().unwrap().map(|(id, _)| id).collect();
            let resident: Vec<StateId> = ledger.resident(Device::Gpu, phase.moment).map(|(id, _)| id).collect();
            prop_assert_eq!(active, resident);
        }
        prop_assert!(active.next_phase().is_none());
    }

    #[test]
    fn sums_that_were_let_go_are_added_up_again(ledger in ledgers(), other in ledgers()) {
        let mut light = other.clone();
        light.let_go_of_sums();
        for slot in other.timeline().slots() {
            prop_assert_eq!(light.largest_moment(slot), other.largest_moment(slot));
        }
        let told = |candidate: &Ledger| format!("{:?}", compare(&ledger, candidate));
        prop_assert_eq!(told(&light), told(&other));
        prop_assert_eq!(light.peak(), other.peak());
        prop_assert_eq!(light.totals(), other.totals());
    }

    #[test]
    fn the_order_of_states_changes_nothing(timeline in timelines(), drafts in drafts(), turn in 0usize..12) {
        let states = states(&timeline, &drafts);
        let mut turned = states.clone();
        turned.rotate_left(turn.min(states.len()));
        let (a, b) = (Ledger::new(timeline.clone(), states).unwrap(), Ledger::new(timeline, turned).unwrap());
        prop_assert_eq!(a.totals(), b.totals());
        prop_assert!(a.phases().eq(b.phases()));
        let names = |ledger: &Ledger| -> Vec<Box<str>> {
            ledger.contributors(ledger.peak().moment).iter().map(|c| c.state.name.clone()).collect()
        };
        prop_assert_eq!(names(&a), names(&b));
        prop_assert_eq!(compare(&a, &b).saving, 0);
        prop_assert!(compare(&a, &b).moved.is_empty());
    }

    #[test]
    fn one_more_state_never_lowers_a_total(timeline in timelines(), drafts in drafts()) {
        prop_assume!(!drafts.is_empty());
        let states = states(&timeline, &drafts);
        let fewer = Ledger::new(timeline.clone(), states[1..].to_vec()).unwrap();
        let more = Ledger::new(timeline, states).unwrap();
        for ((_, fewer), (_, more)) in fewer.phases().zip(more.phases()) {
            prop_assert!(more.total >= fewer.total && more.cpu >= fewer.cpu);
        }
        let comparison = compare(&more, &fewer);
        prop_assert!(comparison.saving >= 0);
        prop_assert_eq!(comparison.saving, more.peak().bytes.minus(fewer.peak().bytes));
    }

    #[test]
    fn what_is_written_is_read_back_the_same(ledger in ledgers(), note in "[a-z \"\\\\\n]{0,8}") {
        let ops: Vec<Option<String>> = ledger.timeline().slots().iter().map(|slot| slot.micro_batch.map(|i| format!("op {i}"))).collect();
        let document = Document::from_ledger(&ledger)
            .with_note(note.as_str())
            .with_peak_ops(ops.iter().map(Option::as_deref))
            .with_candidate("the same", &ledger);
        let text = serde_json::to_string(&document).unwrap();
        let file = LedgerFile::from_document(&serde_json::from_str(&text).unwrap()).unwrap();
        prop_assert_eq!(file.note.as_deref(), Some(note.as_str()));
        prop_assert_eq!(file.ledger.timeline(), ledger.timeline());
        prop_assert_eq!(file.ledger.states(), ledger.states());
        prop_assert_eq!(file.ledger.totals(), ledger.totals());
        prop_assert_eq!(file.peak_ops.iter().map(Option::as_deref).collect::<Vec<_>>(), ops.iter().map(Option::as_deref).collect::<Vec<_>>());
        let (name, candidate) = &file.candidates[0];
        prop_assert_eq!(&**name, "the same");
        prop_assert_eq!(candidate.states(), ledger.states());
    }
}
