//! One time of a step, whoever is asked: `plan`, its candidates, `fit`'s rows and a search say the same of the same options, and
//! say which rate is not known where there is none.

use crate::support::Bench;
use insta::assert_snapshot;
use serde_json::{Value, json};

/// A model whose last stage takes longest, for its head, while its first needs most.
fn bench() -> Bench {
    let config = json!({
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128, "tie_word_embeddings": false
    });
    Bench::new().file("config.json", config.to_string())
}

fn json_of(bench: &Bench, arguments: &str, more: &[&str]) -> Value {
    let out = bench.command(&format!("{arguments} --format json")).args(more).output().unwrap();
    assert!(out.stderr.is_empty(), "{arguments} {more:?}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// What stands below a plan.
fn costs_line(arguments: &str) -> String {
    let answer = bench().answer(arguments);
    let lines = answer.lines().skip_while(|line| !line.starts_with("costs of the"));
    lines.take_while(|line| !line.starts_with("not counted")).collect::<Vec<_>>().join("\n")
}

const GIVEN: &str = "--gpu h100-80gb --gpus 8 --nccl-bytes-per-group 1MiB --seq 96";
const TIMES: [&str; 6] = [
    "step_seconds",
    "recompute_seconds",
    "host_seconds",
    "communicated_seconds",
    "between_nodes_seconds",
    "bubble_seconds",
];
const COUNTS: [&str; 6] = [
    "flops",
    "recomputed_flops",
    "to_host_bytes",
    "from_host_bytes",
    "communicated_bytes",
    "between_nodes_bytes",
];

/// Every row of a search has the time and the costs of the plan of its options; a candidate and a row of `fit` have the
/// difference of two plans.
#[test]
fn plan_candidates_fit_and_search_have_one_time() {
    let bench = bench();
    let plan = |options: &[&str]| json_of(&bench, &format!("plan config.json {GIVEN}"), options);
    let step = |plan: &Value| plan["costs"]["theoretical"]["step_seconds"].as_f64().unwrap();
    let base = plan(&["--gradient-accumulation-steps", "2"]);
    let (mut waiting, mut of_another, mut all) = (0, 0, 0);
    for among in [
        &["pp=1,2,4", "tp=1,2", "zero=0,1,3", "recompute=none,full"][..],
        &["pp=4", "tp=1,2", "fsdp=none,full_shard", "schedule=1f1b,gpipe,zb-h1,zb-h2,dualpipe"],
        &["pp=4", "schedule=interleaved", "virtual-stages=1,2", "batch=1,2"],
        &["pp=1", "zero=2", "fsdp=none", "offload=none|activations"],
    ] {
        let values = among.iter().flat_map(|values| ["--among", values]).collect::<Vec<_>>();
        let search = json_of(&bench, &format!("fit config.json {GIVEN} --global-batch-size 16"), &values);
        for row in search["rows"].as_array().unwrap() {
            let options: Vec<&str> = row["options"].as_str().unwrap().split(' ').collect();
            let planned = plan(&options);
            let costs = &planned["costs"];
            for key in TIMES {
                assert_eq!(costs["theoretical"][key], row["theoretical"][key], "{key} of {row}");
            }
            for key in COUNTS {
                assert_eq!(costs[key], row[key], "{key} of {row}");
            }
            assert_eq!(costs["rank"], row["slowest_rank"], "{row}");
            assert_eq!(costs["theoretical"]["slowest_rank"], row["slowest_rank"], "{row}");
            waiting += usize::from(row["theoretical"]["bubble_seconds"].as_f64().unwrap() > 0.0);
            of_another += usize::from(costs["rank"] != planned["rank"]);
            all += 1;
            if all % 8 == 1 {
                let candidate = format!("other: {}", options.join(" "));
                let candidate = ["--gradient-accumulation-steps", "2", "--candidate", &candidate];
                let beside = plan(&candidate);
                let fit = json_of(&bench, &format!("fit config.json {GIVEN}"), &candidate);
                let rows = fit["rows"].as_array().unwrap();
                let fitted = rows.iter().find(|row| row["name"] == "other").unwrap();
                let added = &beside["candidates"]["other"]["added"]["theoretical_seconds"];
                assert_eq!(added, &fitted["added_theoretical_seconds"], "{candidate:?}");
                let apart = step(&planned) - step(&base);
                assert!((added.as_f64().unwrap() - apart).abs() < 1e-11, "{candidate:?}: {added}, {apart}");
            }
        }
    }
    assert!(waiting > 20 && of_another > 5, "{waiting} wait, {of_another} of another rank, of {all}");
}

/// Whose costs and whose time they are is said wherever a rank takes less than another.
#[test]
fn the_rank_that_takes_longest_is_named() {
    let piped = "plan config.json --gpu h100-80gb --pp 4 --gradient-accumulation-steps 8 --seq 96";
    assert_snapshot!(costs_line(piped), @"
    costs of the steady step, of rank 3, which takes longest: 804.5 MFLOP; 153.38
    MiB moved on the card, 192.00 KiB sent to other ranks; theoretical on NVIDIA
    H100 80GB HBM3, at its peak rates: 65.26 µs, 16.85 µs waiting in the pipeline,
    0.44 µs to other ranks over NVLink
    ");
    assert_snapshot!(costs_line(&format!("{piped} --rank 1")), @"
    costs of the steady step, of rank 1: 509.6 MFLOP; 97.44 MiB moved on the card,
    384.00 KiB sent to other ranks; theoretical on NVIDIA H100 80GB HBM3, at its
    peak rates, by rank 3, which takes longest: 65.26 µs, 16.85 µs waiting in the
    pipeline, 0.44 µs to other ranks over NVLink
    ");
    assert_snapshot!(costs_line(&format!("{piped} --rank 3")), @"
    costs of the steady step, of rank 3, which takes longest: 804.5 MFLOP; 153.38
    MiB moved on the card, 192.00 KiB sent to other ranks; theoretical on NVIDIA
    H100 80GB HBM3, at its peak rates: 65.26 µs, 16.85 µs waiting in the pipeline,
    0.44 µs to other ranks over NVLink
    ");
    let without_rates = piped.replace("h100-80gb", "80GiB");
    assert_snapshot!(costs_line(&without_rates), @"
    costs of the steady step, of rank 3, which computes most: 804.5 MFLOP; 153.38
    MiB moved on the card, 192.00 KiB sent to other ranks
    ");
    assert_snapshot!(costs_line("plan config.json --gpu h100-80gb --tp 2 --seq 96"), @"
    costs of the steady step: 145.8 MFLOP; 58.51 MiB moved on the card, 1.26 MiB
    sent to other ranks; theoretical on NVIDIA H100 80GB HBM3, at its peak rates:
    21.25 µs, 2.94 µs to other ranks over NVLink
    ");
    let bench = bench();
    let asked = json_of(&bench, piped, &["--rank", "1"]);
    assert_eq!((&asked["rank"], &asked["costs"]["rank"]), (&json!(1), &json!(1)));
    let worst = json_of(&bench, piped, &[]);
    assert_eq!(asked["costs"]["theoretical"], worst["costs"]["theoretical"]);
    let alone = json_of(&bench, "plan config.json --gpu h100-80gb", &[]);
    assert!(alone["costs"]["rank"].is_null() && alone["costs"]["theoretical"]["slowest_rank"].is_null());
    assert_eq!(alone["costs"]["theoretical"]["bubble_seconds"], 0.0);
}

/// A T4 multiplies in no bf16: whoever has no time for it says so once, with the mend, which holds.
#[test]
fn a_rate_that_is_not_known_is_named_with_the_mend() {
    let bench = bench();
    let said = |arguments: &str| {
        let answer = bench.answer(arguments).replace('\n', " ").replace("  ", " ");
        let mut found = answer.match_indices("Tesla T4 has no rate");
        let (at, _) = found.next().unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(found.next(), None, "{answer}");
        let openings = ["there is no", "2 combinations", "1 combination has"];
        let start = openings.iter().filter_map(|opening| answer[..at].rfind(opening)).max().unwrap();
        answer[start..].split_inclusive(')').next().unwrap().to_owned()
    };
    assert_snapshot!(said("plan config.json --gpu t4"), @"there is no theoretical time: Tesla T4 has no rate for bf16 (it has one for `--precision fp16-mixed`)");
    assert_snapshot!(said("fit config.json --gpu t4"), @"there is no theoretical cost: Tesla T4 has no rate for bf16 (it has one for `--precision fp16-mixed`)");
    assert_snapshot!(said("fit config.json --gpu t4 --gpus 2 --among tp=1,2"), @"2 combinations have no time: Tesla T4 has no rate for bf16 (it has one for `--precision fp16-mixed`)");
    assert_snapshot!(said("fit config.json --gpu t4 --candidate half:--precision=bf16 --precision fp16-mixed"), @"there is no theoretical cost for bf16, half: Tesla T4 has no rate for bf16 (it has one for `--precision fp16-mixed`)");
    assert_snapshot!(said("fit config.json --gpu t4 --gpus 2 --among precision=bf16,fp16-mixed"), @"1 combination has no time: Tesla T4 has no rate for bf16 (it has one for `--precision fp16-mixed`)");
    let answer = bench.answer("plan config.json --gpu t4 --precision fp16-mixed");
    assert!(!answer.contains("no rate"), "{answer}");
    let search = json_of(&bench, "fit config.json --gpu t4 --precision fp16-mixed --gpus 2 --search", &[]);
    assert!(search["rows"].as_array().unwrap().iter().all(|row| !row["theoretical"].is_null()));
}
