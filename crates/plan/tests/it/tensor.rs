//! A model split over ranks: what the parts come to, what is sent, and what is refused. That a rank's step is what torch and
//! transformers run is held in `truth.rs` and `ops.rs`.

use crate::models::model;
use peakledger_core::Category;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::{Lora, LoraTargets, OptimizerKind, Options, Precision, Quantize, Recompute};
use peakledger_plan::parallel::Parallel;
use peakledger_plan::{Dtype, Plan, Step, plan};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn architecture(family: &str, more: &Value) -> Architecture {
    let config = json!({
        "model_type": family, "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256, "tie_word_embeddings": false,
    });
    model(config, more)
}

fn options(parallel: Parallel) -> Options {
    Options {
        micro_batch_size: 2,
        seq_len: Some(96),
        precision: Precision::Bf16,
        parallel,
        ..Options::default()
    }
}

fn refusal(family: &str, more: &Value, options: Options) -> String {
    plan(architecture(family, more), options).unwrap_err().to_string()
}

fn tp(tp: u32, rank: u32) -> Parallel {
    Parallel { tp, rank, ..Parallel::default() }
}

/// Bytes of the parameters by name.
fn parameters(plan: &Plan) -> BTreeMap<String, u64> {
    let ledger = plan.ledger(Step::Steady).unwrap();
    let states = ledger.states().iter().filter(|state| state.category == Category::Parameter);
    states.map(|state| (state.name.to_string(), state.bytes.get())).collect()
}

/// `2 (n − 1) / n` of what is summed and `(n − 1) / n` of what is gathered, by pencil: with `N = b · s · h` in bf16, forward sums
/// the embedding's rows, attention's and the MLP's outputs and gathers the logits; backward sums what the head, `up_proj`,
/// `gate_proj`, `v_proj`, `k_proj` and `q_proj` each lead back.
#[test]
fn what_a_rank_sends() {
    let plan = plan(architecture("llama", &json!({})), options(tp(2, 0))).unwrap();
    let n = 2 * 96 * 64 * 2;
    let logits = 2 * 96 * 1000 * 2;
    let sent: Vec<u128> = plan.steady.phases.iter().map(|phase| phase.costs.communicated()).collect();
    assert_eq!(sent[..4], [0, 3 * n + logits / 2, 0, 6 * n], "load, forward, loss, backward");
}

/// With `--sp` a sum and a gather move as much as a sum alone: forward gathers twice a layer and for the head, and scatters
/// the embedding's rows and twice a layer; backward does the other way round.
#[test]
fn sequence_parallel_sends_as_much_in_forward_and_less_in_backward() {
    let parallel = Parallel { sp: true, ..tp(2, 0) };
    let plan = plan(architecture("llama", &json!({})), options(parallel)).unwrap();
    let n = 2 * 96 * 64 * 2;
    let logits = 2 * 96 * 1000 * 2;
    let sent: Vec<u128> = plan.steady.phases.iter().map(|phase| phase.costs.communicated()).collect();
    assert_eq!(sent[1], 6 * n / 2 + logits / 2);
    assert_eq!(sent[3], 6 * n / 2);
}

/// Of 8 experts a rank of 4 has 2. A rank keeps a quarter of 99 tokens, 25, and sends each to 2 experts.
#[test]
fn whole_experts_are_spread() {
    let experts = json!({"num_local_experts": 8, "num_experts_per_tok": 2});
    let parallel = Parallel { ep: 4, ..tp(4, 0) };
    let of_33 = Options { micro_batch_size: 3, seq_len: Some(33), ..options(parallel) };
    let plan = plan(architecture("mixtral", &experts), of_33.clone()).unwrap();
    assert_eq!(parameters(&plan)["model.layers.0.mlp.experts.down_proj"], 2 * 64 * 96 * 2);
    let largest = |imbalance| {
        let options = Options { rank_imbalance: imbalance, ..of_33.clone() };
        let plan = peakledger_plan::plan(architecture("mixtral", &experts), options).unwrap();
        let ledger = plan.ledger(Step::Steady).unwrap();
        let buffers = ledger.states().iter().filter(|state| state.category == Category::CommunicationBuffer);
        let of_experts = buffers.filter(|state| state.name.contains("experts"));
        of_experts.map(|state| state.bytes.get()).max().unwrap()
    };
    assert_eq!(largest(1.0), (50u64 * 64 * 2).div_ceil(512) * 512);
    assert_eq!(largest(2.0), (100u64 * 64 * 2).div_ceil(512) * 512);
}

#[test]
fn what_does_not_divide_is_said_with_the_equation() {
    let said = refusal("llama", &json!({"num_key_value_heads": 2}), options(tp(4, 0)));
    assert_eq!(
        said,
        "`--tp`: 2 key-value heads / tp 4 = 0 and 2 over: a rank has whole heads\n  help: use a size that divides 4 and 2"
    );
    let said = refusal("llama", &json!({}), options(Parallel { sp: true, ..tp(4, 0) }).with_length(98));
    assert!(said.starts_with("`--sp`: 98 tokens / tp 4 = 24 and 2 over"), "{said}");
    let experts = json!({"num_local_experts": 6, "num_experts_per_tok": 2});
    let said = refusal("mixtral", &experts, options(Parallel { ep: 4, ..tp(4, 0) }));
    assert!(said.starts_with("`--ep`: 6 experts / ep 4 = 1 and 2 over"), "{said}");
    let said = refusal("mixtral", &experts, options(Parallel { ep: 2, ..tp(4, 0) }));
    assert!(said.starts_with("`--ep`: ep 2 is no multiple of tp 4 that divides tp 4 × dp 1 = 4"), "{said}");
}

trait WithLength {
    fn with_length(self, length: u64) -> Self;
}

impl WithLength for Options {
    fn with_length(self, length: u64) -> Options {
        Options { seq_len: Some(length), ..self }
    }
}

#[test]
fn what_transformers_cannot_split_is_refused_in_a_sentence() {
    let with = |change: fn(&mut Options)| {
        let mut options = options(tp(2, 0));
        change(&mut options);
        refusal("llama", &json!({}), options)
    };
    let lora = |targets| Lora { rank: 4, dropout: 0.0, dtype: Dtype::F32, targets, ..Lora::default() };
    let said = refusal(
        "llama",
        &json!({}),
        Options { lora: Some(lora(LoraTargets::AllLinear)), ..options(tp(2, 0)) },
    );
    assert!(said.starts_with("`--lora`: down_proj is not split by its outputs alone"), "{said}");
    let q_and_v = LoraTargets::Named(vec!["q_proj".to_owned(), "v_proj".to_owned()]);
    let packed = Options { lora: Some(lora(q_and_v)), quantize: Some(Quantize::Nf4), ..options(tp(2, 0)) };
    let said = refusal("llama", &json!({}), packed);
    assert!(said.starts_with("`--quantize`: the weights of bitsandbytes' modules are no DTensors"), "{said}");
    let said = with(|options| options.optimizer = OptimizerKind::Adafactor);
    assert!(
        said.starts_with("`--optimizer`: with tensor parallel parameters AdamW and SGD are planned"),
        "{said}"
    );
    assert!(with(|options| options.fused_loss = true).starts_with("`--fused-loss`"));
    let gpt2 = architecture("gpt2", &json!({}));
    let said = plan(gpt2, options(tp(2, 0))).unwrap_err().to_string();
    assert!(said.starts_with("`--tp`: transformers has no tensor parallel plan for gpt2"), "{said}");
    let said = refusal("gemma2", &json!({"head_dim": 16}), options(Parallel { sp: true, ..tp(2, 0) }));
    assert!(said.starts_with("`--sp`: sequence parallel is planned for llama, mistral and qwen2"), "{said}");
    let said = refusal("llama", &json!({}), options(Parallel { sp: true, ..Parallel::default() }));
    assert!(
        said.starts_with("`--sp`: the sequence is split among the ranks of --tp, and there is one"),
        "{said}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// What is split comes to the whole over all ranks, however unevenly; what is not split every rank has.
    #[test]
    fn parts_come_to_the_whole(ranks in prop::sample::select(vec![2u32, 4]), inner in 90u64..110, rows in 1000u64..1010, family in prop::sample::select(vec!["llama", "qwen3", "mixtral", "gemma2", "phi3", "olmo2"])) {
        let more = json!({"intermediate_size": inner, "vocab_size": rows, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "pad_token_id": 0});
        let planned = |parallel| plan(architecture(family, &more), options(parallel)).unwrap();
        let whole = planned(Parallel::default());
        let all: Vec<Plan> = (0..ranks).map(|rank| planned(tp(ranks, rank))).collect();
        for rank in &all {
            prop_assert_eq!((rank.parameters, rank.trainable), (whole.parameters, whole.trainable));
        }
        let of_ranks: Vec<BTreeMap<String, u64>> = all.iter().map(parameters).collect();
        for (name, bytes) in parameters(&whole) {
            let parts: Vec<u64> = of_ranks.iter().filter_map(|rank| rank.get(&name).copied()).collect();
            let together: u64 = parts.iter().sum();
            // each storage is rounded up to 512 B, the whole as well as every part
            let is_split = together < bytes + 512 * u64::from(ranks) && together + 512 > bytes;
            let is_everywhere = parts.len() == ranks as usize && parts.iter().all(|part| *part == bytes);
            prop_assert!(is_split || is_everywhere, "{}: {:?} of {}", name, parts, bytes);
        }
    }

    /// One rank is no split, and a plan is the same whenever it is made.
    #[test]
    fn one_rank_is_the_plan_without(checkpoint in any::<bool>(), sp in any::<bool>()) {
        let recompute = if checkpoint { Recompute::Full } else { Recompute::None };
        let planned = |parallel| {
            let options = Options { recompute, ..options(parallel) };
            plan(architecture("llama", &json!({})), options).unwrap()
        };
        let ops = |plan: &Plan| format!("{:?}", plan.ops(Step::Steady));
        let alone = planned(Parallel { gpus: Some(1), ..tp(1, 0) });
        prop_assert_eq!(ops(&alone), ops(&planned(Parallel::default())));
        let split = || ops(&planned(Parallel { sp, ..tp(4, 1) }));
        prop_assert_eq!(split(), split());
    }
}
