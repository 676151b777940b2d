//! The world: whether the sizes that are asked for make one, and where in it a rank stands.

use super::{Parallel, Sharding};
use crate::options::refused;
use peakledger_input::Problem;

/// More ranks than any run has had.
const MOST_RANKS: u32 = 1 << 20;

/// All parallel sizes, none left open: `world = tp × cp × dp × pp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// All ranks.
    pub world: u32,
    /// Tensor parallel.
    pub tp: u32,
    /// Context parallel.
    pub cp: u32,
    /// Data parallel.
    pub dp: u32,
    /// Pipeline parallel.
    pub pp: u32,
    /// Expert parallel.
    pub ep: u32,
    /// Expert tensor parallel.
    pub etp: u32,
    /// Data parallel of experts: `world / (etp × ep × pp)`.
    pub edp: u32,
    /// GPUs of a node.
    pub gpus_per_node: u32,
}

/// Where a rank stands, by its index in each group (`RankGenerator` in Megatron-LM's `core/parallel_state.py`, in the order
/// `tp-cp-ep-dp-pp`: neighbours are of one tensor parallel group).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Stage of the pipeline.
    pub pp: u32,
    /// In the data parallel group.
    pub dp: u32,
    /// In the context parallel group.
    pub cp: u32,
    /// In the tensor parallel group.
    pub tp: u32,
    /// In the expert parallel group.
    pub ep: u32,
}

impl Mesh {
    /// The world that is asked for.
    ///
    /// # Errors
    /// Names the size that is none, or fills in the equation that does not hold.
    pub fn of(parallel: &Parallel) -> Result<Mesh, Problem> {
        let Parallel { gpus, dp, tp, pp, cp, ep, etp, .. } = *parallel;
        let given =
            [("--gpus", gpus), ("--dp", dp), ("--dp-shard-size", parallel.dp_shard_size), ("--etp", etp)];
        let set = [("--tp", tp), ("--pp", pp), ("--cp", cp), ("--ep", ep)].map(|(name, n)| (name, Some(n)));
        let more =
            [("--virtual-stages", parallel.virtual_stages), ("--gpus-per-node", parallel.gpus_per_node)];
        let more = more.map(|(name, n)| (name, Some(n)));
        for (option, size) in given.into_iter().chain(set).chain(more) {
            if size.is_some_and(|size| size == 0 || size > MOST_RANKS) {
                let cause = format!("{} is no number of ranks", size.unwrap_or_default());
                return refused(option, cause, format!("use 1 to {MOST_RANKS}"));
            }
        }
        let model = u64::from(tp) * u64::from(cp) * u64::from(pp);
        let dp = match (dp, gpus) {
            (Some(dp), _) => u64::from(dp),
            (None, Some(gpus)) if u64::from(gpus) % model == 0 => u64::from(gpus) / model,
            (None, Some(gpus)) => return Err(no_world(gpus, format!("tp {tp} × cp {cp} × pp {pp}"), model)),
            (None, None) => 1,
        };
        let world = model.saturating_mul(dp);
        if gpus.is_some_and(|gpus| u64::from(gpus) != world) {
            let product = format!("tp {tp} × cp {cp} × dp {dp} × pp {pp}");
            return Err(no_world(gpus.unwrap_or_default(), product, world));
        }
        let narrow = |n: u64| u32::try_from(n).ok().filter(|n| *n <= MOST_RANKS);
        let (Some(world), Some(dp)) = (narrow(world), narrow(dp)) else {
            let cause = format!("tp {tp} × cp {cp} × dp {dp} × pp {pp} are more than {MOST_RANKS} ranks");
            return refused("--gpus", cause, "check the parallel sizes");
        };
        let etp = etp.unwrap_or(tp);
        let of_experts = u64::from(etp) * u64::from(ep) * u64::from(pp);
        if u64::from(world) % of_experts != 0 {
            let cause = format!(
                "{world} ranks are no multiple of etp {etp} × ep {ep} × pp {pp} = {of_experts}, so experts cannot be spread over them"
            );
            return refused("--ep", cause, "use an --ep and --etp that divide the ranks of a stage");
        }
        let edp = world / u32::try_from(of_experts).unwrap_or(u32::MAX);
        if parallel.rank >= world {
            let cause = format!("there is no rank {} of {world}", parallel.rank);
            return Err(Problem::in_option("--rank", cause).mend(format!("use 0 to {}", world - 1)));
        }
        Ok(Mesh { world, tp, cp, dp, pp, ep, etp, edp, gpus_per_node: parallel.gpus_per_node })
    }

    /// Where a rank stands.
    pub fn place(&self, rank: u32) -> Place {
        let tp = rank % self.tp;
        let cp = rank / self.tp % self.cp;
        let dp = rank / (self.tp * self.cp) % self.dp;
        let of_stage = self.tp * self.replicas();
        let (pp, within_stage) = (rank / of_stage, rank % of_stage);
        Place { pp, dp, cp, tp, ep: within_stage / self.etp % self.ep }
    }

    /// The ranks that run a stage on other tokens: those of data and context parallel.
    pub fn replicas(&self) -> u32 {
        self.dp * self.cp
    }

    /// Which of the [`replicas`](Mesh::replicas) a rank is.
    pub(crate) fn replica_of(&self, rank: u32) -> u32 {
        let place = self.place(rank);
        place.dp * self.cp + place.cp
    }

    /// The first rank of the tensor parallel group that stands there.
    pub(crate) fn rank_at(&self, stage: u32, dp: u32, cp: u32) -> u32 {
        ((stage * self.dp + dp) * self.cp + cp) * self.tp
    }

    /// Ranks that the parameters of a layer, experts aside, are sharded over.
    pub fn shards(&self, parallel: &Parallel) -> u32 {
        let replicas = self.replicas();
        match parallel.sharding {
            Sharding::Replicated => 1,
            Sharding::HybridShard => replicas.min(match parallel.dp_shard_size {
                Some(size) => size.saturating_mul(self.cp),
                None => self.replicas_of_a_node(),
            }),
            _ => replicas,
        }
    }

    /// Ranks that the parameters of experts are sharded over: of those that the rest is, the ones that have the same experts
    /// (`DistributedConfig.efsdp_size`, transformers).
    pub fn shards_of_experts(&self, parallel: &Parallel) -> u32 {
        (self.shards(parallel) * self.tp / (self.etp * self.ep)).max(1)
    }

    /// Data parallel ranks on a node, whose tensor parallel groups lie within it.
    fn replicas_of_a_node(&self) -> u32 {
        (self.gpus_per_node / self.tp).max(1)
    }
}

fn no_world(gpus: u32, product: String, ranks: u64) -> Problem {
    let cause = format!("{gpus} GPUs, but {product} = {ranks}");
    let mend = "the world is tp × cp × dp × pp: change a size, or leave out --gpus or --dp";
    Problem::in_option("--gpus", cause).mend(mend)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(parallel: Parallel) -> Result<Mesh, String> {
        Mesh::of(&parallel).map_err(|problem| problem.to_string())
    }

    #[test]
    fn data_parallel_is_what_is_left() {
        let parallel = Parallel { gpus: Some(64), tp: 4, pp: 2, cp: 2, ..Parallel::default() };
        assert_eq!(mesh(parallel.clone()).map(|mesh| (mesh.world, mesh.dp)), Ok((64, 4)));
        let alone = Parallel { gpus: None, ..parallel };
        assert_eq!(mesh(alone).map(|mesh| (mesh.world, mesh.dp)), Ok((16, 1)));
    }

    #[test]
    fn an_equation_that_does_not_hold_is_filled_in() {
        let parallel = Parallel { gpus: Some(16), tp: 4, pp: 2, dp: Some(4), ..Parallel::default() };
        let said = mesh(parallel).unwrap_err();
        assert!(said.contains("16 GPUs, but tp 4 × cp 1 × dp 4 × pp 2 = 32"), "{said}");
        let said = mesh(Parallel { gpus: Some(6), tp: 4, ..Parallel::default() }).unwrap_err();
        assert!(said.contains("6 GPUs, but tp 4 × cp 1 × pp 1 = 4"), "{said}");
        let said = mesh(Parallel { gpus: Some(8), ep: 3, ..Parallel::default() }).unwrap_err();
        assert!(said.contains("8 ranks are no multiple of etp 1 × ep 3 × pp 1 = 3"), "{said}");
        let said = mesh(Parallel { tp: 0, ..Parallel::default() }).unwrap_err();
        assert!(said.contains("0 is no number of ranks"), "{said}");
        let said = mesh(Parallel { gpus: Some(8), rank: 8, ..Parallel::default() }).unwrap_err();
        assert!(said.contains("there is no rank 8 of 8"), "{said}");
        let huge = Parallel { tp: 1 << 20, pp: 1 << 20, dp: Some(1 << 20), ..Parallel::default() };
        assert!(mesh(huge).unwrap_err().contains("more than 1048576 ranks"));
    }

    #[test]
    fn neighbours_are_of_one_tensor_parallel_group() {
        let mesh =
            mesh(Parallel { gpus: Some(16), tp: 2, pp: 2, ep: 2, etp: Some(1), ..Parallel::default() })
                .unwrap();
        assert_eq!(mesh.place(0), Place { pp: 0, dp: 0, cp: 0, tp: 0, ep: 0 });
        assert_eq!(mesh.place(1), Place { pp: 0, dp: 0, cp: 0, tp: 1, ep: 1 });
        assert_eq!(mesh.place(2), Place { pp: 0, dp: 1, cp: 0, tp: 0, ep: 0 });
        assert_eq!(mesh.place(8), Place { pp: 1, dp: 0, cp: 0, tp: 0, ep: 0 });
    }
}
