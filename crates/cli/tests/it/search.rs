//! `fit --search` from outside: what is tried and counted, that what is shown is so, and what is refused.

use crate::support::Bench;
use insta::assert_snapshot;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A model small enough that every figure can be followed, in `config.json`.
fn bench() -> Bench {
    let config = json!({
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": false
    });
    Bench::new().file("config.json", config.to_string())
}

fn command(bench: &Bench, arguments: &str, among: &[&str]) -> std::process::Command {
    let mut command = bench.command(&format!("fit config.json {arguments}"));
    for values in among {
        command.args(["--among", values]);
    }
    command
}

fn text(bench: &Bench, arguments: &str, among: &[&str]) -> String {
    let out = command(bench, arguments, among).output().unwrap();
    assert!(out.stderr.is_empty(), "{arguments}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn search(bench: &Bench, arguments: &str, among: &[&str]) -> Value {
    serde_json::from_str(&text(bench, &format!("{arguments} --format json"), among)).unwrap()
}

const GROUPS: &str = "--nccl-bytes-per-group 1MiB";

#[test]
fn a_table() {
    let among = ["tp=1,2,4", "recompute=none,full", "batch=1,2,4"];
    let out = text(&bench(), &format!("--gpu a100-40gb --gpus 4 {GROUPS}"), &among);
    let blocks: Vec<&str> = out.split("\n\n").filter(|block| !block.starts_with("model  ")).collect();
    assert_snapshot!(blocks.join("\n\n"), @r"
    tried 18 combinations: 12 cannot be, 0 do not fit NVIDIA A100-SXM4-40GB, 6 fit
    quickest: tp 1, recompute none, batch 1: 44.53 µs in theory, 39.09 GiB to spare
      peakledger plan config.json --gpus 4 --nccl-bytes-per-group 1MiB \
        --gpu a100-40gb --tp=1 --recompute=none --batch=1 \
        --gradient-accumulation-steps 1
    config.json: 276,032 parameters; 4 sequences in a step of every combination, and
    gradient accumulation follows from them (--global-batch-size N says how many
    they are)

    memory against time: no other combination that fits takes no more of both
    tp  recompute  batch       takes  in theory    longer      sent       peak
    1   none       1      315.10 MiB   44.53 µs            1.58 MiB  23.95 MiB
    1   full       1      313.10 MiB   49.61 µs  +5.08 µs  1.58 MiB  22.58 MiB

    what cannot be, and why; of alike reasons the first
    6  --micro-batch-size: 4 sequences in a step are no multiple of micro-batch 2 ×
       dp 4 = 8; --global-batch-size N says how many there are
    6  --tp: 2 key-value heads / tp 4 = 0 and 2 over: a rank has whole heads

    in theory: products and copies at the card's peak rates, what is computed again,
    what is sent within a node and over the network between nodes, and the waiting
    of the pipeline, one after the other; what overlaps is not looked at
    that, and what is sent and moved, is of the rank that takes longest; what is
    taken is of the rank that needs most
    the reserved bytes of what is shown come from replaying the caching allocator,
    and so do those of what fits with less to spare than a quarter of what it takes;
    where stages or ranks differ or micro-batches are many, that is left open but
    for what is shown: `plan` of a row's command, which JSON and CSV have the
    options of, settles it; the others fit or not by their device peak
    not counted: the little that other kernels allocate inside themselves (sorting,
                 reductions, cuBLASLt)
    ");
}

/// Every row is what `plan` says of the same options, the counts add up, and the front is what no other that fits beats.
#[test]
fn what_is_answered_is_planned() {
    let bench = bench();
    let given = format!("--gpu 338MiB --gpus 8 --global-batch-size 16 --seq 96 {GROUPS}");
    let among =
        ["tp=1,2,3", "pp=1,2", "recompute=none,selective,full", "zero=0,3", "offload=none|activations"];
    let found = search(&bench, &given, &among);
    let rows = found["rows"].as_array().unwrap();
    let refused = found["not_possible"].as_array().unwrap();
    let refused: u64 = refused.iter().map(|one| one["count"].as_u64().unwrap()).sum();
    assert_eq!(found["tried"], 3 * 2 * 3 * 2 * 2);
    assert_eq!((&found["possible"], rows.len() as u64 + refused), (&json!(rows.len()), 72));
    let fitting = rows.iter().filter(|row| row["fits"] == true).count();
    assert_eq!(found["fitting"], fitting);
    assert!(fitting > 0 && fitting < rows.len(), "{fitting} of {}", rows.len());
    for row in rows {
        let dp = row["dp"].as_u64().unwrap();
        let steps = row["gradient_accumulation_steps"].as_u64().unwrap();
        assert_eq!(dp * steps * row["micro_batch_size"].as_u64().unwrap(), 16, "{row}");
        let given = given.replace("--global-batch-size 16 ", "");
        let mut command = bench.command(&format!("plan config.json {given} --format json"));
        let out = command.args(row["options"].as_str().unwrap().split(' ')).output().unwrap();
        let plan: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(plan["device_peak"]["bytes"], row["device_peak_bytes"], "{row}");
        assert_eq!(plan["outside_bytes"], row["outside_bytes"], "{row}");
        if !row["reserved_bytes"].is_null() {
            assert_eq!(plan["reserved_bytes"], row["reserved_bytes"], "{row}");
            assert_eq!(plan["verdict"]["fits"], row["fits"], "{row}");
            assert_eq!(plan["verdict"]["headroom_bytes"], row["headroom_bytes"], "{row}");
        } else if row["fits"] == false {
            assert_eq!(plan["verdict"]["fits"], false, "{row}");
        }
    }
}

/// A naive front over what `plan` reserves for every combination: also for those that are let go of before their replays end.
#[test]
fn the_front_is_what_none_beats() {
    let among = ["tp=1,2,4", "pp=1,2", "recompute=none,full", "fsdp=none,full_shard", "batch=1,2,4"];
    let (bench, given) = (bench(), format!("--gpu a100-40gb --gpus 8 {GROUPS}"));
    let found = search(&bench, &format!("{given} --global-batch-size 32"), &among);
    let rows = found["rows"].as_array().unwrap();
    let capacity = found["capacity_bytes"].as_i64().unwrap();
    let mut let_go = 0;
    let planned = |row: &Value| {
        let mut command = bench.command(&format!("plan config.json {given} --format json"));
        let out = command.args(row["options"].as_str().unwrap().split(' ')).output().unwrap();
        let plan: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(plan["verdict"]["fits"], true, "{row}");
        capacity - plan["verdict"]["headroom_bytes"].as_i64().unwrap()
    };
    let taken: BTreeMap<&str, i64> =
        rows.iter().map(|row| (row["name"].as_str().unwrap(), planned(row))).collect();
    let figures = |row: &Value| {
        (taken[row["name"].as_str().unwrap()], row["theoretical"]["step_seconds"].as_f64().unwrap())
    };
    for row in rows {
        // what is known of one that is let go of is less than it takes, and more than its device peak
        let known = capacity - row["headroom_bytes"].as_i64().unwrap();
        let by_device_peak = ["device_peak_bytes", "outside_bytes"].map(|key| row[key].as_i64().unwrap());
        assert!(known <= figures(row).0, "{row}");
        let_go += u32::from(row["reserved_bytes"].is_null() && known > by_device_peak.iter().sum());
    }
    assert!(let_go > 10, "{let_go}");
    let fitting = || rows.iter().filter(|row| row["fits"] == true);
    let mut front = 0;
    for row in fitting() {
        let (bytes, time) = figures(row);
        let is_beaten = fitting().any(|other| {
            let (less, quicker) = figures(other);
            less <= bytes && quicker <= time && (less < bytes || quicker < time)
        });
        if row["pareto"] == true {
            assert!(!row["reserved_bytes"].is_null() && !is_beaten, "{row}");
            front += 1;
        } else {
            let as_good = fitting().any(|other| other["pareto"] == true && figures(other) == figures(row));
            assert!(is_beaten || as_good, "{row}");
        }
    }
    assert!(front > 2, "{front}");
    let times: Vec<f64> = fitting().map(|row| figures(row).1).collect();
    assert!(times.is_sorted(), "{times:?}");
}

/// A pipeline's theoretical time has its bubble: `(p - 1) / m` of 1F1B.
#[test]
fn a_pipeline_waits_for_its_stages() {
    let among = ["pp=1,2,4", "batch=1,4"];
    let found =
        search(&bench(), &format!("--gpu a100-40gb --gpus 4 --global-batch-size 16 {GROUPS}"), &among);
    for row in found["rows"].as_array().unwrap() {
        let bubble = row["theoretical"]["bubble_seconds"].as_f64().unwrap();
        let pp: f64 = row["values"][0].as_str().unwrap().parse().unwrap();
        let m = row["gradient_accumulation_steps"].as_f64().unwrap();
        let rest = row["theoretical"]["step_seconds"].as_f64().unwrap() - bubble;
        let most = rest * (pp - 1.0) / m;
        assert!(bubble <= most && (pp == 1.0 || bubble > most * 0.2), "{bubble} {most} {row}");
    }
}

/// Two runs say the same, byte for byte, on as many threads as there are and on one.
#[test]
fn the_same_search_says_the_same() {
    let bench = bench();
    let given = format!("--gpu a100-40gb --gpus 4 {GROUPS} --search --global-batch-size 8 --format json");
    let first = text(&bench, &given, &[]);
    assert_eq!(text(&bench, &given, &[]), first);
    let threads = std::process::Command::new("taskset").args(["-c", "0", "true"]).status();
    if !threads.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: there is no taskset here, so one thread is not tried");
        return;
    }
    let all = command(&bench, &given, &[]);
    let mut alone = std::process::Command::new("taskset");
    alone.args(["-c", "0"]).arg(all.get_program()).args(all.get_args());
    alone.current_dir(all.get_current_dir().unwrap());
    assert_eq!(String::from_utf8(alone.output().unwrap().stdout).unwrap(), first);
}

/// What is usual: parallel sizes, sharding, recompute, micro-batch and offload, but for what is said already.
#[test]
fn what_is_said_does_not_differ() {
    let bench = bench();
    let dimensions = |arguments: &str, among: &[&str]| {
        let found = search(&bench, &format!("--gpu a100-40gb {arguments}"), among);
        let of = |one: &Value| {
            format!("{}×{}", one["name"].as_str().unwrap(), one["values"].as_array().unwrap().len())
        };
        found["dimensions"].as_array().unwrap().iter().map(of).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(dimensions("--search", &[]), "recompute×3 offload×4");
    assert_eq!(dimensions("--search --gpus 2", &[]), "tp×2 pp×2 sharding×5 recompute×3 batch×2 offload×4");
    // shards of a node and replicas of several need several
    let two_nodes = dimensions("--search --gpus 2 --gpus-per-node 1 --tp 1 --pp 1", &[]);
    assert_eq!(two_nodes, "sharding×6 recompute×3 batch×2 offload×4");
    let said = "--search --gpus 2 --tp 2 --pp 1 --zero 0 --gradient-checkpointing --batch 1";
    assert_eq!(dimensions(said, &[]), "offload×4");
    let among = ["zero=0,1", "offload=none|activations,optimizer"];
    assert_eq!(dimensions("--search --gpus 2 --pp 1", &among), "tp×2 recompute×3 batch×2 zero×2 offload×2");
    let megatron = "--search --gpus 4 --stack megatron --recompute none";
    assert_eq!(dimensions(megatron, &[]), "tp×3 sp×2 pp×3 cp×3 sharding×2 batch×3");
}

/// The heads of the table are names of `--among`, and `none` is the step without any option.
#[test]
fn what_the_table_is_headed_with_can_be_asked_for() {
    let given = format!("--gpu a100-40gb --gpus 4 {GROUPS}");
    let found = search(&bench(), &given, &["sharding=none,zero 3,fsdp", "micro_batch_size=1"]);
    let rows = found["rows"].as_array().unwrap();
    let option = |name: &str| {
        let row = rows.iter().find(|row| row["values"][0] == name).unwrap();
        row["options"].as_str().unwrap().to_owned()
    };
    assert!(option("zero 3").starts_with("--zero 3 "), "{}", option("zero 3"));
    assert!(option("full_shard").starts_with("--fsdp full_shard "), "{}", option("full_shard"));
    assert!(option("none").starts_with("--micro-batch-size=1 "), "{}", option("none"));
    let layers = ["pp=2", "decoder-first-pipeline-num-layers=none,1"];
    let found = search(&bench(), &given, &layers);
    let rows = found["rows"].as_array().unwrap();
    let of = |value: &str| rows.iter().find(|row| row["values"][1] == value).unwrap()["options"].clone();
    assert_eq!(of("none"), "--pp=2 --gradient-accumulation-steps 2");
    assert_eq!(of("1"), "--pp=2 --decoder-first-pipeline-num-layers=1 --gradient-accumulation-steps 2");
    let found = search(&bench(), &format!("{given} --search"), &["sharding=none"]);
    let names = found["dimensions"].as_array().unwrap().iter().filter(|of| of["name"] == "sharding");
    assert_eq!(names.count(), 1, "what is asked for takes the place of what is usual");
}

/// Where the quickest is on the edge, the quickest with room to spare stands beside it with its command.
#[test]
fn the_quickest_with_room_to_spare() {
    let bench = bench();
    let given = "--seq 128 --global-batch-size 1024";
    let among = ["recompute=none,full", "batch=1024"];
    let found = search(&bench, &format!("{given} --gpu a100-40gb"), &among);
    let takes = |at: usize| {
        let row = &found["rows"][at];
        row["reserved_bytes"].as_u64().unwrap() + row["outside_bytes"].as_u64().unwrap()
    };
    assert!(takes(0) > takes(1) + (1 << 30), "{found}");
    assert_eq!(found["quickest_with_room"], 0, "the quickest itself has room");
    // a known card of which the quickest leaves a MiB, by what a group's communicator takes of it
    let spare = found["rows"][0]["headroom_bytes"].as_u64().unwrap();
    let given = format!(
        "--seq 128 --global-batch-size 2048 --gpus 2 --gpu a100-40gb --nccl-bytes-per-group {}MiB",
        (spare >> 20) - 16
    );
    let found = search(&bench, &given, &among);
    assert_eq!(found["rows"][0]["on_the_edge"], true, "{found}");
    assert_eq!((&found["quickest_with_room"], &found["rows"][1]["on_the_edge"]), (&json!(1), &json!(false)));
    let table = text(&bench, &given, &among);
    let at = table.find("quickest with room to spare: recompute full, batch 1024: ").unwrap();
    assert!(table[at..].contains("--recompute=full"), "{table}");
}

/// Where none fits, what a search does not vary is tried too, and said with what to type.
#[test]
fn where_none_fits_the_other_levers_are_tried() {
    let bench = bench();
    let among = ["recompute=none,full", "batch=1,2"];
    let given = "--global-batch-size 2 --gpu 72MiB";
    let found = search(&bench, given, &among);
    assert_eq!(found["fitting"], 0, "{found}");
    let beyond = found["beyond"].as_array().unwrap();
    let with = |with: &str| beyond.iter().find(|one| one["with"] == with);
    let fused = with("--fused-loss").unwrap_or_else(|| panic!("{beyond:?}"));
    assert_eq!(fused["trains_otherwise"], false);
    assert_eq!(with("--precision bf16").unwrap()["trains_otherwise"], true);
    // nothing that the search varies is a lever, and each saves
    for one in beyond {
        let levers = one["with"].as_str().unwrap();
        assert!(!levers.contains("--recompute") && !levers.contains("--micro-batch-size"), "{levers}");
        assert!(one["saved_bytes"].as_u64().unwrap() > 0, "{one}");
        // its command plans it
        let words = format!("{} {}", one["command"].as_str().unwrap(), one["options"].as_str().unwrap());
        let words = words.strip_prefix("peakledger ").unwrap();
        let planned: Value = serde_json::from_str(&bench.answer(&format!("{words} --format json"))).unwrap();
        assert_eq!(planned["verdict"]["headroom_bytes"], one["headroom_bytes"], "{words}");
    }
    let table = text(&bench, given, &among);
    assert!(table.contains("what the search does not vary"), "{table}");
    assert!(text(&bench, &format!("{given} --format markdown"), &among).contains("| with | fits | takes |"));
}

/// What is said already is not varied, and the answer says so and who said it.
#[test]
fn what_is_fixed_is_said() {
    let bench =
        bench().file("run.json", r#"{"per_device_train_batch_size": 2, "gradient_checkpointing": true}"#);
    let asked = "--from run.json --gpu a100-40gb --offload none --search";
    let found = search(&bench, asked, &[]);
    assert_eq!(
        found["fixed"],
        json!([
            {"name": "recompute", "options": "--recompute full", "by": "run.json"},
            {"name": "batch", "options": "--micro-batch-size 2", "by": "run.json"},
            {"name": "offload", "options": "--offload none", "by": null},
        ])
    );
    let table = text(&bench, "--from run.json --gpu a100-40gb --gpus 2 --search", &[]).replace('\n', " ");
    let said =
        "searched: tp, pp, sharding, offload; fixed by run.json: --recompute full, --micro-batch-size 2";
    assert!(table.contains(said), "{table}");
}

/// What cannot be is counted by its reason, however its figures differ.
#[test]
fn what_cannot_be_is_counted() {
    let among = ["tp=1,2,3,5,8", "fsdp=none,full_shard", "zero=0,3"];
    let found = search(&bench(), &format!("--gpu a100-40gb --gpus 16 {GROUPS}"), &among);
    let reasons = found["not_possible"].as_array().unwrap().iter().map(|one| {
        let cause = one["cause"].as_str().unwrap().to_owned();
        (cause, one["count"].as_u64().unwrap())
    });
    let reasons: BTreeMap<String, u64> = reasons.collect();
    assert_eq!(reasons.get("16 GPUs, but tp 3 × cp 1 × pp 1 = 3"), Some(&6), "{reasons:?}");
    assert_eq!(reasons.get("it does not go with `--zero`"), Some(&5), "{reasons:?}");
    let none = search(&bench(), "--gpu a100-40gb --gpus 16", &["tp=3,5"]);
    assert_eq!((&none["possible"], &none["fitting"]), (&json!(0), &json!(0)));
    let out = text(&bench(), "--gpu a100-40gb --gpus 16", &["tp=3,5"]);
    assert!(out.starts_with("tried 2 combinations: 2 cannot be, 0 do not fit"), "{out}");
}

/// The command that a search ends in plans its row, whatever it was asked with; and so does that of every row.
#[test]
fn the_command_of_a_row_plans_it() {
    let deepspeed = json!({
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2}
    });
    let bench = bench().file("ds.json", deepspeed.to_string());
    let from = "--from ds.json --gpus 4 --alloc-conf expandable_segments:True";
    for (arguments, among) in [
        ("--gpu a100-40gb --gpus 4 --global-batch-size 8 --seq 96 --search --fsdp=none --pp 1", &[][..]),
        ("--gpu a100-40gb --gpus 4 --clip-grad-norm=off", &["recompute=none,full", "batch=1,2", "sp=off,on"]),
        (
            "--gpu 300MiB --batch 4 --freeze model.embed_tokens",
            &["offload=none|activations,optimizer", "quantize=none"],
        ),
        (&format!("--gpu a100-40gb {from}"), &["batch=1,2", "zero=0,3", "gradient-checkpointing=true,false"]),
        (&format!("--gpu 8GiB {from} --search"), &["lora=none|r=4,targets=q_proj"]),
    ] {
        let found = search(&bench, arguments, among);
        let rows = found["rows"].as_array().unwrap();
        assert!(!rows.is_empty(), "{arguments}");
        for row in rows.iter().step_by(rows.len().div_ceil(6)) {
            let line = format!("{} {}", found["command"].as_str().unwrap(), row["options"].as_str().unwrap());
            let plan: Value = serde_json::from_str(&bench.pasted(&format!("{line} --format json"))).unwrap();
            assert_eq!(plan["device_peak"]["bytes"], row["device_peak_bytes"], "{line}");
            assert_eq!(plan["verdict"]["gpu"], found["gpu"], "{line}");
        }
        let table = text(&bench, arguments, among);
        let from = table.find("  peakledger plan ").unwrap_or_else(|| panic!("{table}"));
        let lines: Vec<&str> = table[from..].split_inclusive('\n').collect();
        let end = lines.iter().position(|line| !line.ends_with("\\\n")).unwrap();
        let plan = bench.pasted(&format!("{} --format json", lines[..=end].concat().trim_end()));
        let plan: Value = serde_json::from_str(&plan).unwrap();
        let best = rows.iter().find(|row| row["pareto"] == true);
        let best = best.or_else(|| rows.iter().max_by_key(|row| row["headroom_bytes"].as_i64())).unwrap();
        assert_eq!(plan["device_peak"]["bytes"], best["device_peak_bytes"], "{table}");
        assert_eq!(plan["verdict"]["fits"], best["fits"], "{table}");
    }
}

/// Where a config comes in on standard input, the command has it written out.
#[test]
fn the_command_of_a_piped_config_has_it() {
    let bench = bench();
    let config = bench.read("config.json");
    let ran = bench.pipe("fit - --gpu a100-40gb --among recompute=full --format json", &config);
    let found: Value = serde_json::from_str(&ran.out).unwrap();
    let line =
        format!("{} {}", found["command"].as_str().unwrap(), found["rows"][0]["options"].as_str().unwrap());
    let plan: Value = serde_json::from_str(&bench.pasted(&format!("{line} --format json"))).unwrap();
    assert_eq!(plan["device_peak"]["bytes"], found["rows"][0]["device_peak_bytes"]);
}

/// A row says that it fits on the edge, and that caches have to be given back for it.
#[test]
fn rows_say_how_they_fit() {
    let bench = Bench::new();
    let rows = |gpu: &str| {
        let out = bench.answer(&format!(
            "fit smollm2-135m --seq 256 --gpu {gpu} --among recompute=none,full --format json"
        ));
        let rows: Value = serde_json::from_str(&out).unwrap();
        let of = |name: &str| {
            rows["rows"].as_array().unwrap().iter().find(|row| row["values"][0] == name).unwrap().clone()
        };
        [of("none"), of("full")]
    };
    let marks =
        |row: &Value| (row["fits"].clone(), row["on_the_edge"].clone(), row["cache_flushes"].as_u64());
    let [free, _] = rows("2TiB");
    let exactly = free["reserved_bytes"].as_u64().or(free["device_peak_bytes"].as_u64()).unwrap();
    let exactly = exactly + free["outside_bytes"].as_u64().unwrap();
    let [edge, _] = rows(&format!("{exactly}B"));
    assert_eq!(marks(&edge), (json!(true), json!(true), Some(0)), "{edge}");
    let card = format!("{}B", exactly - (2 << 20));
    let [tight, _] = rows(&card);
    assert_eq!(marks(&tight), (json!(true), json!(true), Some(1)), "{tight}");
    // what fits as it is needs no mark
    let [_, full] = rows(&format!("{}B", exactly << 1));
    assert_eq!(full["on_the_edge"], false, "{full}");
    let given = format!("fit smollm2-135m --seq 256 --gpu {card} --among recompute=none");
    let out = bench.answer(&given);
    let blocks: Vec<&str> = out.split("\n\n").filter(|block| !block.starts_with("model  ")).collect();
    assert_snapshot!(blocks.join("\n\n"), @r"
    tried 1 combination: 0 cannot be, 0 do not fit 3433145088B, 1 fits
    least: recompute none: 106.00 MiB to spare, on the edge, flushes its cache
      peakledger plan smollm2-135m --seq-len 256 --gpu 3433145088B \
        --recompute=none --gradient-accumulation-steps 1
    note: 106.00 MiB to spare is less than drivers and libraries differ by: another
          CUDA context, and it does not fit
    note: the weights are planned in fp32, as --precision bf16-mixed has them; the
          model's config says bf16, in which transformers 5 loads it:
          --weights-dtype bf16 plans that
    smollm2-135m: 134,515,008 parameters; 1 sequence in a step

    the one that takes least; there is no time, as the card's rates are not known
    recompute  fits              takes      peak
    none       edge, flushes  3.09 GiB  2.52 GiB
    edge: less is to spare than a CUDA context is taken for; with other drivers or
    libraries it may not fit
    flushes: it fits once the allocator gives back all that it has cached, and the
    step waits for that

    the reserved bytes of what is shown come from replaying the caching allocator,
    and so do those of what fits with less to spare than a quarter of what it takes;
    where stages or ranks differ or micro-batches are many, that is left open but
    for what is shown: `plan` of a row's command, which JSON and CSV have the
    options of, settles it; the others fit or not by their device peak
    not counted: the little that other kernels allocate inside themselves (sorting,
                 reductions, cuBLASLt)
    ");
    let csv = bench.answer(&format!("{given} --format csv"));
    assert!(csv.lines().next().unwrap().contains(",fits,on_the_edge,"), "{csv}");
    assert!(bench.answer(&format!("{given} --format markdown")).contains("| fits |"));
}

/// Where none fits, the closest takes what `plan` says that it takes, though a replay tells that it does not fit long before its
/// end: by that alone it would be another.
#[test]
fn the_closest_is_planned() {
    let config = json!({
        "model_type": "gemma3_text", "vocab_size": 5000, "hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 12,
        "num_attention_heads": 4, "max_position_embeddings": 512, "num_key_value_heads": 2, "head_dim": 16
    });
    let bench = Bench::new().file("config.json", config.to_string());
    let given = "--gpu 371604224B --seq-len 64 --pp 2 --schedule zb-h2 --batch 3 --recompute block:1 --optimizer sgd \
                 --clip-grad-norm --attention-mask padded --nccl-bytes-per-group 1MiB";
    let accumulated = format!("{given} --gradient-accumulation-steps 24");
    let found = search(&bench, &accumulated, &["offload=none|optimizer|activations"]);
    let headroom = |row: &Value| row["headroom_bytes"].as_i64().unwrap();
    let rows = found["rows"].as_array().unwrap();
    assert_eq!((&found["fitting"], &found["open"]), (&json!(0), &json!(0)), "{found}");
    let closest = rows.iter().max_by_key(|row| headroom(row)).unwrap();
    let planned = |row: &Value| {
        let line = format!("plan config.json {given} {} --format json", row["options"].as_str().unwrap());
        let plan: Value = serde_json::from_str(&bench.answer(&line)).unwrap();
        plan["verdict"]["headroom_bytes"].as_i64().unwrap()
    };
    assert_eq!(planned(closest), headroom(closest), "{closest}");
    assert!(rows.iter().all(|row| planned(row) <= headroom(closest)), "{rows:?}");
}

/// A pipeline near the limit that another beats is not replayed to its end, and whether it fits is left open: `plan` takes no less
/// of the card than is said, and says no of some.
#[test]
fn what_is_not_replayed_is_left_open() {
    let bench = Bench::new();
    let step = "smollm2-135m --gpu 2500MiB --gpus 2 --pp 2 --nccl-bytes-per-group 1MiB";
    let lengths: Vec<String> = (2..17).map(|length| (64 * length).to_string()).collect();
    let lengths = format!("--among seq-len={}", lengths.join(","));
    let line = format!(
        "fit {step} --gradient-accumulation-steps 8 --among recompute=none,full {lengths} --format json"
    );
    let found: Value = serde_json::from_str(&bench.answer(&line)).unwrap();
    let rows = found["rows"].as_array().unwrap();
    let open: Vec<&Value> = rows.iter().filter(|row| row["fits"].is_null()).collect();
    assert_eq!(found["open"], open.len());
    let spare = |said: &Value| said["headroom_bytes"].as_i64().unwrap();
    let mut misfits = 0;
    for row in &open {
        assert!(row["reserved_bytes"].is_null() && row["on_the_edge"] == false, "{row}");
        let line = format!("plan {step} {} --format json", row["options"].as_str().unwrap());
        let plan: Value = serde_json::from_str(&bench.answer(&line)).unwrap();
        assert!(spare(&plan["verdict"]) <= spare(row), "{row}");
        misfits += usize::from(plan["verdict"]["fits"] == false);
    }
    assert!(misfits > 0 && misfits < open.len(), "{misfits} of {} do not fit", open.len());
    let csv = bench.answer(&line.replace("json", "csv"));
    let cells: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let at = cells[0].iter().position(|title| *title == "fits").unwrap();
    assert_eq!(cells.iter().filter(|cells| cells[at].is_empty()).count(), open.len(), "{csv}");
}

/// What has to be known of the best row is said beside it, what was not understood of a config among it.
#[test]
fn caveats_stand_beside_the_best_row() {
    let config = json!({"output_dir": "out", "per_device_train_batch_size": 2, "bf16": true, "gradient_acumulation_steps": 4});
    let bench = bench().file("args.json", config.to_string());
    let given = "--from args.json --gpu t4";
    let found = search(&bench, given, &["recompute=none,full"]);
    let caveats = found["caveats"].as_array().unwrap();
    let says = "`gradient_acumulation_steps` (did you mean `gradient_accumulation_steps`?) is not understood, and may change memory: see `not read`";
    assert!(caveats.contains(&json!(says)) && caveats.len() == 2, "{caveats:?}");
    let table = text(&bench, given, &["recompute=none,full"]);
    let (_, beside) = table.split_once("\nnote: ").unwrap();
    assert!(beside.replace("\n      ", " ").contains(says), "{table}");
}

/// Gradient accumulation that differs between rows is said once, with the option that sets the sequences of a step.
#[test]
fn accumulation_that_follows_is_said() {
    let bench = bench();
    let said = |among: &[&str]| {
        text(&bench, &format!("--gpu a100-40gb --gpus 4 {GROUPS}"), among).replace('\n', " ")
    };
    let says = "gradient accumulation follows from them (--global-batch-size N says how many they are)";
    assert_eq!(said(&["tp=1,2"]).matches(says).count(), 1);
    assert_eq!(said(&["recompute=none,full"]).matches(says).count(), 0);
}

/// `none` and `off` are the step without an option, of every option that has such a step.
#[test]
fn without_is_a_value() {
    let bench = bench();
    let peak = |options: &str| {
        let out = bench.answer(&format!("plan config.json --gpus 2 --format json {options}"));
        serde_json::from_str::<Value>(&out).unwrap()["device_peak"]["bytes"].as_u64()
    };
    let plain = peak("");
    for option in [
        "lora",
        "quantize",
        "fsdp",
        "zero",
        "recompute",
        "offload",
        "freeze",
        "attention-mask",
        "hold-outputs",
        "sp",
        "weights-dtype",
        "grad-dtype",
        "master-weights",
        "reduce-dtype",
        "gradient-checkpointing",
        "fused-loss",
        "clip-grad-norm",
        "prepare-for-kbit",
        "momentum",
        "loss-in-model",
        "expand-kv",
        "ddp-bucket-view",
    ] {
        for without in ["none", "off"] {
            assert_eq!(peak(&format!("--{option}={without}")), plain, "{option}={without}");
        }
        let found = search(&bench, "--gpu a100-40gb --gpus 2", &[&format!("{option}=none")]);
        assert_eq!(found["rows"][0]["device_peak_bytes"].as_u64(), plain, "{option}");
    }
    // it takes back what a file or the baseline has
    let lora = "--lora r=4,targets=q_proj --candidate";
    let mut command = bench.command(&format!("plan config.json --gpus 2 --format json {lora}"));
    let out = command.arg("whole: --lora none").output().unwrap();
    let plan: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(plan["candidates"]["whole"]["device_peak_bytes"].as_u64(), plain);
}

/// `--top` shortens the table of what none beats, and `--all` shows the whole.
#[test]
fn long_fronts_are_cut() {
    let bench = bench();
    let among = ["tp=1,2", "recompute=none,full,selective", "zero=0,1,2,3", "batch=1,2,4", "pp=1,2"];
    let lines = |more: &str| {
        let out =
            text(&bench, &format!("--gpu a100-40gb --gpus 8 --global-batch-size 32 {GROUPS} {more}"), &among);
        let (_, table) = out.split_once("memory against time").unwrap();
        let (table, _) = table.split_once("\n\n").unwrap();
        let lines = table.lines().filter(|line| !line.starts_with("without room: "));
        (lines.count() - 2, table.contains("more that take less and longer (--all shows them)"))
    };
    let (all, is_cut) = lines("--all");
    assert!(all > 4 && !is_cut, "{all}");
    assert_eq!(lines("--top 2"), (3, true), "two rows, and what is said of the others");
}

#[test]
fn where_none_fits_the_closest_is_said() {
    let bench = bench();
    let out = text(&bench, "--gpu 300MiB", &["recompute=none,full", "batch=1,2"]);
    assert!(out.contains("none fits; the closest is recompute full"), "{out}");
    assert!(!out.contains("activations are kept for backward"), "another combination is described: {out}");
    let code = |exit: &str| {
        let among = ["recompute=none,full"];
        command(&bench, &format!("--gpu 300MiB {exit}"), &among).output().unwrap().status.code()
    };
    assert_eq!((code(""), code("--exit-code")), (Some(0), Some(1)));
}

#[test]
fn other_formats() {
    let bench = bench();
    let among = ["recompute=none,full", "batch=1,2"];
    let csv = text(&bench, "--gpu a100-40gb --global-batch-size 2 --format csv", &among);
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("recompute,batch,options,fits,"), "{csv}");
    assert!(lines[0].ends_with(",pareto,worst_rank") && lines[1].ends_with(",true,0"), "{csv}");
    assert_eq!(lines.len(), 5, "{csv}");
    assert!(
        lines[1].starts_with("none,2,--recompute=none --batch=2 --gradient-accumulation-steps 1,true,"),
        "{csv}"
    );
    let markdown = text(&bench, "--gpu a100-40gb --global-batch-size 2 --format markdown", &among);
    assert!(markdown.contains("| recompute | batch | fits | takes | in theory |"), "{markdown}");
    let out = text(&bench, "--gpu 16GiB --ascii", &among);
    assert!(out.is_ascii() && out.contains("the card's rates are not known"), "{out}");
}

#[test]
fn what_is_refused() {
    let bench = bench();
    for (arguments, among, says) in [
        ("", &["tp"][..], "`tp` is not NAME=V,V,…\n  help: write it as `--among \"tp=1,2,4,8\"`"),
        ("", &["tp=1,two"], "`--tp`: `two` is not a whole number"),
        ("", &["tp=1,,2"], "`` is no value of tp"),
        ("", &["tp=1,1"], "`1` is there twice among tp"),
        ("", &["tp=1,2", "tp=4"], "two lists of values of one option, tp and tp"),
        ("", &["tpp=1,2"], "a combination has no such option"),
        ("", &["tpp=none"], "a combination has no such option"),
        ("", &["sharding=zero 4"], "its values are `none`, `zero 1`, `zero 2`, `zero 3`, `full_shard`"),
        ("", &["sharding=zero 3,zero3"], "`zero 3` is there twice among sharding"),
        ("", &["sharding=none", "sharding=none"], "two lists of values of one option, sharding and sharding"),
        ("", &["gpu=t4,l4"], "a combination has no such option"),
        ("", &["gradient-accumulation-steps=1,2"], "use --global-batch-size"),
        ("--global-batch-size 8", &[], "none is asked for"),
        (
            "",
            &["batch=1,2", "micro-batch-size=4"],
            "two lists of values of one option, batch and micro-batch-size",
        ),
        (
            "",
            &["recompute=none,full", "gradient-checkpointing=true,false"],
            "two lists of values of one option",
        ),
        ("--tp 2", &["tp=1,2"], "`--tp` is said for every combination, and tp varies"),
        ("--seq 64", &["seq-len=32,64"], "`--seq-len` is said for every combination"),
        ("--global-batch-size 0", &["tp=1"], "`--global-batch-size`: a step has a sequence at least"),
        ("--batch 0", &["tp=1"], "`--micro-batch-size`: a step has a sequence at least"),
        ("--format html", &["tp=1"], "no `html` report"),
        ("--candidate a:", &["tp=1"], "does not go with"),
    ] {
        let out = command(&bench, &format!("--gpu a100-40gb {arguments}"), among).output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(
            (out.status.code(), out.stdout.as_slice()),
            (Some(2), b"".as_slice()),
            "{arguments} {among:?}"
        );
        assert!(said.starts_with("error: ") && said.contains(says), "{arguments} {among:?}: {said}");
    }
}

#[test]
fn more_than_can_be_tried_is_refused_at_once() {
    let values: Vec<String> = (1..=128).map(|length| length.to_string()).collect();
    let lengths = format!("seq-len={}", values.join(","));
    let batches = format!("batch={}", values.join(","));
    let prefetch = format!("offload-prefetch={}", values.join(","));
    let bench = bench();
    let out = command(&bench, "--gpu a100-40gb", &[&lengths, &batches, &prefetch]).output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(
        said.contains(
            "128 seq-len × 128 batch × 128 offload-prefetch are 2097152 combinations, more than 200000"
        ),
        "{said}"
    );
}

/// Outputs that are held beside the next passes let the allocator find blocks by turns: a row reserves what its plan reserves.
#[test]
fn what_a_step_holds_is_replayed_to_its_last_micro_batch() {
    let bench = Bench::new();
    let json = |out: String| -> Value { serde_json::from_str(&out).unwrap() };
    for micro_batches in [4, 8] {
        let options = format!(
            "smollm2-135m --gpu v100-16gb --seq 128 --precision fp16-mixed --micro-batch-size 2 \
             --hold-outputs=step --gradient-accumulation-steps {micro_batches} --format json"
        );
        let searched = json(bench.answer(&format!("fit {options} --among attention=sdpa")));
        let planned = json(bench.answer(&format!("plan {options}")));
        assert_eq!(searched["rows"][0]["reserved_bytes"], planned["reserved_bytes"], "{micro_batches}");
    }
}

/// Two of eight micro-batches and the last run out on this card, as they come to the last with other blocks free than the whole
/// step does, which fits.
#[test]
fn few_micro_batches_that_run_out_say_nothing_of_all() {
    let config = json!({
        "model_type": "llama", "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 4096, "tie_word_embeddings": false
    });
    let bench = Bench::new().file("config.json", config.to_string());
    let json = |line: &str| -> Value { serde_json::from_str(&bench.answer(line)).unwrap() };
    let step = "config.json --gpu 912MiB --alloc-conf expandable_segments:True --seq 777 --precision bf16 \
                --optimizer adamw-8bit --attention eager --hold-outputs=step --format json";
    let given = format!("{step} --micro-batch-size 3 --gradient-accumulation-steps");
    let [few, all] = [3, 8].map(|steps| json(&format!("plan {given} {steps}"))["verdict"].clone());
    assert_eq!((&few["fits"], &all["fits"]), (&json!(false), &json!(true)));
    let found = json(&format!("fit {step} --global-batch-size 24 --among micro-batch-size=1,3"));
    let row =
        |value: &str| found["rows"].as_array().unwrap().iter().find(|row| row["values"][0] == value).unwrap();
    assert_eq!((&row("3")["fits"], &row("3")["headroom_bytes"]), (&json!(true), &all["headroom_bytes"]));
    assert_eq!((&found["fitting"], &found["open"]), (&json!(2), &json!(0)));
    // and so it is with a step that is asked about alone, for which one token more is too long
    let alone = json(&format!("fit {given} 8"));
    assert_eq!(
        (&alone["rows"][0]["fits"], &alone["rows"][0]["headroom_bytes"]),
        (&json!(true), &all["headroom_bytes"])
    );
    let longest = alone["rows"][0]["largest_seq_len"].as_u64().unwrap();
    let fits = |length: u64| {
        let given = given.replace("777", &length.to_string());
        json(&format!("plan {given} 8"))["verdict"]["fits"].clone()
    };
    assert_eq!((fits(longest), fits(longest + 1)), (json!(true), json!(false)), "{longest}");
}

/// A row that was not replayed is that of the rank that needs most by its device peak, and says so: `plan` shows the one for which
/// most is reserved.
#[test]
fn a_row_says_whose_bytes_it_has() {
    let config = json!({
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": false
    });
    let bench = Bench::new().file("config.json", config.to_string());
    let step = format!("--pp 4 --micro-batch-size 4 --gradient-accumulation-steps 8 --gpu 330MiB {GROUPS}");
    let found = search(&bench, &step, &["zero=0,1"]);
    let row = found["rows"].as_array().unwrap().iter().find(|row| row["values"][0] == "1").unwrap();
    let plan = |rank: &str| -> Value {
        let line = format!("plan config.json {step} --zero 1 --rank {rank} --format json");
        serde_json::from_str(&bench.answer(&line)).unwrap()
    };
    assert_eq!((&row["fits"], &plan("worst")["rank"]), (&json!(false), &json!(3)));
    let own = plan(&row["worst_rank"].to_string());
    assert_eq!((&own["rank"], &own["device_peak"]["bytes"]), (&json!(0), &row["device_peak_bytes"]));
}
