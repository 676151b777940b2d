//! Experts that are spread, beside data parallel ranks: what a rank holds and sends by pencil, and what is refused. That its
//! step is what torch and transformers run is held in `sharded.rs`.

use peakledger_core::{Category, Phase};
use peakledger_input::Source;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::{Lora, LoraTargets, Options, Precision};
use peakledger_plan::parallel::{Parallel, Sharding};
use peakledger_plan::{Dtype, Plan, PlannedPhase, plan};
use serde_json::json;

/// Numbers of the groups that transformers shards: the embedding; of the layer four square matrices, two norms and the router; the
/// last norm with the head; one expert's three matrices.
const EMBEDDING: u64 = 1000 * 64;
const LAYER: u64 = 4 * 64 * 64 + 2 * 64 + 8 * 64;
const TAIL: u64 = 64 + 1000 * 64;
const EXPERT: u64 = 3 * 96 * 64;
/// Two rotary tables of a block each.
const TABLES: u64 = 1024;

fn options(parallel: Parallel) -> Options {
    let (seq_len, precision) = (Some(96), Precision::Bf16);
    Options { micro_batch_size: 2, seq_len, precision, parallel, ..Options::default() }
}

fn asked(options: Options, tied: bool) -> Result<Plan, String> {
    let config = json!({
        "model_type": "mixtral", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256, "tie_word_embeddings": tied,
        "num_local_experts": 8, "num_experts_per_tok": 2,
    });
    let architecture = Architecture::read(&Source::from_text("config.json", config.to_string())).unwrap();
    plan(architecture, options).map_err(|problem| problem.to_string())
}

fn planned(parallel: Parallel) -> Plan {
    asked(options(parallel), false).unwrap()
}

fn fsdp(ep: u32, dp: u32) -> Parallel {
    Parallel { ep, dp: Some(dp), sharding: Sharding::FullShard, ..Parallel::default() }
}

fn held(plan: &Plan, category: Category) -> u64 {
    let at_rest = |phase: &&PlannedPhase| phase.phase == Phase::ZeroGrad;
    plan.steady.phases.iter().find(at_rest).unwrap().by_category.get(category).get()
}

/// To whole blocks.
fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(512) * 512
}

fn sent(plan: &Plan) -> u128 {
    plan.steady.phases.iter().map(|phase| phase.costs.communicated()).sum()
}

#[test]
fn a_rank_holds_its_part_of_its_experts() {
    // of 4 data parallel ranks 2 have the same 4 experts, of which each has 2; the embedding and the head end within a block,
    // norms and the router are one each
    let plan = planned(fsdp(2, 4));
    let dense = 2 * blocks(250 * 64 * 2) + 4 * 16 * 64 * 2 + 3 * 512 + 512;
    let parameters = dense + 2 * EXPERT * 2;
    assert_eq!(held(&plan, Category::Parameter), parameters + TABLES);
    assert_eq!(held(&plan, Category::OptimizerState), 2 * parameters);
    // alone with its experts it has them whole
    let alone = planned(fsdp(4, 4));
    assert_eq!(held(&alone, Category::Parameter), parameters + TABLES);
    assert_eq!(planned(fsdp(2, 2)).parameters, EMBEDDING + LAYER + TAIL + 8 * EXPERT);
}

/// Forward gathers every group, backward again what forward let go of, and each is reduced; of n ranks `(n − 1) / n` of the bytes
/// go to others. Rows go to their experts and back in both, and forward says how many.
#[test]
fn what_a_rank_sends() {
    let rows = 2 * (2 * 96 * 2) * 64 * 2 + 2 * (2 * 96 * 2) * 64 * 2;
    let counts = 8 * 8;
    let dense = 2 * (EMBEDDING + LAYER + TAIL) + LAYER + EMBEDDING;
    let of_two = planned(fsdp(2, 2));
    assert_eq!(sent(&of_two), u128::from((rows + counts + dense * 2) / 2), "experts are there");
    let of_four = planned(fsdp(2, 4));
    let experts = (2 + 1) * 4 * EXPERT;
    assert_eq!(sent(&of_four), u128::from((rows + counts + experts * 2) / 2 + dense * 2 / 4 * 3));
}

#[test]
fn a_host_of_several_has_the_shards_of_one() {
    let nodes = |dp| Parallel { sharding: Sharding::HybridShard, gpus_per_node: 4, ..fsdp(2, dp) };
    let (one, two) = (planned(fsdp(2, 4)), planned(nodes(8)));
    for category in [Category::Parameter, Category::OptimizerState] {
        assert_eq!(held(&one, category), held(&two, category));
    }
    // every shard's gradient is summed over the two nodes
    let shards = (EMBEDDING + LAYER + TAIL) / 4 + 2 * EXPERT;
    assert_eq!(sent(&two), sent(&one) + u128::from(shards * 2));
}

#[test]
fn ddp_sums_the_gradients_of_experts_over_those_that_have_them() {
    let replicated = Parallel { tp: 2, ep: 2, dp: Some(2), ..Parallel::default() };
    let plan = planned(replicated.clone());
    // half the embedding, the head and the square matrices; norms and the router whole
    let part = (2 * 1000 * 64 + 4 * 64 * 64) / 2 + 3 * 64 + 8 * 64 + 4 * EXPERT;
    assert_eq!(held(&plan, Category::CommunicationBuffer), blocks(part * 2));
    let alone = planned(Parallel { dp: None, ..replicated });
    assert_eq!(sent(&plan), sent(&alone) + u128::from(blocks(part * 2)));
}

/// More data parallel ranks with the same experts take no more of any phase than fewer.
#[test]
fn sharing_out_over_more_ranks_takes_no_more() {
    let plans: Vec<Plan> = [2, 4, 8].map(|dp| planned(fsdp(2, dp))).into();
    for pair in plans.windows(2).skip(1) {
        for (few, many) in pair[0].steady.phases.iter().zip(&pair[1].steady.phases) {
            assert!(many.peak <= few.peak, "{:?}: {} over {}", few.phase, many.peak, few.peak);
        }
    }
}

#[test]
fn what_is_not_run_beside_experts_is_refused() {
    let refusal = |parallel| asked(options(parallel), false).unwrap_err();
    let said = refusal(Parallel { ep: 2, dp: Some(2), ..Parallel::default() });
    assert_eq!(
        said,
        "`--ep`: DistributedDataParallel sums every gradient over the same ranks, and of these each has other experts\n  \
         help: add --fsdp full_shard, or spread them over the ranks of --tp alone"
    );
    let said = refusal(Parallel { sharding: Sharding::Zero2, ..fsdp(2, 2) });
    assert!(said.starts_with("`--zero`: DeepSpeed spreads experts by layers of its own (AutoEP"), "{said}");
    let said = refusal(Parallel { sharding: Sharding::ShardGradOp, ..fsdp(2, 2) });
    assert!(said.starts_with("`--fsdp`: transformers reshards experts after forward"), "{said}");
    let said = refusal(Parallel { tp: 2, dp: None, ..fsdp(2, 1) });
    assert!(
        said.starts_with("`--fsdp`: transformers shards over data parallel ranks, and there is one"),
        "{said}"
    );
    let said = refusal(Parallel { sharding: Sharding::HybridShard, gpus_per_node: 2, ..fsdp(4, 4) });
    assert!(said.starts_with("`--ep`: ep 4 is no multiple of tp 1 that divides tp 1 × dp 2 = 2"), "{said}");
    let said = asked(options(fsdp(2, 2)), true).unwrap_err();
    assert!(said.starts_with("`--ep`: transformers ties the head to the embedding after"), "{said}");
    let targets = LoraTargets::Named(vec!["q_proj".to_owned()]);
    let lora = Some(Lora { rank: 4, dropout: 0.0, dtype: Dtype::F32, targets, ..Lora::default() });
    let said = asked(Options { lora, ..options(fsdp(2, 2)) }, false).unwrap_err();
    assert!(said.starts_with("`--lora`: adapters stay whole beside experts that are spread"), "{said}");
    let nodes = Parallel { sharding: Sharding::HybridShard, gpus_per_node: 2, ..fsdp(2, 4) };
    let said = asked(Options { gradient_accumulation_steps: 2, ..options(nodes) }, false).unwrap_err();
    assert!(said.starts_with("`--gradient-accumulation-steps`: between replicas Trainer defers"), "{said}");
}
