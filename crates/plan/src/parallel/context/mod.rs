//! Context parallel on transformers' modules, as accelerate and `Trainer` run it: ranks share a sequence, and attention goes
//! round (`torch/ops/ring.rs`). FSDP2 shards parameters over data and context parallel ranks together (`dp_shard_cp`).

mod check;
mod inputs;
mod words;

pub(crate) use check::check;
pub(crate) use inputs::shared_out;
pub(crate) use words::rule;

use crate::config::Shape;
use crate::model::Attend;
use crate::options::Options;
use crate::parallel::Stack;
use crate::torch::ops::{Group, Ring, SdpaKernel};

/// The memory-efficient kernel pads log-sums to a multiple of that, which torch could not merge (`kAlignLSE`).
const LOG_SUMS: u64 = 32;

impl Options {
    /// What the tokens of a sequence have to be a multiple of, for ranks to share it evenly.
    pub(crate) fn length_unit(&self, shape: &Shape) -> u64 {
        let parallel = &self.parallel;
        let [tp, cp] = [parallel.tp, parallel.cp].map(u64::from);
        let by_norms = if parallel.sp { tp * cp } else { 1 };
        let parts = match (cp, parallel.cp_load_balance) {
            (0 | 1, _) => 1,
            (_, Some(false)) => cp,
            _ => 2 * cp,
        };
        let pads = cp > 1
            && matches!(
                Attend::choose(shape, self),
                Attend::Sdpa { kernel: SdpaKernel::MemoryEfficient, ring: Some(_), .. }
            );
        let parts = if pads { parts * LOG_SUMS } else { parts };
        by_norms / common_divisor(by_norms, parts) * parts
    }

    /// The ranks that share a sequence of so many tokens on transformers' modules, where there are several.
    pub(crate) fn ring(&self, length: u64) -> Option<Ring> {
        let parallel = &self.parallel;
        let mesh = self.mesh().ok().filter(|mesh| mesh.cp > 1 && self.stack == Stack::Transformers)?;
        let divides = length.is_multiple_of(2 * u64::from(mesh.cp)); // `_create_default_load_balancer`
        Some(Ring {
            group: Group::new(mesh.context_peers(), mesh.place(parallel.rank).cp),
            rotate: parallel.cp_rotate,
            is_balanced: parallel.cp_load_balance.unwrap_or(divides),
        })
    }
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::open_model;
    use crate::config::Architecture;
    use crate::options::Precision;
    use crate::parallel::Parallel;

    #[test]
    fn a_sequence_is_as_long_as_ranks_can_share_it() {
        let shape = Architecture::read(&open_model("llama-3.2-1b").unwrap().config).unwrap().shape;
        let unit = |parallel, precision| {
            Options { parallel, precision, expand_kv: true, ..Options::default() }.length_unit(&shape)
        };
        let cp = || Parallel { cp: 3, ..Parallel::default() };
        assert_eq!(unit(Parallel::default(), Precision::Bf16), 1);
        assert_eq!(unit(cp(), Precision::Bf16), 6);
        assert_eq!(unit(Parallel { cp_load_balance: Some(false), ..cp() }, Precision::Bf16), 3);
        assert_eq!(unit(cp(), Precision::Fp32), 192);
        let split = Parallel { tp: 4, sp: true, ..Parallel::default() };
        assert_eq!(unit(split.clone(), Precision::Bf16), 4);
        let both =
            Options { stack: Stack::Megatron, parallel: Parallel { cp: 3, ..split }, ..Options::default() };
        assert_eq!(both.length_unit(&shape), 12);
    }
}
