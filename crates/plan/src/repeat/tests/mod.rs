//! Whether a tape of which parts are written down again is the one that running all of it leaves, to the byte.

mod many_cards;
mod micro_batches;
mod one_card;
mod zero2;
mod zero3;

use crate::config::Architecture;
use crate::model::FAMILIES;
use crate::options::{HoldOutputs, Offload, Options};
use crate::plan::{At, Plan, PlannedPhase, StepPlan};
use crate::step::{Few, Outcome, run_alike, run_all};
use peakledger_input::Source;

const LENGTH: u64 = 20;
const FEW: Few = Few { layers: true, micro_batches: true };

/// What of a step of which little was run is not what the whole step has: its storages, its sums, who stands at its peaks.
fn difference(
    architecture: &Architecture,
    options: &Options,
    few: Outcome,
    whole: Outcome,
) -> Option<String> {
    let is_all_run = few.folded.is_whole();
    match few.folded.unfolded() {
        None if is_all_run && few.folded.run == whole.folded.run => {}
        Some(tape) if tape == whole.folded.run => {}
        None => return Some("cannot be written down".to_owned()),
        Some(_) => return Some("another tape".to_owned()),
    }
    if StepPlan::both(&few.folded).is_none() {
        return Some("cannot be counted".to_owned());
    }
    let plan = |outcome| Plan::of(architecture.clone(), options.clone(), LENGTH, outcome).unwrap();
    let [few, whole] = [few, whole].map(plan);
    for (few_step, step) in [(&few.first, &whole.first), (&few.steady, &whole.steady)] {
        if few_step.timeline != step.timeline {
            return Some("another timeline".to_owned());
        }
        for (few_phase, phase) in few_step.phases.iter().zip(&step.phases) {
            let [a, b] =
                [few_phase, phase].map(|phase| format!("{:?}", PlannedPhase { run: None, ..phase.clone() }));
            if a != b {
                return Some(format!("another {} phase: {a}, not {b}", step.step.as_str()));
            }
            let [a, b] = [(&few, few_step, few_phase), (&whole, step, phase)]
                .map(|(plan, step, phase)| plan.contributors_at(At { step, phase }));
            if a != b {
                return Some(format!("others stand in {}: {a:?}, not {b:?}", phase.phase));
            }
        }
    }
    None
}

/// What is added is held against how what was run grows: of no storage may there be one too many or too few.
#[test]
fn no_other_sum_is_taken() {
    let architecture = config("llama", 15, "");
    let options = Options {
        seq_len: Some(LENGTH),
        gradient_accumulation_steps: 9,
        hold_outputs: HoldOutputs::Step,
        offload: Offload { optimizer: true, ..Offload::default() },
        ..Options::default()
    };
    let mut folded = run_alike(&architecture, &options, LENGTH, FEW).unwrap().unwrap().folded;
    assert!(StepPlan::both(&folded).is_some());
    let mut refused = 0;
    for at in 0..folded.more.len() {
        let right = folded.more[at].copies;
        for wrong in [right - 1, right + 1] {
            folded.more[at].copies = wrong;
            assert!(StepPlan::both(&folded).is_none(), "{wrong} of {:?}", folded.more[at]);
            refused += 1;
        }
        folded.more[at].copies = right;
    }
    assert!(refused > 100, "{refused}");
}

/// A small model of a family.
fn config(family: &str, layers: u32, more: &str) -> Architecture {
    let keys = if family == "deepseek_v3" { 4 } else { 2 };
    let text = format!(
        r#"{{"model_type": "{family}", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": {layers},
             "num_attention_heads": 4, "num_key_value_heads": {keys}, "head_dim": 8, "max_position_embeddings": 64,
             "sliding_window": 8 {more}}}"#
    );
    Architecture::read(&Source::from_text("config.json", text)).unwrap()
}

/// Each family, with layers of several kinds where it has such.
fn architectures() -> Vec<Architecture> {
    let plain = FAMILIES.iter().map(|family| match family.model_type {
        family @ "gemma2" => config(family, 27, ""),
        family @ "gemma3_text" => config(family, 43, r#", "sliding_window_pattern": 3"#),
        family @ "deepseek_v3" => config(family, 18, r#", "first_k_dense_replace": 3"#),
        family => config(family, 15, ""),
    });
    let own = [
        config("qwen2", 21, r#", "use_sliding_window": true, "max_window_layers": 6"#),
        config("qwen3_moe", 27, r#", "decoder_sparse_step": 2"#),
        config("qwen3_moe", 17, r#", "mlp_only_layers": [0, 1]"#),
    ];
    plain.chain(own).collect()
}
