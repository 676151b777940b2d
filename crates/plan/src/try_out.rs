//! One configuration among many: what it takes of a card and how long its step takes in theory. No plan is kept, so that
//! ten thousand of them take no more memory than one.

use crate::catalogue::Card;
use crate::config::Architecture;
use crate::fit::{Extent, Short};
use crate::options::Options;
use crate::parallel::Look;
use crate::{Plan, RankCosts, Step, Verdict};
use peakledger_core::Bytes;
use peakledger_input::Problem;
use std::ops::ControlFlow;

/// What is known of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The rank that needs most by the verdict that was asked for; of several that of the first class.
    pub rank: u32,
    /// Its device-level peak.
    pub device_peak: Bytes,
    /// What that rank takes of the card, by the verdict that was asked for.
    pub verdict: Verdict,
    /// What of that lies outside the allocator.
    pub outside: Bytes,
    /// What the steady step costs the rank that takes longest, and how long the step takes.
    pub slowest: RankCosts,
    /// Whether every rank's whole step was planned, so that no verdict on more of it can be another.
    pub is_whole: bool,
}

/// Plans a configuration, of every class of ranks that may need most once, as far as its device peak and its costs stand on it; what
/// a rank takes of the card is the caller's word.
///
/// # Errors
/// Names the option that cannot be, or the sum that does not fit into 64 bits.
pub fn try_out(
    architecture: &Architecture,
    options: Options,
    card: &Card,
    mut verdict: impl FnMut(&Plan) -> Verdict,
) -> Result<Tried, Problem> {
    match try_out_to(architecture, options, card, Extent::Peak, |plan| Some(verdict(plan)))? {
        Some(tried) => Ok(tried),
        None => unreachable!("a world has a rank, and each a verdict"),
    }
}

/// Plans all of a configuration, for a verdict that runs the caching allocator: every micro-batch, and every class of ranks,
/// whose allocator is asked as `plan` asks it. Where there is no verdict on a rank, no other is planned, and nothing comes of it.
///
/// # Errors
/// Names the option that cannot be, or the sum that does not fit into 64 bits.
pub fn try_out_replayed(
    architecture: &Architecture,
    options: Options,
    card: &Card,
    verdict: impl FnMut(&Plan) -> Option<Verdict>,
) -> Result<Option<Tried>, Problem> {
    try_out_to(architecture, options, card, Extent::Replay, verdict)
}

fn try_out_to(
    architecture: &Architecture,
    options: Options,
    card: &Card,
    extent: Extent,
    mut verdict: impl FnMut(&Plan) -> Option<Verdict>,
) -> Result<Option<Tried>, Problem> {
    let is_whole = extent == Extent::Replay || extent.is_whole(architecture, &options)?;
    let (mut slowest, mut worst): (Option<RankCosts>, Option<([Bytes; 3], Tried)>) = (None, None);
    Short::of_each(architecture, options, extent, |short, look| {
        let costs = RankCosts::of(short.plan(), Step::Steady, card.speeds.as_ref());
        slowest = Some(slowest.map_or(costs, |slowest| slowest.or_slower(costs)));
        if look == Look::First {
            return ControlFlow::Continue(());
        }
        let Some(verdict) = verdict(short.plan()) else {
            worst = None;
            return ControlFlow::Break(());
        };
        let plan = short.plan();
        let (rank, outside) = (plan.options.parallel.rank, plan.outside(Some(card)));
        let this =
            Tried { rank, device_peak: short.device_peak(), verdict, outside, slowest: costs, is_whole };
        let needs = plan.needs(verdict.needed, None);
        if worst.is_none_or(|(most, _)| needs > most) {
            worst = Some((needs, this));
        }
        ControlFlow::Continue(())
    })?;
    Ok(worst.zip(slowest).map(|((_, worst), slowest)| Tried { slowest, ..worst }))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::catalogue::card;
    use crate::options::{Precision, Recompute};
    use crate::parallel::{Parallel, Schedule, Sharding, Shown, Stack, plan_ranks};
    use crate::{Dtype, Fit};
    use peakledger_input::Source;

    pub(crate) fn model() -> Architecture {
        let config = r#"{"model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 8, "num_attention_heads": 4, "max_position_embeddings": 64}"#;
        Architecture::read(&Source::from_text("config.json", config)).unwrap()
    }

    fn piped(pp: u32, micro_batches: u32) -> Options {
        Options {
            seq_len: Some(32),
            gradient_accumulation_steps: micro_batches,
            precision: Precision::Bf16,
            parallel: Parallel { pp, ..Parallel::default() },
            ..Options::default()
        }
    }

    /// What is known of a configuration is what whole plans of all its ranks have: also where stages are left out that need no
    /// more than another.
    #[test]
    fn it_has_what_whole_plans_have() {
        let card = card("h100-80gb").unwrap();
        let of = |pp, micro_batches, change: fn(&mut Options)| {
            let mut options = piped(pp, micro_batches);
            change(&mut options);
            options
        };
        let sharded = |pp, micro_batches, dp, sharding| {
            let mut options = piped(pp, micro_batches);
            options.parallel = Parallel { dp: Some(dp), sharding, ..options.parallel };
            options
        };
        for options in [
            piped(1, 1),
            piped(1, 7),
            piped(4, 12),
            piped(8, 3),
            piped(8, 20),
            of(2, 9, |options| options.recompute = Recompute::Full),
            of(8, 12, |options| options.recompute = Recompute::Selective),
            of(4, 8, |options| options.recompute = Recompute::Layers("1-5".parse().unwrap())),
            of(4, 3, |options| options.offload.activations = true),
            of(4, 12, |options| options.offload.activations = true),
            of(8, 5, |options| {
                options.offload.activations = true;
                options.offload_prefetch = 0;
            }),
            of(8, 20, |options| {
                options.offload.activations = true;
                options.recompute = Recompute::Full;
            }),
            of(4, 9, |options| {
                options.offload.activations = true;
                options.offload_prefetch = 2;
                options.recompute = Recompute::Selective;
            }),
            of(4, 9, |options| {
                options.offload.activations = true;
                options.offload_prefetch = 2;
                options.parallel.schedule = Schedule::Gpipe;
            }),
            of(4, 32, |options| {
                options.offload.activations = true;
                options.parallel.schedule = Schedule::Interleaved;
                options.parallel.virtual_stages = 2;
            }),
            of(4, 6, |options| options.parallel.schedule = Schedule::Gpipe),
            of(4, 8, |options| options.parallel.schedule = Schedule::ZbH1),
            of(4, 8, |options| options.parallel.schedule = Schedule::ZbH2),
            of(4, 8, |options| options.parallel.schedule = Schedule::DualPipe),
            of(4, 8, |options| {
                options.parallel.schedule = Schedule::Interleaved;
                options.parallel.virtual_stages = 2;
            }),
            of(4, 32, |options| {
                options.parallel.schedule = Schedule::Interleaved;
                options.parallel.virtual_stages = 2;
            }),
            sharded(4, 9, 4, Sharding::Zero1),
            sharded(4, 9, 2, Sharding::FullShard),
            sharded(8, 8, 2, Sharding::FullShard),
            sharded(8, 7, 2, Sharding::FullShard),
            of(8, 30, |options| {
                options.parallel.dp = Some(4);
                options.parallel.dp_shard_size = Some(2);
                options.parallel.sharding = Sharding::HybridShard;
                options.precision = Precision::Bf16Mixed;
                options.recompute = Recompute::Full;
            }),
            of(4, 4, |options| {
                options.parallel.dp = Some(2);
                options.parallel.sharding = Sharding::ShardGradOp;
                options.parallel.schedule = Schedule::Gpipe;
                options.recompute = Recompute::Selective;
                options.precision = Precision::Bf16Mixed;
            }),
            of(8, 12, |options| {
                options.parallel.dp = Some(2);
                options.parallel.sharding = Sharding::ShardGradOp;
                options.offload.activations = true;
                options.clip_grad_norm = true;
            }),
            // in the warm-up FSDP gathers less than later on
            sharded(4, 15, 2, Sharding::ShardGradOp),
            sharded(8, 20, 2, Sharding::FullShard),
            of(4, 32, |options| {
                options.parallel.dp = Some(2);
                options.parallel.sharding = Sharding::FullShard;
                options.parallel.schedule = Schedule::Interleaved;
                options.parallel.virtual_stages = 2;
            }),
            of(4, 9, |options| options.parallel.tp = 2),
            // of two stages on a node, the fourth is the first between others that sends over a slow network
            of(8, 12, |options| {
                options.parallel.tp = 2;
                options.parallel.network_bits_per_second = Some(1_000_000);
            }),
            of(8, 12, |options| {
                options.parallel.gpus_per_node = 3;
                options.parallel.network_bits_per_second = Some(1_000_000);
            }),
            sharded(1, 2, 5, Sharding::Zero1),
            of(1, 1, |options| {
                options.precision = Precision::Bf16Mixed;
                options.parallel.dp = Some(3);
                options.parallel.sharding = Sharding::Zero2;
            }),
            of(1, 3, |options| {
                options.parallel.dp = Some(7);
                options.parallel.tp = 2;
                options.parallel.sharding = Sharding::Zero2;
            }),
            sharded(1, 2, 3, Sharding::Zero3),
            sharded(2, 4, 3, Sharding::Zero1),
            of(4, 9, |options| {
                options.precision = Precision::Bf16Mixed;
                options.clip_grad_norm = true;
            }),
            of(8, 18, |options| {
                options.stack = Stack::Megatron;
                options.grad_dtype = Some(Dtype::F32);
                options.master_weights = Some(Dtype::F32);
                options.parallel.dp = Some(2);
                options.parallel.tp = 2;
                options.parallel.sharding = Sharding::Zero1;
            }),
        ] {
            let verdict = |plan: &Plan| Verdict::of(plan, &card, None);
            let tried = try_out(&model(), options.clone(), &card, verdict).unwrap();
            let look = |plan: &Plan| {
                let costs = RankCosts::of(plan, Step::Steady, card.speeds.as_ref());
                (plan.needs(verdict(plan).needed, None), costs)
            };
            let ranks = plan_ranks(&model(), &options, Shown::Worst, look).unwrap();
            assert_eq!(tried.verdict, verdict(&ranks.plan), "{options:?}");
            assert_eq!(tried.device_peak, ranks.plan.device_peak_in(None).phase.device_peak, "{options:?}");
            let slowest = ranks.each.iter().map(|(_, costs)| *costs).reduce(RankCosts::or_slower);
            assert_eq!(Some(tried.slowest), slowest, "{options:?}");
            let replayed = try_out_replayed(&model(), options.clone(), &card, |plan| Some(verdict(plan)));
            let replayed = replayed.unwrap().unwrap();
            assert_eq!((replayed.verdict, replayed.slowest), (tried.verdict, tried.slowest), "{options:?}");
            let fit = Fit::of(&model(), options.clone(), &card, &verdict, &verdict).unwrap();
            assert_eq!(fit.slowest, tried.slowest, "{options:?}");
        }
    }

    #[test]
    fn a_batch_is_dealt_out_or_refused() {
        let of = |micro_batch_size, gpus, tp, sequences| {
            let parallel = Parallel { gpus: Some(gpus), tp, ..Parallel::default() };
            let options = Options { micro_batch_size, parallel, ..Options::default() };
            let options = options.of_sequences(sequences);
            options.map(|options| {
                assert_eq!(options.sequences().unwrap(), sequences);
                options.gradient_accumulation_steps
            })
        };
        assert_eq!(of(1, 16, 8, 64).unwrap(), 32);
        assert_eq!(of(4, 16, 1, 64).unwrap(), 1);
        for (micro_batch, sequences) in [(8, 64), (3, 64), (1, 0)] {
            let said = of(micro_batch, 16, 1, sequences).unwrap_err().to_string();
            assert!(said.contains(&format!("× dp 16 = {}", micro_batch * 16)), "{said}");
        }
    }
}
