//! The allocator: requests in, blocks out, with everything that happens in between in the order in which torch does it.

use crate::blocks::{Block, BlockId, Blocks, State};
use crate::expandable::Ranges;
use crate::lists::{ListId, Lists};
use crate::{Device, OutOfMemory, Settings, Totals};
use peakledger_core::block::Pool;

/// A CUDA stream, by its raw handle; 0 is the default stream. Blocks are reused within a stream only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub u64);

impl Stream {
    /// The default stream.
    pub const DEFAULT: Stream = Stream(0);
}

/// A pool, by the id that torch gives it: `(0, 0)` is the default one, `(0, n)` a `MemPool` of the user, `(n, 0)` that of a
/// graph capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MempoolId(pub u64, pub u64);

impl MempoolId {
    /// The pool of all that is not captured and not in a `MemPool`.
    pub const DEFAULT: MempoolId = MempoolId(0, 0);
}

/// A request for memory. Torch asks for no block where a tensor has no bytes: requests are 1 byte or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes, as the program asks for them.
    pub bytes: u64,
    /// On which stream.
    pub stream: Stream,
    /// From which pool.
    pub pool: MempoolId,
}

impl Request {
    /// On the default stream, from the default pool.
    pub const fn of(bytes: u64) -> Request {
        Request { bytes, stream: Stream::DEFAULT, pool: MempoolId::DEFAULT }
    }
}

/// A served request, by its place among all that this allocator served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Allocation(u32);

/// Where an allocation lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its first byte.
    pub address: u64,
    /// The size of its block, at least that of the request.
    pub size: u64,
}

/// The caching allocator of one device.
#[derive(Debug)]
pub struct Allocator<D> {
    pub(crate) settings: Settings,
    pub(crate) device: D,
    pub(crate) blocks: Blocks,
    pub(crate) lists: Lists,
    pub(crate) ranges: Ranges,
    pub(crate) totals: Totals,
    /// The most that may be reserved, where `per_process_memory_fraction` says so.
    pub(crate) limit: Option<u64>,
    /// The block of every allocation there was; none once it is free.
    allocations: Vec<Option<BlockId>>,
    /// Allocations that were given back while other streams used them, in that order; some may have been completed since.
    deferred: Vec<Allocation>,
    retries: u64,
}

impl<D: Device> Allocator<D> {
    /// An allocator that holds nothing yet.
    pub fn new(settings: Settings, device: D) -> Allocator<D> {
        let limit = settings.limit_on(device.total());
        Allocator {
            settings,
            device,
            blocks: Blocks::new(),
            lists: Lists::new(),
            ranges: Ranges::new(),
            totals: Totals::default(),
            limit,
            allocations: Vec::new(),
            deferred: Vec::new(),
            retries: 0,
        }
    }

    /// Serves a request, from what is cached or with a new segment (`DeviceCachingAllocator::malloc`).
    ///
    /// # Errors
    /// The device and all that could be given back to it have no room; nothing is handed out.
    pub fn alloc(&mut self, request: Request) -> Result<Allocation, OutOfMemory> {
        let rounded = self.settings.rounding.round(request.bytes);
        let served = rounded.and_then(|rounded| {
            let list = self.lists.of(request.pool, Pool::of(rounded))?;
            let block = self.find(list, request.stream, rounded)?;
            self.hand_out(block, request.bytes, rounded)
        });
        served.ok_or_else(|| self.out_of_memory(request, rounded.unwrap_or(u64::MAX)))
    }

    /// The program gives an allocation back; what other streams do with it may still be running, so its block is not free
    /// yet. An allocation that is not live is left alone.
    pub fn free_requested(&mut self, allocation: Allocation) {
        let Some(id) = self.live(allocation) else { return };
        let block = self.blocks[id];
        if block.state != State::Allocated {
            return;
        }
        self.blocks[id].state = State::Pending;
        if self.totals.pending() == 0 {
            self.deferred.clear();
        }
        self.deferred.push(allocation);
        self.count_out(&block);
    }

    /// Other streams are done with an allocation that was given back: its block is free and merges with its neighbours. One
    /// that is free already (because the allocator waited for it, to make room) is left alone.
    pub fn free_completed(&mut self, allocation: Allocation) {
        let Some(id) = self.live(allocation) else { return };
        if self.blocks[id].state == State::Allocated {
            self.free_requested(allocation);
        }
        if let Some(slot) = self.allocations.get_mut(allocation.0 as usize) {
            *slot = None;
        }
        self.totals.active = self.totals.active.saturating_sub(self.blocks[id].size);
        self.make_free(id);
    }

    /// Gives an allocation back that no other stream uses: both halves of a free at once.
    pub fn free(&mut self, allocation: Allocation) {
        self.free_completed(allocation);
    }

    /// Gives the device what is cached and can be given back (`torch.cuda.empty_cache`).
    pub fn empty_cache(&mut self) {
        self.release_cached();
    }

    /// Nobody uses a private pool any more (its graph was reset, its `MemPool` deleted): its segments can be given back.
    pub fn retire(&mut self, pool: MempoolId) {
        self.lists.retire(pool);
    }

    /// What is held.
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// How often everything cached was given back before the device could serve a request (`num_alloc_retries`).
    pub const fn retries(&self) -> u64 {
        self.retries
    }

    /// Where an allocation lies, as long as its block is not free.
    pub fn placed(&self, allocation: Allocation) -> Option<Placed> {
        let block = &self.blocks[self.live(allocation)?];
        Some(Placed { address: block.address, size: block.size })
    }

    /// The device.
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// The device, to be told things.
    pub const fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// The device, when the allocator is no longer needed.
    pub fn into_device(self) -> D {
        self.device
    }

    fn live(&self, allocation: Allocation) -> Option<BlockId> {
        self.allocations.get(allocation.0 as usize).copied().flatten()
    }

    /// Every block there is, once.
    pub(crate) fn block_ids(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.lists.block_ids().chain(self.allocations.iter().copied().flatten())
    }

    /// A block for a rounded request: a cached one, or one from the device, if need be after giving back what is cached.
    fn find(&mut self, list: ListId, stream: Stream, rounded: u64) -> Option<BlockId> {
        if let Some(cached) = self.best_fit(list, stream, rounded) {
            return Some(cached);
        }
        self.collect_garbage();
        if let Some(new) = self.grow(list, stream, rounded) {
            return Some(new);
        }
        if self.release_oversize(list, stream, rounded)
            && let Some(new) = self.grow(list, stream, rounded)
        {
            return Some(new);
        }
        // a private pool is asked for while a capture is underway, and then nothing may be waited for
        if self.lists[list].owner != MempoolId::DEFAULT {
            return None;
        }
        self.release_cached();
        self.retries += 1;
        self.grow(list, stream, rounded)
    }

    /// The smallest free block that holds the request, the lowest of equally small ones (`get_free_block`).
    fn best_fit(&mut self, list: ListId, stream: Stream, rounded: u64) -> Option<BlockId> {
        if self.collects_garbage() {
            self.lists[list].searches += 1;
        }
        let free = &self.lists[list].free;
        let mut found = *free.first_from(stream, rounded)?;
        if self.is_expandable(found.id) {
            let mut larger = free.from(stream, rounded).skip(1);
            if self.settings.expandable_segments {
                // a block that can grow counts with what it can grow to, so that one that cannot is taken before it
                while self.is_expandable(found.id) {
                    match larger.next() {
                        Some(next) if self.size_to_grow(next.id) < self.size_to_grow(found.id) => {
                            found = *next;
                        }
                        _ => break,
                    }
                }
            } else {
                found = *larger.find(|free| !self.is_expandable(free.id))?;
            }
        }
        let max_split_size = self.settings.cut.max_split_size;
        let too_large = if rounded < max_split_size {
            found.size >= max_split_size
        } else {
            found.size >= rounded.saturating_add(self.settings.non_split_rounding)
        };
        if too_large {
            return None;
        }
        self.take(found.id);
        Some(found.id)
    }

    fn is_expandable(&self, id: BlockId) -> bool {
        self.blocks[id].range.is_some()
    }

    /// The size of a block with the unmapped addresses right behind it.
    fn size_to_grow(&self, id: BlockId) -> u64 {
        let block = &self.blocks[id];
        let behind = block.after.map(|after| &self.blocks[after]);
        let unmapped = behind.filter(|behind| behind.state == State::Unmapped);
        block.size.saturating_add(unmapped.map_or(0, |unmapped| unmapped.size))
    }

    /// A new block from the device (`alloc_block`).
    fn grow(&mut self, list: ListId, stream: Stream, rounded: u64) -> Option<BlockId> {
        let segment = self.settings.cut.segment(rounded)?;
        let reserved = self.totals.reserved.checked_add(segment)?;
        if self.limit.is_some_and(|limit| reserved > limit) {
            return None;
        }
        if self.settings.expandable_segments {
            return self.grow_range(list, stream, rounded);
        }
        let address = self.device.malloc(segment)?;
        let id = self.blocks.add(Block::whole(address, segment, stream, list, State::Allocated))?;
        self.totals.reserved = reserved;
        Some(id)
    }

    /// Hands a block out, cut to size where what is left is worth keeping (`alloc_found_block`).
    fn hand_out(&mut self, id: BlockId, bytes: u64, rounded: u64) -> Option<Allocation> {
        let whole = self.blocks[id].size;
        let size = self.settings.cut.handed_out(rounded, whole, self.settings.expandable_segments);
        let id = if size < whole {
            let front = self.blocks.cut(id, size)?;
            self.put(id);
            front
        } else {
            id
        };
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.requested = bytes;
        self.count_in(id)
    }

    /// Numbers a block that has just been handed out, and counts it.
    pub(crate) fn count_in(&mut self, id: BlockId) -> Option<Allocation> {
        let allocation = Allocation(u32::try_from(self.allocations.len()).ok()?);
        self.allocations.push(Some(id));
        let block = self.blocks[id];
        let rounded = self.rounded(&block);
        self.totals.requested += block.requested.min(block.size);
        self.totals.rounding += rounded.saturating_sub(block.requested);
        self.totals.tails += block.size.saturating_sub(rounded);
        self.totals.allocated += block.size;
        self.totals.active += block.size;
        Some(allocation)
    }

    fn count_out(&mut self, block: &Block) {
        let rounded = self.rounded(block);
        self.totals.requested -= block.requested.min(block.size);
        self.totals.rounding -= rounded.saturating_sub(block.requested);
        self.totals.tails -= block.size.saturating_sub(rounded);
        self.totals.allocated -= block.size;
    }

    fn rounded(&self, block: &Block) -> u64 {
        self.settings.rounding.round(block.requested).unwrap_or(block.size).min(block.size)
    }

    /// Makes a block free, one with its free neighbours (`free_block`).
    fn make_free(&mut self, id: BlockId) {
        self.blocks[id].state = State::Free;
        self.merge(id);
        self.put(id);
    }

    /// Merges a block, which is in no list, with the neighbours that are in the same state (`try_merge_blocks`).
    pub(crate) fn merge(&mut self, id: BlockId) {
        let state = self.blocks[id].state;
        if let Some(before) = self.blocks[id].before.filter(|before| self.blocks[*before].state == state) {
            self.take(before);
            self.blocks.join(before, id, true);
        }
        if let Some(after) = self.blocks[id].after.filter(|after| self.blocks[*after].state == state) {
            self.take(after);
            self.blocks.join(id, after, false);
        }
    }

    /// Puts a block that nobody uses into its list; one with memory behind it is free from then on.
    pub(crate) fn put(&mut self, id: BlockId) {
        let list = self.blocks[id].list;
        self.blocks[id].free_since = self.lists[list].searches;
        let block = &self.blocks[id];
        if block.state == State::Unmapped {
            self.lists[list].unmapped.insert((block.stream, block.address), id);
        } else {
            self.blocks[id].state = State::Free;
            self.lists[list].free.insert(id, &self.blocks[id]);
            self.totals.returnable += self.returnable(id);
        }
    }

    /// Takes an unused block out of its list.
    pub(crate) fn take(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        let list = &mut self.lists[block.list];
        if block.state == State::Unmapped {
            list.unmapped.remove(&(block.stream, block.address));
        } else {
            list.free.remove(id, block);
            self.totals.returnable -= self.returnable(id);
        }
    }

    /// The bytes of a free block that could be given back to the device.
    fn returnable(&self, id: BlockId) -> u64 {
        let block = &self.blocks[id];
        match block.range {
            Some(range) => self.ranges[range].pages_within(block).map_or(0, |pages| pages.end - pages.start),
            None if block.is_split() => 0,
            None => block.size,
        }
    }

    /// Waits for the other streams, as torch does before it gives everything back (`synchronize_and_free_events`).
    pub(crate) fn complete_deferred(&mut self) {
        for allocation in std::mem::take(&mut self.deferred) {
            if self.live(allocation).is_some_and(|id| self.blocks[id].state == State::Pending) {
                self.free_completed(allocation);
            }
        }
    }

    fn out_of_memory(&mut self, request: Request, rounded: u64) -> OutOfMemory {
        let pool = Pool::of(rounded);
        let free = self.lists.of(request.pool, pool).map(|list| {
            let sizes = self.lists[list].free.from(request.stream, 0).map(|free| free.size);
            sizes.fold((0u64, 0u64), |(sum, largest), size| (sum + size, largest.max(size)))
        });
        let (free_in_pool, largest_free) = free.unwrap_or_default();
        OutOfMemory {
            requested: request.bytes,
            rounded,
            segment: self.settings.cut.segment(rounded).unwrap_or(u64::MAX),
            pool,
            totals: self.totals,
            unused: self.device.unused(),
            free_in_pool,
            largest_free,
        }
    }
}
