//! The process groups that a rank is in, and what their communicators take of its card. NCCL allocates with `cudaMalloc` beside
//! torch's allocator, so this is a term of its own, outside.
//!
//! Groups are those that a training framework makes for the sizes asked for (Megatron-LM's `core/parallel_state.py`; a
//! `DeviceMesh` has the same, but for the embedding's); one of a single rank makes no communicator, and groups of the same ranks
//! that share a mesh dimension are one.
//!
//! What a communicator takes depends on channels, peers and protocols, so it was measured: on A100 with NVLink 544 MiB for a
//! group of 2 ranks, 688 MiB for more (NVIDIA/nccl#964, an all-reduce of 4 MB in each group of 4 cards). By the parts (4 MiB
//! `NCCL_BUFFSIZE` and the buffers of LL and LL128 for each channel and peer) H100s with 32 channels come to more
//! (NVIDIA/nccl#1685), and ranks of one channel to less: `--nccl-bytes-per-group` sets what was seen on the machine.

use super::{Mesh, Parallel, Sharding};
use peakledger_core::Bytes;

/// A process group that a rank is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Communicator {
    /// Which: `tp`, `dp-cp`, `embedding`.
    pub name: &'static str,
    /// Its ranks.
    pub ranks: u32,
    /// What it takes of the card, outside the allocator.
    pub bytes: Bytes,
}

const MIB: u64 = 1 << 20;
const OF_TWO: u64 = 544 * MIB;
const OF_MORE: u64 = 688 * MIB;

/// The process groups of a rank on that stage; the model's head is `tied` to its embedding or not, and it `has_experts` or not.
pub(crate) fn communicators(
    parallel: &Parallel,
    mesh: &Mesh,
    stage: u32,
    tied: bool,
    has_experts: bool,
) -> Vec<Communicator> {
    let Mesh { tp, cp, pp, ep, etp, edp, .. } = *mesh;
    let replicas = mesh.replicas();
    let (within, between) = match parallel.sharding {
        Sharding::HybridShard => (mesh.shards(parallel), replicas / mesh.shards(parallel)),
        _ => (replicas, 1),
    };
    let at_an_end = stage == 0 || stage + 1 == pp;
    let experts = |ranks: u32| if has_experts { ranks } else { 1 };
    let own_experts = has_experts && (ep > 1 || etp != tp);
    let groups = [
        ("dp-cp", within),
        ("dp-cp, replicas", between),
        ("tp", tp),
        ("cp", cp),
        ("pp", pp),
        ("embedding", if tied && at_an_end && pp > 1 { 2 } else { 1 }),
        ("ep", experts(ep)),
        ("etp", if own_experts { etp } else { 1 }),
        ("edp", if own_experts { edp / between } else { 1 }),
        ("edp, replicas", if own_experts { between } else { 1 }),
    ];
    let communicator = |(name, ranks)| {
        let measured = if ranks == 2 { OF_TWO } else { OF_MORE };
        Communicator { name, ranks, bytes: Bytes::new(parallel.nccl_bytes_per_group.unwrap_or(measured)) }
    };
    groups.into_iter().filter(|(_, ranks)| *ranks > 1).map(communicator).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parallel: &Parallel, stage: u32, tied: bool, experts: bool) -> Vec<(&'static str, u32, u64)> {
        let mesh = Mesh::of(parallel).unwrap();
        let all = communicators(parallel, &mesh, stage, tied, experts);
        all.into_iter().map(|group| (group.name, group.ranks, group.bytes.get() / MIB)).collect()
    }

    #[test]
    fn a_rank_is_in_the_groups_of_its_sizes() {
        assert_eq!(of(&Parallel::default(), 0, true, true), []);
        let parallel = Parallel { gpus: Some(32), tp: 2, pp: 4, ..Parallel::default() };
        assert_eq!(of(&parallel, 1, true, false), [("dp-cp", 4, 688), ("tp", 2, 544), ("pp", 4, 688)]);
        let last = of(&parallel, 3, true, false);
        assert_eq!(last.last(), Some(&("embedding", 2, 544)));
        assert_eq!(of(&parallel, 3, false, false).len(), 3, "an untied head is alone");
        let seen = Parallel { nccl_bytes_per_group: Some(MIB), ..parallel };
        assert!(of(&seen, 0, false, false).iter().all(|(.., bytes)| *bytes == 1));
    }

    #[test]
    fn experts_have_groups_of_their_own() {
        let parallel = Parallel { gpus: Some(16), tp: 2, ep: 4, etp: Some(1), ..Parallel::default() };
        let groups = [("dp-cp", 8, 688), ("tp", 2, 544), ("ep", 4, 688), ("edp", 4, 688)];
        assert_eq!(of(&parallel, 0, false, true), groups);
        assert_eq!(of(&parallel, 0, false, false).len(), 2, "a dense model has no experts to spread");
    }

    #[test]
    fn experts_are_sharded_within_a_node_too() {
        let parallel =
            Parallel { gpus: Some(32), ep: 4, sharding: Sharding::HybridShard, ..Parallel::default() };
        let groups = of(&parallel, 0, false, true);
        let names: Vec<_> = groups.iter().map(|(name, ranks, _)| (*name, *ranks)).collect();
        let dense = [("dp-cp", 8), ("dp-cp, replicas", 4)];
        assert_eq!(names, [dense[0], dense[1], ("ep", 4), ("edp", 2), ("edp, replicas", 4)]);
    }

    #[test]
    fn hybrid_shards_have_a_group_within_and_one_of_replicas() {
        let parallel = Parallel { gpus: Some(32), sharding: Sharding::HybridShard, ..Parallel::default() };
        let groups = [("dp-cp", 8, 688), ("dp-cp, replicas", 4, 688)];
        assert_eq!(of(&parallel, 0, false, false), groups);
    }
}
