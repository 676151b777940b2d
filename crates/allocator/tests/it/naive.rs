//! The same rules with nothing clever: segments are lists of blocks, and every question is a look at all of them.

use crate::recorder::Recorder;
use peakledger_allocator::{Device, Held, MempoolId, Piece, Request, Segment, Settings, Stream, Totals};
use peakledger_core::block::{MIB, Pool};

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Free,
    Live,
    Pending,
    Unmapped,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    address: u64,
    size: u64,
    requested: u64,
    state: State,
    /// The request that it serves or last served.
    number: usize,
    since: u64,
}

/// A `cudaMalloc` segment or an expandable range: its blocks side by side.
#[derive(Clone, Debug)]
struct Run {
    stream: Stream,
    owner: MempoolId,
    pool: Pool,
    /// Nothing for a segment.
    page: Option<u64>,
    blocks: Vec<Block>,
}

impl Run {
    fn base(&self) -> u64 {
        self.blocks[0].address
    }

    fn is(&self, request: &Request, pool: Pool) -> bool {
        (self.stream, self.owner, self.pool) == (request.stream, request.pool, pool)
    }
}

pub(crate) struct Naive {
    settings: Settings,
    pub(crate) device: Recorder,
    runs: Vec<Run>,
    /// How often each list was searched.
    searches: Vec<((MempoolId, Pool), u64)>,
    retired: Vec<MempoolId>,
    deferred: Vec<usize>,
    served: usize,
    pub(crate) retries: u64,
}

/// A block, by its run and its place there.
type At = (usize, usize);

impl Naive {
    pub(crate) fn new(settings: Settings, device: Recorder) -> Naive {
        let (runs, searches, retired, deferred) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Naive { settings, device, runs, searches, retired, deferred, served: 0, retries: 0 }
    }

    fn block(&self, (run, at): At) -> Block {
        self.runs[run].blocks[at]
    }

    fn free_blocks(&self, wanted: impl Fn(&Run) -> bool) -> Vec<At> {
        let mut found = Vec::new();
        for (i, run) in self.runs.iter().enumerate().filter(|(_, run)| wanted(run)) {
            found.extend(
                (0..run.blocks.len()).filter(|at| run.blocks[*at].state == State::Free).map(|at| (i, at)),
            );
        }
        found.sort_by_key(|at| (self.runs[at.0].stream, self.block(*at).size, self.block(*at).address));
        found
    }

    fn limit(&self) -> Option<u64> {
        (self.settings.memory_fraction < 1.0)
            .then(|| (self.settings.memory_fraction * self.device.total().unwrap() as f64) as u64)
    }

    fn reserved(&self) -> u64 {
        let blocks = self.runs.iter().flat_map(|run| &run.blocks);
        blocks.filter(|block| block.state != State::Unmapped).map(|block| block.size).sum()
    }

    /// The number of the request, or the rounded size where there is no room.
    pub(crate) fn alloc(&mut self, request: Request) -> Result<(u64, u64), u64> {
        let rounded = self.settings.rounding.round(request.bytes).unwrap();
        let pool = if rounded <= MIB { Pool::Small } else { Pool::Large };
        let (run, mut at) = self.find(&request, pool, rounded).ok_or(rounded)?;
        let rest = self.runs[run].blocks[at].size - rounded;
        let keep = if pool == Pool::Small || self.settings.expandable_segments {
            rest >= 512
        } else {
            rounded < self.settings.cut.max_split_size && rest > MIB
        };
        if keep {
            let since = self.searches_of(request.pool, pool);
            let whole = self.runs[run].blocks[at];
            self.runs[run].blocks.insert(at, Block { size: rounded, ..whole });
            at += 1;
            let behind = &mut self.runs[run].blocks[at];
            *behind =
                Block { address: whole.address + rounded, size: rest, state: State::Free, since, ..whole };
            at -= 1;
        }
        let block = &mut self.runs[run].blocks[at];
        (block.state, block.requested, block.number) = (State::Live, request.bytes, self.served);
        self.served += 1;
        Ok((block.address, block.size))
    }

    fn find(&mut self, request: &Request, pool: Pool, rounded: u64) -> Option<At> {
        if let Some(at) = self.cached(request, pool, rounded) {
            return Some(at);
        }
        self.collect_garbage();
        if let Some(at) = self.grow(request, pool, rounded) {
            return Some(at);
        }
        if self.release_oversize(request, pool, rounded)
            && let Some(at) = self.grow(request, pool, rounded)
        {
            return Some(at);
        }
        if request.pool != MempoolId::DEFAULT {
            return None;
        }
        self.empty_cache();
        self.retries += 1;
        self.grow(request, pool, rounded)
    }

    fn searches_of(&self, owner: MempoolId, pool: Pool) -> u64 {
        self.searches.iter().find(|(list, _)| *list == (owner, pool)).map_or(0, |(_, searches)| *searches)
    }

    fn collects(&self) -> bool {
        self.limit().is_some() && self.settings.garbage_collection_threshold > 0.0
    }

    fn cached(&mut self, request: &Request, pool: Pool, rounded: u64) -> Option<At> {
        if self.collects() {
            let list = (request.pool, pool);
            match self.searches.iter_mut().find(|(of, _)| *of == list) {
                Some((_, searches)) => *searches += 1,
                None => self.searches.push((list, 1)),
            }
        }
        let fitting: Vec<At> = self
            .free_blocks(|run| run.is(request, pool))
            .into_iter()
            .filter(|at| self.block(*at).size >= rounded)
            .collect();
        let expandable = |at: &At| self.runs[at.0].page.is_some();
        let mut chosen = *fitting.first()?;
        if expandable(&chosen) && !self.settings.expandable_segments {
            chosen = *fitting.iter().find(|at| !expandable(at))?;
        } else if expandable(&chosen) {
            for next in &fitting[1..] {
                if !expandable(&chosen) || self.size_to_grow(*next) >= self.size_to_grow(chosen) {
                    break;
                }
                chosen = *next;
            }
        }
        let size = self.block(chosen).size;
        let most = self.settings.cut.max_split_size;
        let refused = if rounded < most {
            size >= most
        } else {
            size >= rounded.saturating_add(self.settings.non_split_rounding)
        };
        (!refused).then_some(chosen)
    }

    fn size_to_grow(&self, (run, at): At) -> u64 {
        let blocks = &self.runs[run].blocks;
        let behind = blocks.get(at + 1).filter(|block| block.state == State::Unmapped);
        blocks[at].size + behind.map_or(0, |block| block.size)
    }

    fn grow(&mut self, request: &Request, pool: Pool, rounded: u64) -> Option<At> {
        let segment = if rounded <= MIB {
            2 * MIB
        } else if rounded < 10 * MIB {
            self.settings.cut.large_segment
        } else {
            rounded.div_ceil(2 * MIB) * 2 * MIB
        };
        if self.limit().is_some_and(|limit| self.reserved() + segment > limit) {
            return None;
        }
        if self.settings.expandable_segments {
            return self.expand(request, pool, rounded);
        }
        let address = self.device.malloc(segment)?;
        self.add_run(request, pool, None, address, segment, State::Free);
        Some((self.runs.len() - 1, 0))
    }

    fn add_run(
        &mut self,
        request: &Request,
        pool: Pool,
        page: Option<u64>,
        address: u64,
        size: u64,
        state: State,
    ) {
        let block = Block { address, size, requested: 0, state, number: usize::MAX, since: 0 };
        let run = Run { stream: request.stream, owner: request.pool, pool, page, blocks: vec![block] };
        self.runs.push(run);
    }

    fn expand(&mut self, request: &Request, pool: Pool, rounded: u64) -> Option<At> {
        let page = if pool == Pool::Small { 2 * MIB } else { self.settings.cut.large_segment };
        let unused = |block: &Block| matches!(block.state, State::Free | State::Unmapped);
        let mut starts: Vec<At> = Vec::new();
        for (i, run) in self.runs.iter().enumerate().filter(|(_, run)| run.is(request, pool)) {
            for at in (0..run.blocks.len()).filter(|at| run.blocks[*at].state == State::Unmapped) {
                let start = if at > 0 && unused(&run.blocks[at - 1]) { at - 1 } else { at };
                let room: u64 =
                    run.blocks[start..].iter().take_while(|block| unused(block)).map(|b| b.size).sum();
                if room >= rounded {
                    starts.push((i, start));
                }
            }
        }
        let lowest = starts.into_iter().min_by_key(|at| self.block(*at).address);
        let (run, mut at) = lowest.unwrap_or_else(|| {
            let total = self.device.total().unwrap();
            let size = (total + total / 8).div_ceil(page) * page;
            let base = self.device.reserve(size).unwrap();
            self.add_run(request, pool, Some(page), base, size, State::Unmapped);
            (self.runs.len() - 1, 0)
        });
        loop {
            let block = self.runs[run].blocks[at];
            if block.state == State::Free && block.size >= rounded {
                return Some((run, at));
            }
            let (target, missing) = match block.state {
                State::Unmapped => (at, rounded),
                _ => (at + 1, rounded - block.size),
            };
            let gap = *self.runs[run].blocks.get(target)?;
            let mapped = missing.min(gap.size).div_ceil(page) * page;
            if !self.device.map(gap.address, mapped) {
                return None;
            }
            let rest = Block { address: gap.address + mapped, size: gap.size - mapped, ..gap };
            self.runs[run].blocks[target].size = mapped;
            if rest.size > 0 {
                self.runs[run].blocks.insert(target + 1, rest);
            }
            at = self.set_free(run, target);
        }
    }

    /// Frees a block and merges it with free neighbours: its new place.
    fn set_free(&mut self, run: usize, at: usize) -> usize {
        let since = self.searches_of(self.runs[run].owner, self.runs[run].pool);
        self.set_unused(run, at, State::Free, since)
    }

    fn set_unused(&mut self, run: usize, mut at: usize, state: State, since: u64) -> usize {
        let blocks = &mut self.runs[run].blocks;
        blocks[at].state = state;
        if at > 0 && blocks[at - 1].state == state {
            at -= 1;
            blocks[at].size += blocks.remove(at + 1).size;
        }
        if at + 1 < blocks.len() && blocks[at + 1].state == state {
            blocks[at].size += blocks.remove(at + 1).size;
        }
        blocks[at].since = since;
        at
    }

    fn place_of(&self, number: usize) -> Option<At> {
        for (i, run) in self.runs.iter().enumerate() {
            for (at, block) in run.blocks.iter().enumerate() {
                if block.number == number && matches!(block.state, State::Live | State::Pending) {
                    return Some((i, at));
                }
            }
        }
        None
    }

    pub(crate) fn free_requested(&mut self, number: usize) {
        if let Some((run, at)) = self.place_of(number)
            && self.runs[run].blocks[at].state == State::Live
        {
            self.runs[run].blocks[at].state = State::Pending;
            self.deferred.push(number);
        }
    }

    pub(crate) fn free_completed(&mut self, number: usize) {
        if let Some((run, at)) = self.place_of(number) {
            self.set_free(run, at);
        }
    }

    pub(crate) fn retire(&mut self, owner: MempoolId) {
        if !self.retired.contains(&owner) {
            self.retired.push(owner);
        }
    }

    pub(crate) fn empty_cache(&mut self) {
        for number in std::mem::take(&mut self.deferred) {
            if self.place_of(number).is_some_and(|at| self.block(at).state == State::Pending) {
                self.free_completed(number);
            }
        }
        let mut lists = vec![(MempoolId::DEFAULT, Pool::Large), (MempoolId::DEFAULT, Pool::Small)];
        for owner in self.retired.clone() {
            lists.extend([(owner, Pool::Small), (owner, Pool::Large)]);
        }
        for list in lists {
            let of_list = |run: &Run| (run.owner, run.pool) == list;
            let free: Vec<Block> = self.free_blocks(of_list).into_iter().map(|at| self.block(at)).collect();
            for pages in [false, true] {
                for block in &free {
                    let run = self
                        .runs
                        .iter()
                        .position(|run| run.blocks.iter().any(|b| b.address == block.address));
                    let Some(run) = run.filter(|run| self.runs[*run].page.is_some() == pages) else {
                        continue;
                    };
                    if pages {
                        self.unmap(run, block.address);
                    } else if self.runs[run].blocks.len() == 1 {
                        self.release_segment(run);
                    }
                }
            }
        }
    }

    fn release_segment(&mut self, run: usize) {
        let run = self.runs.remove(run);
        self.device.free(run.base(), run.blocks[0].size);
    }

    fn unmap(&mut self, run: usize, address: u64) {
        let (base, page) = (self.runs[run].base(), self.runs[run].page.unwrap());
        let mut at = self.runs[run].blocks.iter().position(|block| block.address == address).unwrap();
        let block = self.runs[run].blocks[at];
        let start = base + (block.address - base).div_ceil(page) * page;
        let end = base + (block.address + block.size - base) / page * page;
        if start >= end {
            return;
        }
        let since = self.searches_of(self.runs[run].owner, self.runs[run].pool);
        let part = |from: u64, to: u64| Block { address: from, size: to - from, since, ..block };
        let parts = [part(block.address, start), part(start, end), part(end, block.address + block.size)];
        let parts = parts.into_iter().filter(|part| part.size > 0);
        self.runs[run].blocks.splice(at..=at, parts);
        at += usize::from(start > block.address);
        self.device.unmap(start, end - start);
        self.set_unused(run, at, State::Unmapped, since);
        if self.runs[run].blocks.len() == 1 {
            let gone = self.runs.remove(run);
            self.device.release(gone.base(), gone.blocks[0].size);
        }
    }

    fn release_oversize(&mut self, request: &Request, pool: Pool, rounded: u64) -> bool {
        let most = self.settings.cut.max_split_size;
        if most == u64::MAX {
            return false;
        }
        let wanted = rounded.max(most);
        let free = self.free_blocks(|run| run.is(request, pool));
        let of = |at: &At| (self.block(*at).size, self.runs[at.0].page.is_some(), self.runs[at.0].base());
        let free: Vec<(u64, bool, u64)> = free.iter().map(of).collect();
        let mut released = Vec::new();
        match free.iter().find(|(size, ..)| *size >= wanted) {
            Some((_, false, base)) => released.push((wanted, *base)),
            _ => {
                for (size, expandable, base) in free.iter().rev().filter(|(size, ..)| *size < wanted) {
                    if *size < most || released.iter().map(|(size, _)| size).sum::<u64>() >= wanted {
                        break;
                    }
                    if !expandable {
                        released.push((*size, *base));
                    }
                }
            }
        }
        for (_, base) in &released {
            let run = self.runs.iter().position(|run| run.base() == *base).unwrap();
            self.release_segment(run);
        }
        released.iter().map(|(size, _)| size).sum::<u64>() >= wanted
    }

    fn collect_garbage(&mut self) {
        if !self.collects() {
            return;
        }
        let threshold = (self.settings.garbage_collection_threshold * self.limit().unwrap() as f64) as u64;
        if self.reserved() <= threshold {
            return;
        }
        let mut missing = (self.reserved() - threshold) as i128;
        let searches = self.searches_of(MempoolId::DEFAULT, Pool::Large);
        loop {
            let default = |run: &Run| (run.owner, run.pool) == (MempoolId::DEFAULT, Pool::Large);
            let free = self.free_blocks(|run| default(run) && run.page.is_none() && run.blocks.len() == 1);
            if missing <= 0 || free.is_empty() {
                return;
            }
            let ages: Vec<(u64, u64)> =
                free.iter().map(|at| (searches - self.block(*at).since, self.block(*at).address)).collect();
            let average = ages.iter().map(|(age, _)| age).sum::<u64>() as f64 / ages.len() as f64;
            for (_, address) in ages.into_iter().filter(|(age, _)| *age as f64 >= average) {
                let run = self.runs.iter().position(|run| run.base() == address).unwrap();
                missing -= i128::from(self.runs[run].blocks[0].size);
                self.release_segment(run);
            }
        }
    }

    /// What is held, as [`peakledger_allocator::Allocator::segments`] has it.
    pub(crate) fn segments(&self) -> Vec<Segment> {
        let mut segments: Vec<Segment> = Vec::new();
        for run in &self.runs {
            let mut ended = true;
            for block in &run.blocks {
                let held = match block.state {
                    State::Unmapped => {
                        ended = true;
                        continue;
                    }
                    State::Free => Held::Free,
                    State::Live => Held::Allocated(block.requested),
                    State::Pending => Held::Pending(block.requested),
                };
                if std::mem::take(&mut ended) {
                    segments.push(Segment {
                        address: block.address,
                        stream: run.stream,
                        owner: run.owner,
                        pool: run.pool,
                        expandable: run.page.is_some(),
                        pieces: Vec::new(),
                    });
                }
                segments.last_mut().unwrap().pieces.push(Piece { size: block.size, held });
            }
        }
        segments.sort_by_key(|segment| segment.address);
        segments
    }

    /// The sums, added up from the blocks.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals { reserved: self.reserved(), ..Totals::default() };
        for run in &self.runs {
            for block in &run.blocks {
                match block.state {
                    State::Live => {
                        let rounded = self.settings.rounding.round(block.requested).unwrap();
                        totals.requested += block.requested;
                        totals.rounding += rounded - block.requested;
                        totals.tails += block.size - rounded;
                        totals.allocated += block.size;
                        totals.active += block.size;
                    }
                    State::Pending => totals.active += block.size,
                    State::Free => {
                        totals.returnable += match run.page {
                            None if run.blocks.len() == 1 => block.size,
                            None => 0,
                            Some(page) => {
                                let start = (block.address - run.base()).div_ceil(page);
                                let end = (block.address + block.size - run.base()) / page;
                                end.saturating_sub(start) * page
                            }
                        };
                    }
                    State::Unmapped => {}
                }
            }
        }
        totals
    }
}
