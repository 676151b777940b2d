//! The rules one by one, worked out by hand from `CUDACachingAllocator.cpp`.

use crate::recorder::{Asked, Recorder};
use peakledger_allocator::{
    Allocation, Allocator, Card, Held, MempoolId, Piece, Placing, Request, Segment, Stream,
};
use peakledger_core::block::{MIB, Pool};

fn allocator(settings: &str, card_mib: u64) -> Allocator<Recorder> {
    Allocator::new(settings.parse().unwrap(), Recorder::new(card_mib * MIB, false))
}

fn alloc(allocator: &mut Allocator<Recorder>, bytes: u64) -> Allocation {
    allocator.alloc(Request::of(bytes)).unwrap()
}

/// The segments in MiB and what is live in them.
fn reserved(allocator: &Allocator<Recorder>) -> u64 {
    allocator.totals().reserved / MIB
}

#[test]
fn segments_are_2_20_or_as_many_mib_as_needed() {
    let mut allocator = allocator("", 1000);
    let mut reserved_by = |bytes| {
        alloc(&mut allocator, bytes);
        let Some(Asked::Malloc(_, bytes)) = allocator.device().asked.last().copied() else { panic!() };
        bytes / MIB
    };
    assert_eq!(reserved_by(1), 2);
    assert_eq!(reserved_by(9 * MIB), 20, "11 MiB of it are left over");
    assert_eq!(reserved_by(12 * MIB), 12);
    assert_eq!(reserved_by(12 * MIB + 1), 14);
}

#[test]
fn the_smallest_block_that_fits_is_taken_and_the_lowest_of_those() {
    let mut allocator = allocator("", 1000);
    let [a, b, c] = [30, 20, 20].map(|mib| alloc(&mut allocator, mib * MIB));
    let (high, low) = (allocator.placed(b).unwrap(), allocator.placed(c).unwrap());
    assert!(low.address < high.address, "the driver places the next segment below");
    [a, c, b].into_iter().for_each(|allocation| allocator.free(allocation));
    let again = alloc(&mut allocator, 20 * MIB);
    assert_eq!(allocator.placed(again), Some(low));
    assert_eq!(reserved(&allocator), 70);
}

#[test]
fn what_is_left_of_a_large_block_is_kept_from_one_mib_on() {
    let mut allocator = allocator("", 1000);
    let exact = alloc(&mut allocator, 20 * MIB);
    allocator.free(exact);
    let tailed = alloc(&mut allocator, 19 * MIB);
    assert_eq!(allocator.placed(tailed).unwrap().size, 20 * MIB, "1 MiB is no block of its own");
    assert_eq!(allocator.totals().tails, MIB);
    allocator.free(tailed);
    let cut = alloc(&mut allocator, 19 * MIB - 1);
    assert_eq!(allocator.placed(cut).unwrap().size, 20 * MIB, "rounded up to 512 bytes it is the same");
    assert_eq!((allocator.totals().tails, allocator.totals().rounding), (MIB, 1));
    allocator.free(cut);
    let cut = alloc(&mut allocator, 19 * MIB - 512);
    assert_eq!(allocator.placed(cut).unwrap().size, 19 * MIB - 512);
    assert_eq!((allocator.totals().stuck(), allocator.totals().returnable), (MIB + 512, 0));
}

#[test]
fn the_driver_may_place_segments_upwards() {
    let card = Card::unlimited().placing(Placing::Up);
    let mut allocator = Allocator::new("".parse().unwrap(), card);
    let [a, b] = [20, 30].map(|mib| allocator.alloc(Request::of(mib * MIB)).unwrap());
    let [a, b] = [a, b].map(|allocation| allocator.placed(allocation).unwrap());
    assert_eq!(a.address + a.size, b.address);
}

#[test]
fn neither_streams_nor_pools_share_blocks() {
    let mut allocator = allocator("", 1000);
    let first = alloc(&mut allocator, 20 * MIB);
    allocator.free(first);
    let request = Request::of(20 * MIB);
    allocator.alloc(Request { stream: Stream(7), ..request }).unwrap();
    allocator.alloc(Request { pool: MempoolId(3, 0), ..request }).unwrap();
    assert_eq!(reserved(&allocator), 60);
    alloc(&mut allocator, 20 * MIB);
    assert_eq!(reserved(&allocator), 60, "the first one is free for its own stream");
}

#[test]
fn a_block_that_other_streams_use_is_not_free_until_they_are_done() {
    let mut allocator = allocator("", 50);
    let used = alloc(&mut allocator, 20 * MIB);
    allocator.free_requested(used);
    assert_eq!((allocator.totals().allocated, allocator.totals().pending()), (0, 20 * MIB));
    let other = alloc(&mut allocator, 20 * MIB);
    assert_eq!(reserved(&allocator), 40, "it could not be reused");
    // there is no room for more, so the allocator waits for the other streams
    alloc(&mut allocator, 30 * MIB);
    assert_eq!((reserved(&allocator), allocator.retries()), (50, 1));
    allocator.free_completed(used);
    allocator.free(other);
    assert_eq!(allocator.totals().free(), 20 * MIB, "what was waited for is not freed a second time");
}

#[test]
fn oversize_blocks_are_given_back_from_the_largest_until_there_is_room() {
    let mut allocator = allocator("max_split_size_mb:20", 200);
    let sizes = [30, 40, 50, 60].map(|mib| alloc(&mut allocator, mib * MIB));
    sizes.into_iter().for_each(|allocation| allocator.free(allocation));
    let small = alloc(&mut allocator, 5 * MIB);
    assert_eq!(reserved(&allocator), 200, "a request below the limit takes no block above it");
    allocator.device_mut().asked.clear();
    alloc(&mut allocator, 100 * MIB);
    let freed = |asked: &Asked| if let Asked::Free(_, bytes) = asked { Some(bytes / MIB) } else { None };
    assert_eq!(allocator.device().asked.iter().filter_map(freed).collect::<Vec<_>>(), [60, 50]);
    assert_eq!(allocator.retries(), 0);
    allocator.free(small);
}

#[test]
fn an_oversize_block_serves_requests_that_are_less_than_20_mib_smaller() {
    for (mib, serves) in [(41, true), (40, false)] {
        let mut allocator = allocator("max_split_size_mb:30", 1000);
        let large = alloc(&mut allocator, 60 * MIB);
        allocator.free(large);
        let next = alloc(&mut allocator, mib * MIB);
        assert_eq!(allocator.placed(next).unwrap().size, if serves { 60 } else { 40 } * MIB, "never cut");
        assert_eq!(reserved(&allocator), if serves { 60 } else { 100 });
    }
}

#[test]
fn garbage_is_collected_only_under_a_limit() {
    for (fraction, left) in [("", 166), (",per_process_memory_fraction:0.9", 116)] {
        let settings = format!("garbage_collection_threshold:0.5{fraction}");
        let mut allocator = allocator(&settings, 200);
        let old = alloc(&mut allocator, 50 * MIB);
        allocator.free(old);
        let _kept = alloc(&mut allocator, 60 * MIB);
        alloc(&mut allocator, 55 * MIB);
        assert_eq!(reserved(&allocator), left, "{settings}");
    }
}

#[test]
fn expandable_segments_grow_by_pages_and_give_whole_pages_back() {
    let mut allocator = allocator("expandable_segments:True", 400);
    let [a, b, _c] = [30, 25, 1].map(|mib| alloc(&mut allocator, mib * MIB + 512));
    assert_eq!(allocator.totals().reserved, 60 * MIB, "three pages of 20 MiB, one after the other");
    allocator.free(a);
    assert_eq!(allocator.totals().returnable, 20 * MIB, "the second page is used by the next block too");
    allocator.empty_cache();
    assert_eq!((reserved(&allocator), allocator.totals().returnable), (40, 0));
    let segments = allocator.segments();
    let base = segments[0].address;
    let Some(Asked::Unmap(start, bytes)) = allocator.device().asked.last() else { panic!() };
    assert_eq!((start + bytes, bytes / MIB), (base, 20));
    // the hole is filled before the range grows at its end
    let again = alloc(&mut allocator, 30 * MIB);
    assert_eq!(allocator.placed(again).unwrap().address, base - 20 * MIB);
    assert_eq!(reserved(&allocator), 60);
    allocator.free(b);
}

#[test]
fn out_of_memory_says_what_there_was() {
    let mut allocator = Allocator::new("".parse().unwrap(), Card::of(64 * MIB, 4 * MIB));
    let request = |mib: u64| Request::of(mib * MIB);
    let first = allocator.alloc(request(15)).unwrap();
    let second = allocator.alloc(request(3)).unwrap();
    allocator.free(first);
    allocator.alloc(request(2)).unwrap();
    let oom = allocator.alloc(request(41)).unwrap_err();
    assert_eq!((oom.rounded, oom.segment, oom.pool), (41 * MIB, 42 * MIB, Pool::Large));
    // 60 MiB less a segment of 16 and one of 20, in which 14 and 17 MiB are left
    assert_eq!((oom.unused, oom.totals.reserved), (Some(24 * MIB), 36 * MIB));
    assert_eq!((oom.free_in_pool, oom.largest_free), (31 * MIB, 17 * MIB));
    assert!(oom.is_fragmentation());
    assert_eq!(allocator.retries(), 1);
    allocator.free(second);
    assert!(!allocator.alloc(request(61)).unwrap_err().is_fragmentation());
}

#[test]
fn requests_past_64_bits_are_out_of_memory() {
    let mut allocator = Allocator::new("".parse().unwrap(), Card::unlimited());
    assert_eq!(allocator.alloc(Request::of(u64::MAX)).unwrap_err().segment, u64::MAX);
    allocator.alloc(Request::of(1 << 61)).unwrap();
    assert!(allocator.alloc(Request::of(1 << 62)).is_err(), "no such address");
    assert_eq!(allocator.totals().reserved, 1 << 61);
}

#[test]
fn starts_from_the_runs_of_an_expandable_range() {
    let run = |address, pieces: &[(u64, Held)]| Segment {
        address: address * MIB,
        stream: Stream::DEFAULT,
        owner: MempoolId::DEFAULT,
        pool: Pool::Large,
        expandable: true,
        pieces: pieces.iter().map(|(mib, held)| Piece { size: mib * MIB, held: *held }).collect(),
    };
    let live = Held::Allocated(10 * MIB);
    let held = [run(1000, &[(10, live), (10, Held::Free)]), run(1060, &[(10, live), (10, Held::Pending(9))])];
    let device = Recorder::new(400 * MIB, false);
    let settings = "expandable_segments:True".parse().unwrap();
    let (mut allocator, live) = Allocator::with_segments(settings, device, &held).unwrap();
    assert_eq!(live.len(), 3);
    assert_eq!(allocator.totals().pending(), 10 * MIB);
    // 10 MiB free and 40 unmapped lie between the runs
    let between = alloc(&mut allocator, 50 * MIB);
    assert_eq!(allocator.placed(between).unwrap().address, 1010 * MIB);
    assert_eq!(allocator.device().asked, [Asked::Map(1020 * MIB, 40 * MIB)]);
    assert_eq!(allocator.segments().len(), 1);
    let behind = alloc(&mut allocator, 5 * MIB);
    assert_eq!(allocator.placed(behind).unwrap().address, 1080 * MIB);
}

#[test]
fn segments_past_64_bits_are_no_start() {
    let segment = Segment {
        address: u64::MAX - MIB,
        stream: Stream::DEFAULT,
        owner: MempoolId::DEFAULT,
        pool: Pool::Large,
        expandable: true,
        pieces: vec![Piece { size: u64::MAX / 2, held: Held::Free }; 3],
    };
    assert!(Allocator::with_segments("".parse().unwrap(), Card::unlimited(), &[segment]).is_none());
}
