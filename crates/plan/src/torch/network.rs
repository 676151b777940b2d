//! What ranks send each other: bytes within a node, and bytes over the network between nodes.
//!
//! Collectives go by NCCL's ring, as nccl-tests' `doc/PERFORMANCE.md` counts it: a rank of `n` sends `(n - 1) / n` of the whole
//! to the next one, and in an all-reduce twice that. Of a group that spans nodes NCCL makes as many rings as it has ranks on a
//! node, each of which leaves the node by another rank's adapter (`src/graph/search.cc`): with `k` ranks on each node, a rank
//! sends `1 / k` of its bytes over the network, and the rest within the node in the meantime. NCCL may take a tree or switches
//! that add up instead; between few nodes that sends less, down to half of an all-reduce between two. An all-to-all goes from
//! each rank to each other one, and what goes round from rank to rank waits for the slowest link.

use super::Torch;
use std::ops::{Add, Sub};

/// Bytes that a rank sends to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentBytes {
    /// In groups that lie within a node.
    pub within_node: u128,
    /// Within the node too, by groups that span nodes, while they send between them.
    pub meanwhile: u128,
    /// Over the network, by the rank's own part of it.
    pub between_nodes: u128,
}

impl SentBytes {
    /// All of them.
    pub fn total(&self) -> u128 {
        self.within_node.saturating_add(self.meanwhile).saturating_add(self.between_nodes)
    }

    pub(super) fn zip(self, other: SentBytes, with: fn(u128, u128) -> u128) -> SentBytes {
        SentBytes {
            within_node: with(self.within_node, other.within_node),
            meanwhile: with(self.meanwhile, other.meanwhile),
            between_nodes: with(self.between_nodes, other.between_nodes),
        }
    }
}

impl Add for SentBytes {
    type Output = SentBytes;

    fn add(self, other: SentBytes) -> SentBytes {
        self.zip(other, u128::saturating_add)
    }
}

impl Sub for SentBytes {
    type Output = SentBytes;

    fn sub(self, part: SentBytes) -> SentBytes {
        self.zip(part, u128::saturating_sub)
    }
}

/// The ranks that do something together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peers {
    /// How many, this one among them.
    pub(crate) ranks: u32,
    /// How many of them are on a node; where that differs, the fewest, which the others wait for.
    pub(crate) on_a_node: u32,
}

/// What ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    /// Each has a part, and all get the whole.
    AllGather,
    /// Each has a whole, and gets its part of the sum.
    ReduceScatter,
    /// Each has a whole, and all get the sum.
    AllReduce,
    /// Each has a part for each.
    AllToAll,
    /// Each has a whole, which goes to one other.
    Send,
}

impl Collective {
    /// What a rank sends of a whole of so many bytes.
    fn sent(self, bytes: u64, peers: Peers) -> SentBytes {
        let (ranks, on_a_node) = (u128::from(peers.ranks.max(1)), u128::from(peers.on_a_node.max(1)));
        let bytes = u128::from(bytes);
        let to_others = bytes.saturating_mul(ranks - 1) / ranks;
        let sent = match self {
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => to_others,
            Collective::AllReduce => to_others.saturating_mul(2),
            Collective::Send if ranks > 1 => bytes,
            Collective::Send => 0,
        };
        if peers.on_a_node >= peers.ranks {
            return SentBytes { within_node: sent, ..SentBytes::default() };
        }
        let between_nodes = match self {
            Collective::AllToAll => bytes.saturating_mul(ranks - on_a_node).div_ceil(ranks).min(sent),
            Collective::Send => sent,
            _ => sent.div_ceil(on_a_node),
        };
        SentBytes { within_node: 0, meanwhile: sent - between_nodes, between_nodes }
    }
}

impl Torch {
    /// Ranks do that together with a whole of so many bytes.
    pub(crate) fn communicates(&self, what: Collective, bytes: u64, peers: Peers) {
        if self.halted.get() {
            return;
        }
        let mut costs = self.tally.costs.borrow_mut();
        costs.sent = costs.sent + what.sent(bytes, peers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RINGS: [Collective; 3] = [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce];

    fn sent(what: Collective, ranks: u32, on_a_node: u32) -> [u128; 3] {
        let sent = what.sent(1600, Peers { ranks, on_a_node });
        [sent.within_node, sent.meanwhile, sent.between_nodes]
    }

    #[test]
    fn a_ring_within_a_node_sends_the_whole_but_for_its_own_part() {
        for (what, bytes) in RINGS.into_iter().zip([1400, 1400, 2800]) {
            assert_eq!(sent(what, 8, 8), [bytes, 0, 0], "1600 x 7/8, of an all-reduce twice");
        }
        assert_eq!(sent(Collective::AllToAll, 8, 8), [1400, 0, 0]);
        assert_eq!(sent(Collective::Send, 8, 8), [1600, 0, 0]);
        for what in RINGS.into_iter().chain([Collective::AllToAll, Collective::Send]) {
            assert_eq!(sent(what, 1, 1), [0; 3], "a rank alone sends nothing");
        }
    }

    #[test]
    fn rings_over_nodes_share_out_the_adapters() {
        // 16 ranks: 1600 x 15/16 = 1500. Eight on a node have eight rings: 1500 / 8 = 187.5 each over the network.
        assert_eq!(sent(Collective::AllGather, 16, 8), [0, 1312, 188]);
        // two on a node have two rings, and one alone sends all by its own adapter
        assert_eq!(sent(Collective::ReduceScatter, 16, 2), [0, 750, 750]);
        assert_eq!(sent(Collective::AllReduce, 16, 1), [0, 0, 3000]);
    }

    #[test]
    fn an_all_to_all_goes_to_each_rank_by_itself() {
        // each of 16 gets 100 bytes: 7 of them on this node, 8 on the other
        assert_eq!(sent(Collective::AllToAll, 16, 8), [0, 700, 800]);
        assert_eq!(sent(Collective::AllToAll, 16, 1), [0, 0, 1500]);
    }

    #[test]
    fn what_goes_round_waits_for_the_slowest_link() {
        assert_eq!(sent(Collective::Send, 4, 2), [0, 0, 1600]);
    }
}
