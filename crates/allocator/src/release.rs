//! Giving cached blocks back to the device: all of them, the oversize ones, or those that garbage collection picks.

use crate::blocks::BlockId;
use crate::lists::ListId;
use crate::{Allocator, Device, Stream};

impl<D: Device> Allocator<D> {
    /// Gives back all that can be: after waiting for other streams, the wholly free segments and pages of the default pool
    /// and of private pools that nobody uses any more (`release_cached_blocks`).
    pub(crate) fn release_cached(&mut self) {
        self.complete_deferred();
        self.release_list(ListId::LARGE);
        self.release_list(ListId::SMALL);
        for (small, large) in self.lists.retired.clone() {
            self.release_list(small);
            self.release_list(large);
        }
    }

    /// `release_blocks`: the segments first, then the pages.
    fn release_list(&mut self, list: ListId) {
        let free = self.lists[list].free.iter().map(|free| free.id);
        let (expandable, others): (Vec<BlockId>, Vec<BlockId>) =
            free.partition(|id| self.blocks[*id].range.is_some());
        for id in others {
            if self.is_whole_segment(id) {
                self.release_segment(id);
            }
        }
        for id in expandable {
            self.unmap(id);
        }
    }

    /// Whether a free block is a segment from `cudaMalloc` that nobody uses a part of.
    fn is_whole_segment(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        block.range.is_none() && !block.is_split()
    }

    fn release_segment(&mut self, id: BlockId) {
        let block = self.blocks[id];
        self.take(id);
        self.device.free(block.address, block.size);
        self.totals.reserved -= block.size;
        self.blocks.remove(id);
    }

    /// With `max_split_size_mb`, room for a request is first made by giving back oversize blocks, which no smaller request
    /// may use: one that is large enough, or several from the largest on (`release_available_cached_blocks`).
    pub(crate) fn release_oversize(&mut self, list: ListId, stream: Stream, rounded: u64) -> bool {
        let max_split_size = self.settings.cut.max_split_size;
        if max_split_size == u64::MAX {
            return false;
        }
        let wanted = rounded.max(max_split_size);
        let large_enough = self.lists[list].free.first_from(stream, wanted).map(|free| free.id);
        if let Some(id) = large_enough.filter(|id| self.blocks[*id].range.is_none()) {
            self.release_segment(id);
            return true;
        }
        let (mut released, mut chosen) = (0u64, Vec::new());
        for free in self.lists[list].free.below(stream, wanted).rev() {
            if released >= wanted || free.size < max_split_size {
                break;
            }
            if self.blocks[free.id].range.is_none() {
                released = released.saturating_add(free.size);
                chosen.push(free.id);
            }
        }
        for id in chosen {
            self.release_segment(id);
        }
        released >= wanted
    }

    /// Garbage is collected only where both a threshold and a limit are set (pytorch#106660).
    pub(crate) fn collects_garbage(&self) -> bool {
        self.limit.is_some() && self.settings.garbage_collection_threshold > 0.0
    }

    /// Gives back the segments of the default pool's large list that have been free for at least the average time, again
    /// and again until enough is given back (`garbage_collect_cached_blocks`).
    #[allow(clippy::cast_precision_loss)] // torch compares ages with their average as doubles too
    pub(crate) fn collect_garbage(&mut self) {
        let threshold = self.limit.and_then(|limit| self.settings.garbage_threshold(limit));
        let Some(target) = threshold.and_then(|most| self.totals.reserved.checked_sub(most)) else { return };
        let large = &self.lists[ListId::LARGE];
        let whole = large.free.iter().map(|free| free.id).filter(|id| self.is_whole_segment(*id));
        let age = |id: BlockId| large.searches.saturating_sub(self.blocks[id].free_since);
        let mut kept: Vec<(BlockId, u64)> = whole.map(|id| (id, age(id))).collect();
        let mut reclaimed = 0u64;
        while reclaimed < target && !kept.is_empty() {
            let total_age: u64 = kept.iter().map(|(_, age)| age).sum();
            let average = total_age as f64 / kept.len() as f64;
            let (old, young): (Vec<_>, Vec<_>) = kept.iter().partition(|(_, age)| *age as f64 >= average);
            if old.is_empty() {
                return;
            }
            for (id, _) in old {
                reclaimed = reclaimed.saturating_add(self.blocks[id].size);
                self.release_segment(id);
            }
            kept = young;
        }
    }
}
