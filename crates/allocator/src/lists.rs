//! Pools: the sorted lists of free and of unmapped blocks. Pools never mix, and neither do the streams inside one.

use crate::blocks::BlockId;
use crate::free::FreeBlocks;
use crate::{MempoolId, Stream};
use peakledger_core::block::Pool;
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

/// A list, by its place in [`Lists`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListId(u32);

impl ListId {
    /// The small one of the default pool.
    pub(crate) const SMALL: ListId = ListId(0);
    /// The large one of the default pool.
    pub(crate) const LARGE: ListId = ListId(1);
}

/// The small or the large list of a pool.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) pool: Pool,
    pub(crate) owner: MempoolId,
    pub(crate) free: FreeBlocks,
    /// By stream, then address (`BlockComparatorAddress`).
    pub(crate) unmapped: BTreeMap<(Stream, u64), BlockId>,
    /// How often it was searched, while garbage is collected.
    pub(crate) searches: u64,
}

impl List {
    fn new(pool: Pool, owner: MempoolId) -> List {
        List { pool, owner, free: FreeBlocks::default(), unmapped: BTreeMap::new(), searches: 0 }
    }

    /// The unmapped blocks of a stream, by address.
    pub(crate) fn unmapped_of(&self, stream: Stream) -> impl Iterator<Item = BlockId> + '_ {
        self.unmapped.range((stream, 0)..=(stream, u64::MAX)).map(|(_, id)| *id)
    }
}

/// All lists: the default pool's two, then two for each private pool.
#[derive(Debug)]
pub(crate) struct Lists {
    cells: Vec<List>,
    private: BTreeMap<MempoolId, (ListId, ListId)>,
    /// The private pools that nobody uses any more.
    pub(crate) retired: Vec<(ListId, ListId)>,
}

impl Lists {
    pub(crate) fn new() -> Lists {
        let of = |pool| List::new(pool, MempoolId::DEFAULT);
        let cells = vec![of(Pool::Small), of(Pool::Large)];
        Lists { cells, private: BTreeMap::new(), retired: Vec::new() }
    }

    /// The list of a pool; a private pool is made when it is first named.
    pub(crate) fn of(&mut self, owner: MempoolId, pool: Pool) -> Option<ListId> {
        let (small, large) = match owner {
            MempoolId::DEFAULT => (ListId::SMALL, ListId::LARGE),
            _ => match self.private.get(&owner) {
                Some(lists) => *lists,
                None => {
                    let next = u32::try_from(self.cells.len()).ok()?;
                    let lists = (ListId(next), ListId(next.checked_add(1)?));
                    self.cells.extend([Pool::Small, Pool::Large].map(|pool| List::new(pool, owner)));
                    self.private.insert(owner, lists);
                    lists
                }
            },
        };
        Some(if pool == Pool::Small { small } else { large })
    }

    /// The blocks of all lists.
    pub(crate) fn block_ids(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.cells
            .iter()
            .flat_map(|list| list.free.iter().map(|free| free.id).chain(list.unmapped.values().copied()))
    }

    /// Marks a private pool as one that nobody uses any more.
    pub(crate) fn retire(&mut self, owner: MempoolId) {
        let lists = [Pool::Small, Pool::Large].map(|pool| self.of(owner, pool));
        if let [Some(small), Some(large)] = lists
            && owner != MempoolId::DEFAULT
            && !self.retired.contains(&(small, large))
        {
            self.retired.push((small, large));
        }
    }
}

#[allow(clippy::indexing_slicing)] // ids are made here, and name cells that are here
impl Index<ListId> for Lists {
    type Output = List;

    fn index(&self, id: ListId) -> &List {
        &self.cells[id.0 as usize]
    }
}

#[allow(clippy::indexing_slicing)] // as above
impl IndexMut<ListId> for Lists {
    fn index_mut(&mut self, id: ListId) -> &mut List {
        &mut self.cells[id.0 as usize]
    }
}
