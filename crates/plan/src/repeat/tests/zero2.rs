//! Under ZeRO 1 and 2, whose flat buffer ends a rank's part in the middle of a layer, and whose buckets are full at another
//! place of each.

use super::*;
use crate::options::{Lora, Precision, Recompute};
use crate::parallel::{DataParallel, Parallel, Sharding, ZeroSizes};
use crate::repeat::Folded;
use crate::torch::Dtype;

/// Ranks, and which of them: parts that end with layers and parts that do not.
const RANKS: [(u32, u32); 7] = [(2, 1), (3, 1), (4, 0), (5, 4), (7, 3), (16, 9), (64, 20)];

/// Numbers of a bucket: most gradients are larger, a layer has several, several layers have one, there is but one.
const BUCKETS: [u64; 4] = [1_000, 7_000, 30_000, 500_000_000];

fn zero(sharding: Sharding, (dp, rank): (u32, u32), reduce_bucket_size: u64) -> Options {
    let zero = ZeroSizes { reduce_bucket_size, ..ZeroSizes::default() };
    let data = DataParallel { zero, ..DataParallel::default() };
    Options {
        precision: Precision::Bf16Mixed,
        seq_len: Some(LENGTH),
        parallel: Parallel { dp: Some(dp), rank, sharding, data, ..Parallel::default() },
        ..Options::default()
    }
}

/// A step, and what changes it.
fn variants(plain: &Options) -> Vec<Options> {
    let several = |options: &Options| Options { gradient_accumulation_steps: 3, ..options.clone() };
    let full = Options { recompute: Recompute::Full, clip_grad_norm: true, ..plain.clone() };
    let on_host = Offload { optimizer: true, ..Offload::default() };
    let in_fp32 = Options { grad_dtype: Some(Dtype::F32), ..plain.clone() };
    let lora = Lora { rank: 4, dropout: 0.1, ..Lora::default() };
    let mut overlapping = plain.clone();
    overlapping.parallel.data.zero.overlap_comm = Some(true);
    vec![
        plain.clone(),
        several(plain),
        full.clone(),
        Options { offload: on_host, ..plain.clone() },
        Options { offload: on_host, ..several(&full) },
        in_fp32.clone(),
        several(&in_fp32),
        Options { lora: Some(lora.clone()), ..plain.clone() },
        Options { lora: Some(lora), ..several(&full) },
        Options { hold_outputs: HoldOutputs::Step, ..several(&overlapping) },
        Options { precision: Precision::Bf16, ..overlapping },
        Options { precision: Precision::Fp32, ..plain.clone() },
    ]
}

/// Where what was postponed may be the most that is there, a plan is read off the whole tape.
fn written_where_it_is_the_most(few: Outcome) -> Outcome {
    if few.folded.postponed.is_none() || StepPlan::both(&few.folded).is_some() {
        return few;
    }
    Outcome { folded: Folded::of(few.folded.unfolded().unwrap()), ..few }
}

#[test]
fn what_goes_by_the_bounds_of_parts_is_put_in_its_place() {
    let (mut wrong, mut met, mut counted) = (Vec::new(), 0, 0);
    for (number, architecture) in architectures().into_iter().enumerate() {
        for (at, bucket) in BUCKETS.into_iter().enumerate() {
            // each family meets each bucket with one of the ranks, llama with all of them
            let ranks = RANKS.iter().enumerate();
            let is_met = |which: usize| {
                architecture.family.model_type == "llama" || (number + at) % RANKS.len() == which
            };
            for (_, rank) in ranks.filter(|(which, _)| is_met(*which)) {
                for sharding in [Sharding::Zero1, Sharding::Zero2] {
                    for (variant, options) in variants(&zero(sharding, *rank, bucket)).into_iter().enumerate()
                    {
                        let Ok(whole) = run_all(&architecture, &options, LENGTH) else { continue };
                        met += 1;
                        let said = match run_alike(&architecture, &options, LENGTH, FEW).unwrap() {
                            Some(few) if few.layers_left_out < 2 => Some("all run".to_owned()),
                            Some(few) => {
                                let few = written_where_it_is_the_most(few);
                                counted += usize::from(!few.folded.is_whole() && sharding == Sharding::Zero2);
                                difference(&architecture, &options, few, whole)
                            }
                            None => Some("not repeated".to_owned()),
                        };
                        let family = architecture.family.model_type;
                        wrong.extend(said.map(|said| {
                            format!("{family}: {said:.70} variant {variant} {sharding:?} {rank:?} {bucket}")
                        }));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {met}: {:#?}", wrong.len(), &wrong);
    assert!(met > 1_000 && counted > met / 8, "{counted} of {met}");
}
