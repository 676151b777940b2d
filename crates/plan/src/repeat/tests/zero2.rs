//! Under ZeRO 1 and 2, whose flat buffer ends a rank's part in the middle of a layer, and whose buckets are full at another
//! place of each.

use super::*;
use crate::catalogue::open_model;
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
    let several = |options: &Options| Options { gradient_accumulation_steps: 6, ..options.clone() };
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
        Options { lora: Some(lora.clone()), ..several(plain) },
        Options { lora: Some(lora), ..full.clone() },
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

/// Layers with adapters under DeepSpeed that are not alike where they are compared: all is run.
fn is_known(family: &str, options: &Options) -> bool {
    let is_odd = ["gpt2", "gpt_neox"].contains(&family) || options.recompute != Recompute::None;
    is_odd && options.lora.is_some()
}

/// What was wrong of how many, and how many were counted without being written down.
#[derive(Default)]
struct Met {
    wrong: Vec<String>,
    all: usize,
    counted: usize,
}

impl Met {
    fn meet(&mut self, architecture: &Architecture, options: &Options) {
        let whole = run_all(architecture, options, LENGTH).unwrap();
        self.all += 1;
        let family = architecture.family.model_type;
        let said = match run_alike(architecture, options, LENGTH, FEW).unwrap() {
            Some(few) if few.layers_left_out < 2 => Some("all run".to_owned()),
            Some(few) if options.gradient_accumulation_steps > 1 && few.folded.rounds.is_none() => {
                Some("all micro-batches run".to_owned())
            }
            Some(few) => {
                let few = written_where_it_is_the_most(few);
                self.counted += usize::from(!few.folded.is_whole());
                difference(architecture, options, few, whole)
            }
            None if is_known(family, options) => None,
            None => Some("not repeated".to_owned()),
        };
        self.wrong.extend(said.map(|said| format!("{family}: {said} with {options:?}")));
    }

    /// Nothing was wrong, and of so many in a hundred no tape was written down.
    #[track_caller]
    fn are_right(&self, counted: usize) {
        let Met { wrong, all, .. } = self;
        assert!(wrong.is_empty(), "{} of {all}: {:#?}", wrong.len(), wrong.get(..4).unwrap_or(wrong));
        assert!(*all > 0, "nothing was compared");
        assert!(self.counted * 100 >= all * counted, "{} of {all}", self.counted);
    }
}

#[test]
fn what_goes_by_the_bounds_of_parts_is_put_in_its_place() {
    let mut met = Met::default();
    for (number, architecture) in architectures().into_iter().enumerate() {
        for (at, bucket) in BUCKETS.into_iter().enumerate() {
            // each family meets each bucket with one of the ranks, llama with all of them
            let is_llama = architecture.family.model_type == "llama";
            let is_met = |which: usize| is_llama || (number + at) % RANKS.len() == which;
            for (_, rank) in RANKS.iter().enumerate().filter(|(which, _)| is_met(*which)) {
                for options in variants(&zero(Sharding::Zero2, *rank, bucket)) {
                    met.meet(&architecture, &options);
                }
            }
        }
    }
    met.are_right(50);
}

#[test]
fn stage_1_looks_at_gradients_when_all_have_come() {
    let mut met = Met::default();
    for (architecture, rank) in architectures().into_iter().zip(RANKS.iter().cycle()) {
        variants(&zero(Sharding::Zero1, *rank, 7_000)).iter().for_each(|it| met.meet(&architecture, it));
    }
    met.are_right(80);
}

/// Layers that have gradients larger than a bucket of the usual size, which go by themselves.
#[test]
fn large_layers_are_counted() {
    let mut config: serde_json::Value =
        serde_json::from_str(open_model("llama-3.1-405b").unwrap().config.text()).unwrap();
    config["num_hidden_layers"] = 24.into();
    let large = Architecture::read(&Source::from_text("config.json", config.to_string())).unwrap();
    let usual = ZeroSizes::default().reduce_bucket_size;
    let mut met = Met::default();
    for rank in [(64, 0), (64, 1), (24, 23)] {
        variants(&zero(Sharding::Zero2, rank, usual)).iter().for_each(|it| met.meet(&large, it));
    }
    met.are_right(80);
}
