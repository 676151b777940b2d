//! Data parallel beside tensor parallel: what shares out a model shares out what tensor parallel leaves a rank. That a rank's
//! step is what torch runs with FSDP2 over tensor parallel is held in `sharded.rs`.

use peakledger_core::{Category, Phase};
use peakledger_input::Source;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::{Options, Precision};
use peakledger_plan::parallel::{Parallel, Sharding};
use peakledger_plan::{Plan, PlannedPhase, plan};

/// Numbers that a rank of 2 has: half the embedding and the head, of the four square matrices and of the three of the MLP.
const MATRICES: u64 = 2 * 500 * 64 + 4 * 32 * 64 + 3 * 48 * 64;
/// Three norms, which all have.
const NORMS: u64 = 3 * 64;
/// Two rotary tables of a block each.
const TABLES: u64 = 1024;

fn planned(dp: u32, sharding: Sharding) -> Plan {
    asked(Parallel { tp: 2, dp: Some(dp), sharding, ..Parallel::default() }).unwrap()
}

fn asked(parallel: Parallel) -> Result<Plan, String> {
    let config = r#"{"model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 256, "tie_word_embeddings": false}"#;
    let architecture = Architecture::read(&Source::from_text("config.json", config.to_owned())).unwrap();
    let (seq_len, precision) = (Some(96), Precision::Bf16);
    let options = Options { micro_batch_size: 2, seq_len, precision, parallel, ..Options::default() };
    plan(architecture, options).map_err(|problem| problem.to_string())
}

fn phase(plan: &Plan, phase: Phase) -> &PlannedPhase {
    plan.steady.phases.iter().find(|planned| planned.phase == phase).unwrap()
}

fn held(plan: &Plan, of: Phase, category: Category) -> u64 {
    phase(plan, of).by_category.get(category).get()
}

fn sent(plan: &Plan) -> u128 {
    plan.steady.phases.iter().map(|phase| phase.costs.communicated()).sum()
}

/// To whole blocks.
fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(512) * 512
}

/// What tensor parallel ranks send by themselves.
fn of_tensor_parallel() -> u128 {
    sent(&asked(Parallel { tp: 2, ..Parallel::default() }).unwrap())
}

#[test]
fn fsdp_shares_out_the_part_of_a_rank() {
    // of 5 ranks the first has 100 rows of 500, 7 of 32, 10 of 48 and 13 of 64; norms, rows of one number, are a block each
    let plan = planned(5, Sharding::FullShard);
    let rows = [(100, 64), (100, 64), (7, 64), (7, 64), (7, 64), (13, 32), (10, 64), (10, 64), (13, 48)];
    let matrices: u64 = rows.iter().map(|(rows, width)| blocks(rows * width * 2)).sum();
    assert_eq!(held(&plan, Phase::ZeroGrad, Category::Parameter), matrices + 3 * 512 + TABLES);
    let whole = planned(1, Sharding::FullShard);
    let of_one = held(&whole, Phase::ZeroGrad, Category::Parameter) - TABLES;
    assert_eq!(of_one, 2 * MATRICES + 3 * 512);
    // of 2 a half; that of the embedding and of the head ends within a block
    let half = held(&planned(2, Sharding::FullShard), Phase::ZeroGrad, Category::Parameter);
    assert_eq!(half, MATRICES + 2 * 256 + 3 * 512 + TABLES);
}

#[test]
fn what_fsdp_sends_is_sent_beside_what_tensor_parallel_sends() {
    // parameters come for forward, those of the embedding and of the layer again for backward, and gradients go, each half of it
    let (embedding, tail) = (500 * 64, 500 * 64 + 64);
    let layer = MATRICES + NORMS - embedding - tail;
    let numbers = 3 * (embedding + layer) + 2 * tail;
    assert_eq!(sent(&planned(2, Sharding::FullShard)), of_tensor_parallel() + u128::from(2 * numbers / 2));
    // HSDP: of 16 ranks on nodes of 8 groups of 2 share out over 4, and sums go between the nodes
    let hybrid =
        asked(Parallel { tp: 2, dp: Some(8), sharding: Sharding::HybridShard, ..Parallel::default() });
    let held_by_one = held(&hybrid.unwrap(), Phase::ZeroGrad, Category::Parameter);
    assert_eq!(held_by_one, held(&planned(4, Sharding::FullShard), Phase::ZeroGrad, Category::Parameter));
}

#[test]
fn ddp_sums_the_gradients_of_the_part() {
    let plan = planned(2, Sharding::Replicated);
    let numbers = MATRICES + NORMS;
    assert_eq!(held(&plan, Phase::ZeroGrad, Category::Parameter), 2 * MATRICES + 3 * 512 + TABLES);
    assert_eq!(held(&plan, Phase::ZeroGrad, Category::CommunicationBuffer), blocks(2 * numbers));
    assert_eq!(sent(&plan), of_tensor_parallel() + u128::from(blocks(2 * numbers)), "2 × 1/2 of each byte");
}

#[test]
fn zero_flattens_the_part() {
    let part = (MATRICES + NORMS) / 2;
    for sharding in [Sharding::Zero1, Sharding::Zero2] {
        let plan = planned(2, sharding);
        assert_eq!(held(&plan, Phase::ZeroGrad, Category::Parameter), blocks(2 * 2 * part) + TABLES);
        assert_eq!(held(&plan, Phase::ZeroGrad, Category::MasterWeight), blocks(2 * part));
        assert_eq!(held(&plan, Phase::ZeroGrad, Category::OptimizerState), 2 * blocks(2 * part));
        // gradients are summed, 2 × 1/2 of each byte, and parameters gathered, 1/2
        assert_eq!(sent(&plan), of_tensor_parallel() + u128::from(3 * 2 * part));
    }
}

/// More ranks take no more of any phase than fewer.
#[test]
fn sharing_out_over_more_ranks_takes_no_more() {
    for sharding in [Sharding::FullShard, Sharding::ShardGradOp, Sharding::Zero1, Sharding::Zero2] {
        let plans: Vec<Plan> = [2, 4, 8].map(|dp| planned(dp, sharding)).into();
        for pair in plans.windows(2) {
            for (few, many) in pair[0].steady.phases.iter().zip(&pair[1].steady.phases) {
                assert!(
                    many.peak <= few.peak,
                    "{sharding:?} {:?}: {} over {}",
                    few.phase,
                    many.peak,
                    few.peak
                );
            }
        }
    }
}

#[test]
fn what_is_not_run_beside_tensor_parallel_is_refused() {
    let refusal = |parallel| asked(parallel).unwrap_err();
    let parallel = Parallel { tp: 2, dp: Some(2), ..Parallel::default() };
    let said = refusal(Parallel { sharding: Sharding::Zero3, ..parallel.clone() });
    assert!(said.starts_with("`--zero`: DeepSpeed splits matrices at stages 0 to 2 alone"), "{said}");
    let said = refusal(Parallel { sharding: Sharding::Zero2, sp: true, ..parallel });
    assert!(said.starts_with("`--sp`: DeepSpeed does not split the sequence"), "{said}");
}
