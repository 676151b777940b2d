//! Random requests under random settings: the fast allocator is the naive one, block by block and event by event.

use crate::naive::Naive;
use crate::recorder::Recorder;
use peakledger_allocator::{Allocation, Allocator, Held, MempoolId, Request, Settings, Stream};
use peakledger_core::block::MIB;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Act {
    Alloc(Request),
    /// Both halves of a free, of the live allocation at this place.
    Free(usize),
    FreeRequested(usize),
    FreeCompleted(usize),
    EmptyCache,
    Retire,
}

const PRIVATE: MempoolId = MempoolId(0, 7);

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let bytes = prop_oneof![
        4 => 1..=MIB,
        4 => MIB + 1..10 * MIB,
        3 => 10 * MIB..90 * MIB,
        2 => (1u64..40).prop_map(|count| count * MIB),
    ];
    let stream = prop_oneof![4 => Just(Stream(0)), 1 => Just(Stream(9))];
    let pool = prop_oneof![8 => Just(MempoolId::DEFAULT), 1 => Just(PRIVATE)];
    let request = (bytes, stream, pool).prop_map(|(bytes, stream, pool)| Request { bytes, stream, pool });
    let act = prop_oneof![
        10 => request.prop_map(Act::Alloc),
        8 => any::<usize>().prop_map(Act::Free),
        2 => any::<usize>().prop_map(Act::FreeRequested),
        2 => any::<usize>().prop_map(Act::FreeCompleted),
        1 => Just(Act::EmptyCache),
        1 => Just(Act::Retire),
    ];
    prop::collection::vec(act, 1..120)
}

fn settings() -> impl Strategy<Value = Settings> {
    let part = |text: &'static str| prop_oneof![Just(""), Just(text)];
    let parts = (
        part("expandable_segments:True,"),
        prop_oneof![2 => Just(""), 1 => Just("max_split_size_mb:24,"), 1 => Just("max_split_size_mb:48,")],
        part("roundup_power2_divisions:[1:8,4:0,16:4,>:2],"),
        part("garbage_collection_threshold:0.4,"),
        prop_oneof![Just(""), Just("per_process_memory_fraction:0.7,")],
        prop_oneof![3 => Just(""), 1 => Just("large_segment_size_mb:12,")],
        prop_oneof![3 => Just(""), 1 => Just("max_non_split_rounding_mb:21,")],
    );
    parts.prop_map(|(a, b, c, d, e, f, g)| format!("{a}{b}{c}{d}{e}{f}{g}").parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_fast_one_is_the_naive_one(acts in acts(), settings in settings(), scattered: bool) {
        let device = Recorder::new(300 * MIB, scattered);
        let mut fast = Allocator::new(settings, device.clone());
        let mut naive = Naive::new(settings, device);
        let mut served: Vec<Allocation> = Vec::new();
        for act in acts {
            match act {
                Act::Alloc(request) => {
                    let found = fast.alloc(request);
                    let expected = naive.alloc(request);
                    match (found, expected) {
                        (Ok(allocation), Ok((address, size))) => {
                            let placed = fast.placed(allocation).unwrap();
                            prop_assert_eq!((placed.address, placed.size), (address, size));
                            served.push(allocation);
                        }
                        (Err(oom), Err(rounded)) => prop_assert_eq!(oom.rounded, rounded),
                        (found, expected) => prop_assert!(false, "{:?} and {:?}", found, expected),
                    }
                }
                Act::Free(at) | Act::FreeRequested(at) | Act::FreeCompleted(at) => {
                    let Some(number) = at.checked_rem(served.len()) else { continue };
                    match act {
                        Act::Free(_) => fast.free(served[number]),
                        Act::FreeRequested(_) => fast.free_requested(served[number]),
                        _ => fast.free_completed(served[number]),
                    }
                    if !matches!(act, Act::FreeCompleted(_)) {
                        naive.free_requested(number);
                    }
                    if !matches!(act, Act::FreeRequested(_)) {
                        naive.free_completed(number);
                    }
                }
                Act::EmptyCache => {
                    fast.empty_cache();
                    naive.empty_cache();
                }
                Act::Retire => {
                    fast.retire(PRIVATE);
                    naive.retire(PRIVATE);
                }
            }
            prop_assert_eq!(&fast.device().asked, &naive.device.asked, "{:?}", act);
            prop_assert_eq!(fast.segments(), naive.segments(), "{:?}", act);
            prop_assert_eq!(fast.totals(), naive.totals(), "{:?}", act);
            prop_assert_eq!(fast.retries(), naive.retries);
            let totals = fast.totals();
            prop_assert_eq!(totals.allocated, totals.requested + totals.rounding + totals.tails);
            prop_assert_eq!(
                totals.reserved,
                totals.allocated + totals.pending() + totals.returnable + totals.stuck()
            );
        }
    }

    /// An allocator that starts from what another one holds goes on as that one does.
    #[test]
    fn goes_on_from_segments(before in acts(), after in acts(), settings in settings()) {
        // a snapshot does not say how long blocks have been free, nor which ranges have nothing mapped
        let settings = Settings { garbage_collection_threshold: 0.0, expandable_segments: false, ..settings };
        let mut first = Allocator::new(settings, Recorder::new(300 * MIB, false));
        let mut served: Vec<Allocation> = Vec::new();
        for act in &before {
            match act {
                Act::Alloc(request) => served.extend(first.alloc(*request)),
                Act::Free(at) => {
                    at.checked_rem(served.len()).into_iter().for_each(|at| first.free(served[at]));
                }
                _ => {}
            }
        }
        let held = first.segments();
        let (mut second, mut live) =
            Allocator::with_segments(settings, first.device().clone(), &held).unwrap();
        prop_assert_eq!(&second.segments(), &held);
        prop_assert_eq!(second.totals(), first.totals());
        let pieces = held.iter().flat_map(|segment| &segment.pieces);
        prop_assert_eq!(live.len(), pieces.filter(|piece| piece.held != Held::Free).count());
        // the first one's numbers, in the order of the second one's
        let address = |allocation: &Allocation| first.placed(*allocation).map(|placed| placed.address);
        served.retain(|allocation| address(allocation).is_some());
        served.sort_by_key(|allocation| address(allocation));
        for act in after {
            match act {
                Act::Alloc(request) => match (first.alloc(request), second.alloc(request)) {
                    (Ok(a), Ok(b)) => {
                        prop_assert_eq!(first.placed(a), second.placed(b));
                        served.push(a);
                        live.push(b);
                    }
                    (a, b) => prop_assert_eq!(a.err(), b.err()),
                },
                Act::Free(at) => {
                    let Some(at) = at.checked_rem(live.len()) else { continue };
                    first.free(served[at]);
                    second.free(live[at]);
                }
                Act::EmptyCache => {
                    first.empty_cache();
                    second.empty_cache();
                }
                _ => {}
            }
            prop_assert_eq!(second.segments(), first.segments());
        }
    }
}
