//! Many GPUs from outside: which rank is shown, what is said of the others, and worlds that cannot be.

use crate::support::Bench;
use insta::assert_snapshot;
use serde_json::{Value, json};

/// A model small enough that every figure can be followed, of four layers.
fn bench() -> Bench {
    let config = json!({
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128, "tie_word_embeddings": false
    });
    Bench::new().file("config.json", config.to_string())
}

fn answer_json(arguments: &str) -> Value {
    serde_json::from_str(&bench().answer(&format!("plan config.json {arguments} --format json"))).unwrap()
}

#[test]
fn the_worst_rank_is_shown_and_the_others_beside_it() {
    let options = "--pp 2 --gradient-accumulation-steps 2 --step steady --gpu a100-80gb";
    assert_snapshot!(bench().answer(&format!("plan config.json {options}")), @"
    peak 5.14 MiB in backward.1 of the steady step
    at loss_function: _log_softmax_backward_data
    rank 1, stage 1 of 2: the worst of 2 ranks
    fits: 78.31 GiB to spare on NVIDIA A100-SXM4-80GB (26.00 MiB reserved and 286.10
    MiB of CUDA context and 544.00 MiB of 1 communicator, of 79.15 GiB)
    config.json: 292,416 parameters

    model      transformers 5.24 modules (modeling_llama.py) on torch 2.15, every
               parameter trained
    batch      1 sequence of 128 tokens, 2 micro-batches a step, all on the device
               from the start
    precision  weights, gradients and optimizer state in fp32, autocast to bf16
    attention  sdpa: the flash kernel (half types, no mask, sm80 or later)
    optimizer  AdamW (foreach, as torch picks on CUDA)
    recompute  none: activations are kept for backward
    loop       the schedule keeps the logits of the last stage until their backward,
               and the losses until the step ends; zero_grad sets gradients to None
    kernels    at device level: two cuBLAS workspaces of 8.13 MiB, for the loop's
               thread and autograd's, and what the backward kernels of attention,
               softmax and embedding allocate for themselves
    world      2 GPUs = tp 1 × cp 1 × dp 1 × pp 2; ranks in the order tp-cp-ep-dp-pp
    pipeline   1f1b: one forward, one backward after a warm-up; stage 1 of 2 holds
               layers 2–3, the last norm and the head; hidden states are sent in the
               type of the weights, and receive buffers are made and let go of as
               torch.distributed.pipelining does; autocast is entered for each
               forward pass
    groups     NCCL communicators outside the allocator, as measured on A100s with
               NVLink (NVIDIA/nccl#964): pp of 2 ranks (544.00 MiB)

       phase       steady step     device
       load           1.68 MiB  17.93 MiB  █████████████
       forward.0      3.12 MiB  19.37 MiB  ████████████████████████▎
       loss.0         4.06 MiB  20.31 MiB  ███████████████████████████████▋
       backward.0     4.55 MiB  20.80 MiB  ███████████████████████████████████▍
       forward.1      3.71 MiB  19.96 MiB  ████████████████████████████▉
       loss.1         4.65 MiB  20.91 MiB  ████████████████████████████████████▎
    ▶  backward.1     5.14 MiB  21.39 MiB  ████████████████████████████████████████
       update         2.80 MiB  19.05 MiB  █████████████████████▊
       zero_grad      2.24 MiB  18.49 MiB  █████████████████▍

    at the peak
    gradients of the logits, fp32         1000.00 KiB  19.0 %  ████
    gradients                              572.50 KiB  10.9 %  ██▎
    optimizer state · exp_avg              572.50 KiB  10.9 %  ██▎
    optimizer state · exp_avg_sq           572.50 KiB  10.9 %  ██▎
    parameters                             572.50 KiB  10.9 %  ██▎
    log-probabilities, fp32                500.00 KiB   9.5 %  ██
    activations · layers 2–3 · mlp         320.00 KiB   6.1 %  █▎
    autocast copies of the weights, bf16   285.00 KiB   5.4 %  █▏
    logits, bf16                           250.00 KiB   4.7 %  █
    activations · layers 2–3 · attention   230.00 KiB   4.4 %  ▉
    and 10 more, 389.00 KiB

    ranks
       ranks  stage  layers  parameters      peak  in                     device
       0      0      0–1        146,176  3.71 MiB  backward.0, steady  19.96 MiB
    ▶  1      1      2–3        146,240  5.14 MiB  backward.1, steady  21.39 MiB
    without room: reserved (COLUMNS=87 shows them)

    device peak 21.39 MiB with the batch and kernel memory, in backward.1 of the
    steady step
    reserved 26.00 MiB by the caching allocator, most of all in backward.1 of the
    steady step: there 21.39 MiB allocated, 4.61 MiB free in segments that are
    partly in use
    costs of the steady step, of rank 1, which takes longest: 282.9 MFLOP; 54.66 MiB
    moved on the card, 64.00 KiB sent to other ranks; theoretical on NVIDIA
    A100-SXM4-80GB, at its peak rates: 39.62 µs, 11.29 µs waiting in the pipeline,
    0.22 µs to other ranks over NVLink
    not counted: the little that other kernels allocate inside themselves (sorting,
                 reductions, cuBLASLt)
    ");
}

#[test]
fn json_has_the_world_and_every_class_of_ranks() {
    let options = "--pp 4 --gradient-accumulation-steps 4";
    let worst = answer_json(options);
    assert_eq!(worst["world"]["ranks"], 4);
    assert_eq!((&worst["world"]["pp"], &worst["world"]["dp"]), (&json!(4), &json!(1)));
    assert_eq!(worst["world"]["schedule"], "1f1b");
    let ranks = worst["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 4);
    let layers: Vec<&Value> = ranks.iter().map(|class| &class["layers"]).collect();
    assert_eq!(layers, [&json!([[0, 0]]), &json!([[1, 1]]), &json!([[2, 2]]), &json!([[3, 3]])]);
    assert!(ranks.iter().all(|class| class["count"] == 1 && class["steady_step"].is_null()));
    let needed =
        |class: &Value| class["reserved_bytes"].as_u64().unwrap() + class["outside_bytes"].as_u64().unwrap();
    let most = ranks.iter().max_by_key(|class| needed(class)).unwrap();
    assert!(ranks.iter().any(|class| class["is_worst"] == true && needed(class) == needed(most)));
    let own = ranks.iter().find(|class| class["ranks"] == json!([[worst["rank"], worst["rank"]]])).unwrap();
    assert_eq!(own["is_worst"], true);
    assert_eq!(own["peak"]["bytes"], worst["peak"]["bytes"]);
    assert_eq!(worst["communicators"], json!([{"name": "pp", "ranks": 4, "bytes": 688u64 << 20}]));
    assert_eq!(worst["outside_bytes"], (688u64 << 20) + 300_000_000);

    // any other rank, and what was said of it
    for (rank, class) in ranks.iter().enumerate() {
        let own = answer_json(&format!("{options} --rank {rank}"));
        assert_eq!(own["rank"], rank);
        assert_eq!(own["peak"]["bytes"], class["peak"]["bytes"]);
        assert_eq!(own["reserved_bytes"], class["reserved_bytes"]);
    }
    let all = answer_json(&format!("{options} --rank all"));
    let own = answer_json(&format!("{options} --rank 2"));
    assert_eq!(all["ranks"][2]["steady_step"], own["steady_step"]);
    assert_eq!(all["rank"], worst["rank"]);
    let alone = answer_json("");
    assert!(alone["world"].is_null() && alone["ranks"].is_null() && alone["communicators"].is_null());
}

#[test]
fn csv_has_the_phases_of_all_ranks_where_they_are_wanted() {
    let rows = |options: &str| -> Vec<String> {
        let options =
            format!("plan config.json --pp 2 --gradient-accumulation-steps 2 {options} --format csv");
        bench().answer(&options).lines().map(str::to_owned).collect()
    };
    let (worst, all) = (rows(""), rows("--rank all"));
    assert!(worst[0].ends_with(",communicated_bytes,rank"));
    assert!(worst[1..].iter().all(|row| row.ends_with(",1")), "{worst:?}");
    assert!(all.len() > worst.len() && all.last().unwrap().ends_with(",0"));
}

#[test]
fn what_is_on_a_host_is_added_up() {
    let options = "--pp 4 --gradient-accumulation-steps 4 --offload optimizer --gpus-per-node 2";
    let plan = answer_json(options);
    let host = |class: usize| plan["ranks"][class]["host_peak_bytes"].as_u64().unwrap();
    let nodes = [host(0) + host(1), host(2) + host(3)];
    let most = *nodes.iter().max().unwrap();
    assert_eq!(plan["world"]["host"]["bytes"], most);
    assert_eq!(plan["world"]["host"]["host"], nodes.iter().position(|bytes| *bytes == most).unwrap());
}

#[test]
fn what_a_group_takes_can_be_said() {
    let plan = answer_json("--pp 2 --gradient-accumulation-steps 2 --nccl-bytes-per-group 100MiB");
    assert_eq!(plan["outside_bytes"], (100u64 << 20) + 300_000_000);
}

#[test]
fn candidates_and_fit_go_by_the_worst_rank() {
    let plan = answer_json(
        "--pp 2 --gradient-accumulation-steps 4 --gpu a100-80gb --candidate=more:--schedule=gpipe",
    );
    let gpipe = answer_json("--pp 2 --gradient-accumulation-steps 4 --gpu a100-80gb --schedule gpipe");
    assert_eq!(plan["candidates"]["more"]["bytes"], gpipe["peak"]["bytes"]);
    let fit = bench()
        .answer("fit config.json --pp 2 --gradient-accumulation-steps 4 --gpu a100-80gb --format json");
    let fit: Value = serde_json::from_str(&fit).unwrap();
    assert_eq!(fit["rows"][0]["device_peak_bytes"], plan["device_peak"]["bytes"]);
    assert_eq!(fit["outside_bytes"], plan["outside_bytes"]);
}

/// Worlds that cannot be, each with its sizes in the equation, the option to change, and code 2.
#[test]
fn worlds_that_cannot_be() {
    for (options, said) in [
        ("--gpus 6 --tp 4", "6 GPUs, but tp 4 × cp 1 × pp 1 = 4"),
        ("--gpus 16 --tp 4 --pp 2 --dp 4", "16 GPUs, but tp 4 × cp 1 × dp 4 × pp 2 = 32"),
        ("--gpus 8 --ep 3", "8 ranks are no multiple of etp 1 × ep 3 × pp 1 = 3"),
        ("--pp 0", "0 is no number of ranks"),
        ("--pp 3", "4 layers are no multiple of pp 3"),
        (
            "--pp 2 --virtual-stages 3 --gradient-accumulation-steps 2",
            "4 layers are no multiple of pp 2 × virtual stages 3 = 6",
        ),
        ("--pp 2 --decoder-first-pipeline-num-layers 4", "4 layers less 4 of the first and last stage"),
        ("--schedule zb-h1", "there is one stage"),
        ("--virtual-stages 2", "there is one stage"),
        ("--pp 2 --schedule interleaved", "stages of one part have nothing to interleave"),
        ("--pp 2 --schedule gpipe --virtual-stages 2", "gpipe runs stages of one part"),
        (
            "--pp 2 --virtual-stages 2 --gradient-accumulation-steps 5",
            "take 5 micro-batches in 5 / 2 = 2 groups, and they are no multiple of that",
        ),
        (
            "--pp 2 --virtual-stages 2 --gradient-accumulation-steps 3 --stack megatron",
            "in groups of pp 2, and 3 are no multiple",
        ),
        (
            "--pp 2 --schedule dualpipe --gradient-accumulation-steps 2",
            "2 × pp 2 = 4 or more, and 2 are given",
        ),
        (
            "--pp 4 --rank 4 --gradient-accumulation-steps 4",
            "there is no rank 4 of 4\n  help: use 0 to 3, worst or all",
        ),
        ("--rank best", "is no rank"),
        ("--rank -1", "`--rank`: `-1` is no rank"),
        ("--tp 2 --etp 2", "`--etp`: the model has no experts"),
        ("--pp 2 --recompute layers:4", "there is no layer 4 of 4"),
        (
            "--pp 4 --gradient-accumulation-steps 65536",
            "1 layers of a stage and its ends × 65536 micro-batches",
        ),
        ("--pp 2 --hold-outputs", "keeps what the last stage puts out"),
        ("--pp 2 --fused-loss", "computes the loss from the logits"),
        ("--zero 4", "4"),
        ("--zero 1 --fsdp full_shard", "--fsdp"),
        ("--zero 2 --offload parameters", "DeepSpeed offloads parameters in stage 3 alone"),
        ("--nccl-bytes-per-group 5", "is no amount of memory"),
    ] {
        let refusal = bench().refusal(&format!("plan config.json {options}"));
        assert!(refusal.contains(said), "{options}: {refusal}");
        assert!(refusal.contains("help:"), "{options}: {refusal}");
    }
}

/// Layers are named as the model counts them, whatever stage holds them.
#[test]
fn named_layers_are_those_of_the_model() {
    let peak = |rank: u32, options: &str| {
        let options = format!("--pp 2 --gradient-accumulation-steps 2 --seq 128 --rank {rank} {options}");
        answer_json(&options)["peak"]["bytes"].as_u64().unwrap()
    };
    assert!(peak(0, "--recompute layers:0-1") < peak(0, ""));
    assert_eq!(peak(0, "--recompute layers:0-1"), peak(0, "--recompute full"));
    assert_eq!(peak(0, "--recompute layers:0-1"), peak(0, "--recompute layers:0-3"));
    let there = peak(0, "--offload activations --offload-layers 0-1");
    assert_eq!(there, peak(0, "--offload activations"));
    assert!(there < peak(0, "--offload activations --offload-layers 2-3"), "those of the other stage");
}

/// Experts are split as everything else, or whole and spread: no other split is priced.
#[test]
fn experts_are_split_as_transformers_splits_them() {
    let config = json!({
        "model_type": "mixtral", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "max_position_embeddings": 64
    });
    let bench = Bench::new().file("moe.json", config.to_string());
    for options in ["--tp 2 --etp 1", "--dp 4 --etp 4"] {
        let refusal = bench.refusal(&format!("plan moe.json {options}"));
        assert!(refusal.contains("`--etp`: transformers splits the matrices of experts"), "{refusal}");
    }
    let bare = bench.answer("plan moe.json --tp 2");
    assert_eq!(bare, bench.answer("plan moe.json --tp 2 --etp 2"));
}

/// Each of a thousand stages is planned, and the whole model counted once for all of them.
#[test]
fn a_thousand_stages_take_no_time() {
    let config = json!({
        "model_type": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1024,
        "num_attention_heads": 4, "max_position_embeddings": 64
    });
    let bench = Bench::new().file("deep.json", config.to_string());
    let options = "plan deep.json --pp 1024 --gradient-accumulation-steps 2 --format json";
    let plan: Value = serde_json::from_str(&bench.answer(options)).unwrap();
    assert_eq!(plan["ranks"].as_array().unwrap().len(), 1024);
    let refusal = bench.refusal("plan deep.json --pp 1024 --gradient-accumulation-steps 4096");
    assert!(refusal.contains("`--pp`: 1024 stages × 1 layers"), "{refusal}");
}

/// A stage of 640 ranks that share out its states has as many plans as they have unlike parts.
#[test]
fn ten_thousand_ranks_are_told_apart() {
    let options = "plan llama-3.1-70b --gpus 10240 --pp 16 --zero 1 --gradient-accumulation-steps 32 --seq 4096 \
                   --recompute full --format json";
    let plan: Value = serde_json::from_str(&Bench::new().answer(options)).unwrap();
    assert_eq!((&plan["world"]["ranks"], &plan["world"]["dp"]), (&json!(10_240), &json!(640)));
    let classes = plan["ranks"].as_array().unwrap();
    for stage in 0..16 {
        let of_stage = classes.iter().filter(|class| class["stage"] == stage);
        let counts: Vec<u64> = of_stage.map(|class| class["count"].as_u64().unwrap()).collect();
        // parts of the same matrix are alike
        assert!(counts.iter().sum::<u64>() == 640 && counts.len() < 100, "stage {stage}: {counts:?}");
    }
    assert!(plan["rank"].as_u64().unwrap() < 640, "the first stage has most in flight");
}

/// The verdict is by what is reserved, which need not be most where most is allocated.
#[test]
fn a_rank_that_peaks_higher_and_needs_less_of_the_card_is_told_apart() {
    let options = "--zero 2 --offload optimizer --clip-grad-norm --seq-len 512 --gpus 4 --gpu h100-80gb";
    let answer = Bench::new().answer(&format!("plan llama-3.2-1b {options}"));
    let lines: Vec<&str> = answer.lines().skip(2).take(2).collect();
    assert_snapshot!(lines.join("\n"), @"
    rank 0: the worst of 4 ranks, for the allocator reserves most there, 10.26 GiB;
    rank 3 peaks higher, at 5.69 GiB, and reserves 9.21 GiB
    ");
}
