//! `plan --post-training` from outside: its table, its JSON, its ledger under the other verbs, and what it refuses.

use crate::support::Bench;
use insta::assert_snapshot;
use serde_json::{Value, json};

/// A model small enough that every figure can be followed.
fn bench() -> Bench {
    let small = json!({
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": false
    });
    Bench::new().file("config.json", small.to_string())
}

const GRPO: &str =
    "plan config.json --post-training grpo --prompt-len 8 --response-len 5 --batch 8 --precision bf16";

#[test]
fn a_table() {
    let options = "--beta 0.04 --offload-between reference --gpu t4 --top 4";
    assert_snapshot!(bench().answer(&format!("{GRPO} {options}")), @"
    peak 20.97 MiB in backward.0 of a grpo step
    at log_probs: _to_copy
    fits: 14.41 GiB to spare on Tesla T4 (20.97 MiB at the device peak and 140.88
    MiB of CUDA context, of 14.56 GiB)
    beside it, up to 397.50 KiB on the cpu
    config.json
    actor: 202,048 parameters, 397.50 KiB of weights, 793.00 KiB of optimizer state
    reference: 202,048 parameters, 397.50 KiB of weights

    step       GRPO, as TRL 1.16 runs it: 8 sequences in groups of 8, one optimizer
               step on a rollout; 8 tokens of prompt and 5 of response, every row at
               full length
    rollout    generate() of transformers with the weights that are trained, all 8
               sequences at once at temperature 1; a DynamicCache that grows to
               24.00 KiB, a layer copied at each step
    scoring    under no_grad in micro-batches of 8, of which one is here, by the
               weights of: reference
    loss       TRL's fused head and log-probabilities: logits in tiles of 4096 ×
               32768, made again in backward, both gradients summed in fp32
    between    on the host while no phase needs them: the reference
    model      transformers 5.24 modules (modeling_llama.py) on torch 2.15, every
               parameter trained
    batch      8 sequences of 13 tokens
    precision  weights, gradients and optimizer state in bf16, computed in bf16
    attention  sdpa: the math path, since no fused kernel takes grouped heads here
               (--expand-kv repeats them)
    optimizer  AdamW (foreach, as torch picks on CUDA)
    recompute  none: activations are kept for backward
    kernels    at device level: two cuBLAS workspaces of 8.13 MiB, for the loop's
               thread and autograd's, and what the backward kernels of attention,
               softmax and embedding allocate for themselves

       phase                total                                                cpu
       rollout          17.59 MiB  ███████████████████████████████        397.50 KiB
       score_reference  20.33 MiB  ███████████████████████████████████▉          0 B
       forward.0        18.15 MiB  ████████████████████████████████       397.50 KiB
       loss.0           20.60 MiB  ████████████████████████████████████▍  397.50 KiB
    ▶  backward.0       20.97 MiB  █████████████████████████████████████  397.50 KiB
       update           18.19 MiB  ████████████████████████████████▏      397.50 KiB
       zero_grad        17.80 MiB  ███████████████████████████████▍       397.50 KiB

    at the peak
    cuBLAS workspaces                                  16.25 MiB  77.5 %  ███████▊
    actor · backward temporaries · log-probabilities    2.76 MiB  13.2 %  █▍
    actor · optimizer state · exp_avg                 396.50 KiB   1.8 %  ▏
    actor · optimizer state · exp_avg_sq              396.50 KiB   1.8 %  ▏
    and 13 more, 1.19 MiB

    not counted: what the caching allocator reserves beyond what is allocated:
                 between phases it is as a rule given back (empty_cache), within one
                 it is fragmentation; `--save FILE` and `peakledger replay FILE`
                 show it without that
    not counted: the few tensors of 4 bytes a token that the loss and the advantages
                 take
    ");
}

#[test]
fn json_has_the_fields_of_show_and_its_own() {
    let bench = bench();
    let answer = bench.answer(&format!(
        "{GRPO} --rollout-engine vllm --vllm-enable-sleep-mode=1 --gpu 80GiB --format json"
    ));
    let plan: Value = serde_json::from_str(&answer).unwrap();
    let phases: Vec<&str> =
        plan["phases"].as_array().unwrap().iter().map(|p| p["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["rollout", "score_actor", "forward", "loss", "backward", "update", "zero_grad"]);
    let step = &plan["post_training"];
    assert_eq!(step["algorithm"], "grpo");
    assert_eq!(
        [&step["prompt_len"], &step["response_len"], &step["rollout_sequences"]].map(Value::as_u64),
        [Some(8), Some(5), Some(8)]
    );
    assert_eq!(step["kv_cache_bytes"], 32_768);
    assert_eq!(step["models"][0]["name"], "actor");
    assert_eq!(step["models"][0]["parameters"], 202_048);
    let grouped: u64 =
        step["contributors"].as_array().unwrap().iter().map(|c| c["bytes"].as_u64().unwrap()).sum();
    assert_eq!(Some(grouped), plan["peak"]["peak_bytes"].as_u64());
    assert_eq!(plan["host_peak_bytes"], 202_048 * 2, "the weights of vLLM, asleep");
    assert_eq!(
        (&plan["verdict"]["compared"], &plan["reserved_bytes"]),
        (&json!("device_peak + outside"), &json!(null))
    );
}

#[test]
fn its_ledger_is_a_ledger() {
    let bench = bench();
    bench.answer(&format!("{GRPO} --beta 0.04 --save awake.json"));
    bench.answer(&format!("{GRPO} --beta 0.04 --offload-between reference --save asleep.json"));
    assert!(bench.answer("check awake.json").contains("valid (a document)"));
    let shown = bench.answer("show awake.json");
    assert!(shown.contains("score_reference") && shown.contains("rollout"), "{shown}");
    let compared = bench.answer("compare awake.json asleep=asleep.json --format json");
    let compared: Value = serde_json::from_str(&compared).unwrap();
    let saved = compared["candidates"]["asleep"]["memory_saving_bytes"].as_u64().unwrap();
    let plan: Value =
        serde_json::from_str(&bench.answer(&format!("{GRPO} --beta 0.04 --format json"))).unwrap();
    assert_eq!(Some(saved), plan["post_training"]["models"][1]["weights_bytes"].as_u64());
    bench.answer("report awake.json asleep=asleep.json -o report.html");
    bench.answer(&format!("{GRPO} -o plan.html"));
    assert!(bench.read("plan.html").contains("rollout"));
    let csv = bench.answer(&format!("{GRPO} --format csv"));
    assert_eq!(csv.lines().count(), 1 + 6, "{csv}");
    assert!(bench.answer(&format!("{GRPO} --format markdown")).contains("| at the peak |"));
    assert!(bench.answer(&format!("{GRPO} --plot")).contains("rollout"));
}

#[test]
fn whose_step_it_is_where_there_are_many_ranks() {
    let bench = bench();
    let first = |options: &str| {
        let answer = bench.answer(&format!("{GRPO} {options} --top 1"));
        answer.lines().next().unwrap_or_default().to_owned()
    };
    let lines = ["--gpus 4", "--gpus 3 --zero 2", "--gpus 3 --zero 2 --rank 1"].map(first);
    assert_snapshot!(lines.join("\n"), @"
    peak 21.22 MiB in backward.0 of a grpo step on each of 4 ranks
    peak 971.63 MiB in backward.0 of a grpo step on rank 1 of 3, which needs most
    peak 971.63 MiB in backward.0 of a grpo step on rank 1 of 3
    ");
    let plan: Value =
        serde_json::from_str(&bench.answer(&format!("{GRPO} --gpus 3 --zero 2 --rank 1 --format json")))
            .unwrap();
    let step = &plan["post_training"];
    assert_eq!([&step["world"], &step["rank"]], [&json!(3), &json!(1)]);
    assert_eq!(step["ranks_differ"], false, "it was asked for");
    let said = bench.answer(&format!("{GRPO} --beta 0.04 --gpus 4 --zero 3 --gpu 80GiB --top 3"));
    assert_snapshot!(said, @"
    peak 974.71 MiB in backward.0 of a grpo step on each of 4 ranks
    at log_probs: _to_copy
    fits: 78.10 GiB to spare on 80GiB (974.71 MiB at the device peak and 286.10 MiB
    of CUDA context and 688.00 MiB of 1 communicator, of 80.00 GiB)
    config.json
    actor: 202,048 parameters, 100.00 KiB of weights, 198.00 KiB of optimizer state,
    99.00 KiB of master weights, 100.00 KiB of gradient buffers
    reference: 202,048 parameters, 499.00 KiB of weights

    step       GRPO, as TRL 1.16 runs it: 8 sequences on each rank, 32 together in
               groups of 8, one optimizer step on a rollout; 8 tokens of prompt and
               5 of response, every row at full length
    models     4: each rolls out, scores and trains on sequences of its own; passes
               that score fetch by the trace of a whole micro-batch, and what
               backward would use soon stays; the reference is shared out, each
               parameter by itself; DeepSpeed records that trace anew after each
               generate(), which holds less until it has it
    rollout    generate() of transformers with the weights that are trained, all
               gathered at once for it (ds3_gather_for_generation), all 8 sequences
               at once at temperature 1; a DynamicCache that grows to 24.00 KiB, a
               layer copied at each step
    scoring    under no_grad in micro-batches of 8, of which one is here, by the
               weights of: reference
    loss       TRL's fused head and log-probabilities: logits in tiles of 4096 ×
               32768, made again in backward, both gradients summed in fp32
    between    every model stays on the device
    model      transformers 5.24 modules (modeling_llama.py) on torch 2.15, every
               parameter trained
    batch      8 sequences of 13 tokens
    precision  weights in bf16, gradients summed in bf16, partitions of master
               weights and optimizer state in bf16 (no autocast)
    attention  sdpa: the flash kernel (half types, no mask, sm80 or later)
    optimizer  AdamW (foreach, as torch picks on CUDA)
    recompute  none: activations are kept for backward
    kernels    at device level: two cuBLAS workspaces of 8.13 MiB, for the loop's
               thread and autograd's, and what the backward kernels of attention,
               softmax and embedding allocate for themselves
    world      4 GPUs = tp 1 × cp 1 × dp 4 × pp 1; ranks in the order tp-cp-ep-dp-pp
    groups     NCCL communicators outside the allocator, as measured on A100s with
               NVLink (NVIDIA/nccl#964): dp-cp of 4 ranks (688.00 MiB)
    ranks      4 ranks with 8 a micro-batch each, rank 0 planned: ZeRO 3 (DeepSpeed
               0.19, one parameter group, a bucket of 500000000 numbers for
               gradients; 1000000000 numbers at once at most, fetched 50000000 at a
               time, those of at most 100000 kept whole, stepped in sub-groups of
               1000000000; the trace of modules is whole from the first step on)

       phase                 total
       rollout          971.42 MiB  ███████████████████████████████████████▉
       score_reference  973.81 MiB  ████████████████████████████████████████
       forward.0        971.88 MiB  ███████████████████████████████████████▉
       loss.0           974.34 MiB  ████████████████████████████████████████
    ▶  backward.0       974.71 MiB  ████████████████████████████████████████
       update           971.29 MiB  ███████████████████████████████████████▉
       zero_grad        971.29 MiB  ███████████████████████████████████████▉

    at the peak
    actor · communication · reduce bucket             953.67 MiB  97.8 %  █████████▊
    cuBLAS workspaces                                  16.25 MiB   1.7 %  ▏
    actor · backward temporaries · log-probabilities    2.76 MiB   0.3 %  ▏
    and 18 more, 2.02 MiB

    not counted: what the caching allocator reserves beyond what is allocated:
                 between phases it is as a rule given back (empty_cache), within one
                 it is fragmentation; `--save FILE` and `peakledger replay FILE`
                 show it without that
    not counted: the few tensors of 4 bytes a token that the loss and the advantages
                 take
    ");
}

#[test]
fn the_exit_code_says_whether_it_fits() {
    let bench = bench();
    assert_eq!(bench.run(&format!("{GRPO} --gpu 80GiB --exit-code")).code, Some(0));
    assert_eq!(bench.run(&format!("{GRPO} --gpu 10MiB --exit-code")).code, Some(1));
}

#[test]
fn what_it_refuses() {
    let bench = bench();
    let lines: Vec<String> = [
        "--response-len 7",
        "--post-training grpo --response-len 0",
        "--post-training dpo --group-size 8",
        "--post-training dpo --beta 0.1",
        "--post-training ppo --precompute-ref-log-probs",
        "--post-training grpo --vllm-enable-sleep-mode",
        "--post-training grpo --rollout-engine vllm --vllm-gpu-memory-utilization 30%",
        "--post-training grpo --rollout-engine vllm --vllm-gpu-memory-utilization 0.3",
        "--post-training grpo --offload-between everything",
        "--post-training grpo --seq-len 64",
        "--post-training grpo --tp 2",
        "--post-training grpo --gpus 2 --rank all",
        "--post-training grpo --gpus 2 --rank 2",
        "--post-training grpo --vllm-tensor-parallel-size 2",
        "--post-training grpo --gpus 4 --rollout-engine vllm --vllm-tensor-parallel-size 3",
        "--post-training grpo --explain parameters",
        "--post-training rlhf",
    ]
    .iter()
    .map(|options| bench.refusal(&format!("plan config.json {options}")).trim_end().to_owned())
    .collect();
    assert_snapshot!(lines.join("\n"), @"
    error: `peakledger plan` needs `--post-training NAME`
      help: it is written `peakledger plan --post-training NAME --response-len N MODEL`
    error: `--response-len`: a response of 0 tokens
      help: use 1 or more
    error: `--group-size`: groups of responses are GRPO's; dpo has none
      help: leave it out, or use `--post-training grpo`
    error: `--beta`: it decides whether GRPO has a reference
      help: leave it out: the others have one, whatever its weight
    error: `--precompute-ref-log-probs`: responses that are sampled have no log-probabilities beforehand
      help: leave it out, or use `--post-training dpo`
    error: `--vllm-enable-sleep-mode`: vLLM does not sample here
      help: add `--rollout-engine vllm`, or leave it out
    error: `--vllm-gpu-memory-utilization`: `30%` is no share of a card
      help: use a number above 0 and up to 1, as in 0.3
    error: `--vllm-gpu-memory-utilization`: it is a part of a card, and none is named
      help: add `--gpu`, or leave it out
    error: `--offload-between`: `everything` is none of its values
      help: choose of `actor`, `optimizer`, `reference`, `reward`, `critic`, several with commas between, or `none`
    error: `--seq-len`: a sequence is a prompt and a response
      help: say `--prompt-len` and `--response-len` instead
    error: `--tp`: post-training is planned over data parallel ranks alone
      help: leave it out, and shard by --fsdp full_shard or --zero 3
    error: `--rank`: post-training is shown of one rank
      help: use a number, or worst
    error: `--rank`: there is no rank 2 of 2
      help: use 0 to 1, or worst
    error: `--vllm-tensor-parallel-size`: vLLM does not sample here
      help: add `--rollout-engine vllm`, or leave it out
    error: `--vllm-tensor-parallel-size`: groups of 3 do not divide the 4 ranks
      help: use a divisor of --gpus
    error: `--post-training`: it does not go with `--explain`
      help: keep one of the two
    error: `--post-training`: `rlhf` is none of its values
      help: choose one of `grpo`, `ppo`, `dpo`
    ");
}
