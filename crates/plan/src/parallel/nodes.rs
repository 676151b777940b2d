//! Which ranks of a group are on one node: ranks are dealt out to nodes in their order, `--gpus-per-node` to each, as `torchrun`
//! does.
//!
//! The groups of a size and a stride tile the world ([`super::Place`]). Where nodes cut them unevenly, the group that has fewest
//! ranks on some node is taken for all: the step waits for it.

use super::{Mesh, Parallel};
use crate::multiples::gcd;
use crate::torch::network::Peers;

impl Mesh {
    /// The tensor parallel group.
    pub(crate) fn tensor_peers(&self) -> Peers {
        self.peers(1, self.tp)
    }

    /// The context parallel group.
    pub(crate) fn context_peers(&self) -> Peers {
        self.peers(self.tp, self.cp)
    }

    /// The ranks that run a stage on other tokens: those of data and context parallel.
    pub(crate) fn replica_peers(&self) -> Peers {
        self.peers(self.tp, self.replicas())
    }

    /// The expert parallel group.
    pub(crate) fn expert_peers(&self) -> Peers {
        self.peers(self.etp, self.ep)
    }

    /// The expert tensor parallel group.
    pub(crate) fn expert_tensor_peers(&self) -> Peers {
        self.peers(1, self.etp)
    }

    /// The ranks that have the same part of the same experts.
    pub(crate) fn expert_replica_peers(&self) -> Peers {
        self.peers(self.etp * self.ep, self.edp)
    }

    /// The ranks that a layer is sharded over, and those that have the same shards (`dp_replicate × dp_shard × cp × tp`).
    pub(crate) fn shard_peers(&self, parallel: &Parallel) -> [Peers; 2] {
        let shards = self.shards(parallel);
        [self.peers(self.tp, shards), self.peers(self.tp * shards, self.replicas() / shards.max(1))]
    }

    /// The ranks that the experts of a layer are sharded over, where they are spread, and those that have the same shards.
    pub(crate) fn expert_shard_peers(&self, parallel: &Parallel) -> [Peers; 2] {
        let [_, replicas] = self.shard_peers(parallel);
        [self.peers(self.etp * self.ep, self.shards_of_experts(parallel)), replicas]
    }

    /// A rank of a stage and that of another which stand alike.
    pub(crate) fn stage_peers(&self, one: u32, other: u32) -> Peers {
        let of_stage = self.world / self.pp.max(1);
        let node = |rank: u32| rank / self.gpus_per_node.max(1);
        // neighbours of a stage are on one node with those that they stand alike with, or a node ends between them
        let are_near = one == other
            || node(one.min(other) * of_stage) == node(one.max(other) * of_stage + (of_stage - 1));
        Peers { ranks: 2, on_a_node: if are_near { 2 } else { 1 } }
    }

    /// Groups of so many ranks, each so far from the next.
    fn peers(&self, stride: u32, ranks: u32) -> Peers {
        let node = self.gpus_per_node.max(1);
        let (stride, ranks) = (stride.max(1), ranks.max(1));
        let block = stride.saturating_mul(ranks);
        let on_a_node = if self.world <= node || node.is_multiple_of(block) {
            ranks
        } else if block.is_multiple_of(node) && node.is_multiple_of(stride) {
            node / stride
        } else if stride >= node {
            1
        } else {
            // the blocks after these begin where a block before them does
            let apart = u64::from(node) / gcd(block.into(), node.into());
            let apart = usize::try_from(apart).unwrap_or(usize::MAX);
            let blocks = (0..self.world).step_by(block as usize).take(apart);
            let groups = blocks.flat_map(|block| (0..stride).map(move |at| block.saturating_add(at)));
            groups.map(|first| fewest_on_a_node(node, first, (stride, ranks))).min().unwrap_or(ranks)
        };
        Peers { ranks, on_a_node }
    }
}

/// How many ranks of a group that begins here the node has that has fewest of it; they are no node apart.
fn fewest_on_a_node(node: u32, first: u32, (stride, ranks): (u32, u32)) -> u32 {
    let last = first.saturating_add(stride.saturating_mul(ranks - 1));
    let before = |rank: u32| rank.saturating_sub(first).div_ceil(stride).min(ranks);
    let on = |at: u32| before(at.saturating_add(1).saturating_mul(node)) - before(at.saturating_mul(node));
    let (from, to) = (first / node, last / node);
    // nodes that lie whole within the group repeat as often as ranks are apart
    let whole = (from.saturating_add(1)..to).take(stride as usize);
    whole.chain([from, to]).map(on).min().unwrap_or(ranks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::{Place, Sharding};
    use std::collections::BTreeMap;

    fn mesh(parallel: &Parallel) -> Mesh {
        Mesh::of(parallel).unwrap()
    }

    fn pair(peers: Peers) -> (u32, u32) {
        (peers.ranks, peers.on_a_node)
    }

    /// 32 ranks on four nodes of eight: 0-7, 8-15, 16-23, 24-31.
    #[test]
    fn groups_lie_within_nodes_or_span_them() {
        let of = |tp, cp, pp| mesh(&Parallel { gpus: Some(32), tp, cp, pp, ..Parallel::default() });
        assert_eq!(pair(of(8, 1, 1).tensor_peers()), (8, 8), "0-7");
        assert_eq!(pair(of(8, 1, 1).replica_peers()), (4, 1), "0, 8, 16, 24");
        assert_eq!(pair(of(16, 1, 1).tensor_peers()), (16, 8), "0-15");
        assert_eq!(pair(of(2, 1, 1).replica_peers()), (16, 4), "0, 2, 4, 6 of each");
        assert_eq!(pair(of(2, 4, 1).context_peers()), (4, 4), "0, 2, 4, 6");
        assert_eq!(pair(of(2, 8, 1).context_peers()), (8, 4), "0, 2 … 14");
        // a stage is a node, or half of one: 0-3, 4-7, 8-11 …
        assert_eq!(pair(of(8, 1, 4).stage_peers(0, 1)), (2, 1));
        assert_eq!(pair(of(4, 1, 8).stage_peers(0, 1)), (2, 2));
        assert_eq!(pair(of(4, 1, 8).stage_peers(1, 2)), (2, 1));
        assert_eq!(pair(of(4, 1, 8).stage_peers(7, 0)), (2, 1));
    }

    #[test]
    fn shards_are_of_a_node_and_replicas_of_several() {
        let of = |tp, cp| Parallel {
            gpus: Some(32),
            tp,
            cp,
            sharding: Sharding::HybridShard,
            ..Parallel::default()
        };
        let peers = |parallel: Parallel| mesh(&parallel).shard_peers(&parallel).map(pair);
        assert_eq!(peers(of(1, 1)), [(8, 8), (4, 1)]);
        assert_eq!(peers(of(2, 2)), [(4, 4), (4, 1)]);
        let whole = Parallel { sharding: Sharding::FullShard, ..of(1, 1) };
        assert_eq!(peers(whole), [(32, 8), (1, 1)]);
        let experts = Parallel { ep: 4, etp: Some(1), ..of(1, 1) };
        assert_eq!(
            mesh(&experts).expert_shard_peers(&experts).map(pair),
            [(2, 2), (4, 1)],
            "0, 4; 0, 8, 16, 24"
        );
    }

    #[test]
    fn experts_are_spread_within_a_node_or_over_several() {
        let of = |ep| mesh(&Parallel { gpus: Some(32), tp: 2, ep, etp: Some(1), ..Parallel::default() });
        assert_eq!(pair(of(8).expert_peers()), (8, 8));
        assert_eq!(pair(of(8).expert_replica_peers()), (4, 1));
        assert_eq!(pair(of(16).expert_peers()), (16, 8));
        assert_eq!(pair(of(4).expert_replica_peers()), (8, 2), "0, 4 of each");
    }

    #[test]
    fn the_group_that_is_cut_worst_is_taken_for_all() {
        let of = |gpus, tp, gpus_per_node| {
            let parallel = Parallel { gpus: Some(gpus), tp, gpus_per_node, ..Parallel::default() };
            pair(mesh(&parallel).tensor_peers())
        };
        assert_eq!(of(6, 6, 8), (6, 6), "a world within a node");
        assert_eq!(of(12, 4, 6), (4, 2), "0-3 | 4-7 is cut after 5 | 8-11");
        assert_eq!(of(12, 3, 8), (3, 1), "6-8 is cut after 7");
        assert_eq!(of(12, 12, 8), (12, 4), "0-11 is cut after 7");
    }

    /// What is worked out for all groups of a kind is what the ranks say one by one.
    #[test]
    fn it_is_what_each_rank_says() {
        for (gpus, tp, cp, pp, node) in [
            (32, 2, 2, 2, 8),
            (48, 4, 3, 2, 8),
            (24, 3, 2, 2, 8),
            (36, 6, 1, 3, 4),
            (40, 1, 5, 1, 6),
            (16, 1, 1, 1, 8),
            (990, 3, 5, 2, 7),
            (900, 9, 10, 1, 16),
            (448, 7, 4, 4, 12),
            (300, 25, 1, 3, 10),
            (1001, 1, 1, 7, 12),
            (1001, 7, 11, 1, 6),
        ] {
            let mesh =
                mesh(&Parallel { gpus: Some(gpus), tp, cp, pp, gpus_per_node: node, ..Parallel::default() });
            let fewest = |group: fn(Place) -> Place| {
                let mut on_node: BTreeMap<(Place, u32), u32> = BTreeMap::new();
                for rank in 0..gpus {
                    // what experts have a share in is not looked at
                    let place = Place { ep: 0, ..mesh.place(rank) };
                    *on_node.entry((group(place), rank / node)).or_default() += 1;
                }
                *on_node.values().min().unwrap()
            };
            let found = [mesh.tensor_peers(), mesh.context_peers(), mesh.replica_peers()];
            let by_ranks = [
                fewest(|place| Place { tp: 0, ..place }),
                fewest(|place| Place { cp: 0, ..place }),
                fewest(|place| Place { cp: 0, dp: 0, ..place }),
            ];
            assert_eq!(found.map(|peers| peers.on_a_node), by_ranks, "{mesh:?}");
            let of_stage = gpus / pp;
            for (one, other) in (0..pp).flat_map(|one| (0..pp).map(move |other| (one, other))) {
                let near =
                    (0..of_stage).all(|at| (one * of_stage + at) / node == (other * of_stage + at) / node);
                let found = mesh.stage_peers(one, other).on_a_node;
                assert_eq!(found, if near { 2 } else { 1 }, "{one} and {other} of {mesh:?}");
            }
        }
    }
}
