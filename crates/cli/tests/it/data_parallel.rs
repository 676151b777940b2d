//! Steps of data parallel ranks: what a plan says of them, and what cannot be combined.

use crate::support::Bench;

fn refusal(options: &str) -> String {
    Bench::new().refusal(&format!("plan llama-3.2-1b {options}"))
}

#[test]
fn a_plan_says_how_ranks_share_the_step_out() {
    let plan = |options: &str| Bench::new().answer(&format!("plan llama-3.2-1b --gpus 8 {options}"));
    let ranks = |options: &str| {
        let text = plan(options).split_whitespace().collect::<Vec<_>>().join(" ");
        let said = text.split(" ranks 8 ranks").nth(1).unwrap_or(&text).to_owned();
        said.split(" phase first").next().unwrap_or_default().to_owned()
    };
    insta::assert_snapshot!(ranks(""), @" with 1 a micro-batch each, rank 0 planned: DistributedDataParallel; buckets of 25 MiB, the first of 1 MiB, beside the gradients themselves, as they are rebuilt after the first backward");
    insta::assert_snapshot!(ranks("--fsdp full_shard --gradient-accumulation-steps 2"), @" with 1 a micro-batch each, rank 0 planned: FSDP2 over 8 ranks, a group for each decoder layer, one for the last norm and the embedding, which is the head (as accelerate since 1.14 and torchtitan wrap it; --fsdp-wrap), loaded as shards, resharded after forward but for the last; one group ahead in forward and in backward, one reduction behind; gradients reduced in fp32, after the last micro-batch alone (no_sync)");
    insta::assert_snapshot!(ranks("--fsdp hybrid_shard --gpus-per-node 4 --offload parameters"), @" with 1 a micro-batch each, rank 0 planned: FSDP2 over 4 ranks, 2 replicas of them, a group for each decoder layer, one for the last norm and the embedding, which is the head (as accelerate since 1.14 and torchtitan wrap it; --fsdp-wrap), loaded as shards, resharded after forward but for the last; one group ahead in forward and in backward, one reduction behind; gradients reduced in fp32 offload shards, their gradients and the optimizer are on the host; shards come to the card to be gathered (FSDP2's CPUOffloadPolicy)");
    insta::assert_snapshot!(ranks("--zero 2 --offload optimizer"), @" with 1 a micro-batch each, rank 0 planned: ZeRO 2 (DeepSpeed 0.19, one parameter group, a bucket of 500000000 numbers for gradients, summed in each backward; parameters are copied into one buffer at the start, on the host where the card has no room for both) offload master weights, their gradients and optimizer state are on the host, where DeepSpeedCPUAdam steps (offload_optimizer)");
    insta::assert_snapshot!(ranks("--zero 3"), @" with 1 a micro-batch each, rank 0 planned: ZeRO 3 (DeepSpeed 0.19, one parameter group, a bucket of 500000000 numbers for gradients; 1000000000 numbers at once at most, fetched 50000000 at a time, those of at most 100000 kept whole, stepped in sub-groups of 1000000000; the trace of modules is whole from the first step on)");
}

#[test]
fn who_is_at_the_peak_has_a_name() {
    let bench = Bench::new();
    let listed = |options: &str| {
        let text = bench.answer(&format!("plan llama-3.2-1b --gpus 8 --seq 1024 {options}"));
        let at = text.split("at the peak\n").nth(1).unwrap().split("\n\n").next().unwrap();
        at.lines()
            .map(|line| line.trim_end_matches(|c: char| !c.is_ascii() || c == ' '))
            .collect::<Vec<_>>()
            .join("\n")
    };
    insta::assert_snapshot!(listed("--fsdp full_shard"), @r"
    activations · layers 0–15 · mlp           1.00 GiB  18.7 %
    gradients of the logits, fp32          1002.00 MiB  18.3 %
    optimizer state · exp_avg               589.28 MiB  10.7 %
    optimizer state · exp_avg_sq            589.28 MiB  10.7 %
    parameters                              589.28 MiB  10.7 %
    activations · layers 0–15 · norms       512.13 MiB   9.3 %
    gathered parameters                     501.00 MiB   9.1 %
    log-probabilities, fp32                 501.00 MiB   9.1 %
    activations · layers 0–15 · attention   162.02 MiB   3.0 %
    activations · final norm                 16.00 MiB   0.3 %
    and 4 more, 258.00 KiB
    ");
    insta::assert_snapshot!(listed("--zero 2"), @r"
    parameters                                2.30 GiB  31.9 %
    communication · reduce bucket           953.67 MiB  12.9 %
    communication · gradients side by side  928.07 MiB  12.6 %
    master weights                          589.28 MiB   8.0 %
    optimizer state · exp_avg               589.28 MiB   8.0 %
    optimizer state · exp_avg_sq            589.28 MiB   8.0 %
    backward temporaries · head             501.00 MiB   6.8 %
    activations · layers 0–7 · mlp          496.00 MiB   6.7 %
    activations · layers 0–7 · norms        256.06 MiB   3.5 %
    activations · layers 0–7 · attention     81.01 MiB   1.1 %
    and 7 more, 52.25 MiB
    ");
    let explained =
        bench.answer("plan llama-3.2-1b --gpus 8 --fsdp full_shard --seq 1024 --explain communication");
    assert!(explained.contains("_fsdp_collectives.py"), "{explained}");
}

#[test]
fn what_cannot_be_combined_is_told_with_the_mend() {
    for (options, says) in [
        (
            "--dp 2 --offload parameters",
            "`--offload`: DistributedDataParallel has all parameters on the card",
        ),
        (
            "--zero 2 --dp 2 --offload parameters",
            "`--offload`: DeepSpeed offloads parameters in stage 3 alone",
        ),
        (
            "--zero 1 --dp 2 --grad-dtype fp32",
            "`--grad-dtype`: gradients summed in another type are planned for",
        ),
        (
            "--fsdp full_shard --dp 2 --optimizer adafactor",
            "`--optimizer`: Adafactor over shards is not planned yet",
        ),
        (
            "--fsdp full_shard --dp 2 --optimizer adamw-8bit",
            "`--optimizer`: bitsandbytes' AdamW8bit does not step shards",
        ),
        (
            "--fsdp full_shard --dp 2 --recompute every:2",
            "`--recompute`: a checkpoint over several layers that are gathered",
        ),
        ("--fsdp hybrid_shard --dp 12", "12 data parallel ranks are no multiple of the 8 of a node"),
        (
            "--fsdp full_shard --dp 2 --precision bf16 --master-weights fp32",
            "FSDP2 steps its shards in the type",
        ),
        ("--reduce-dtype bf16 --dp 2", "`--reduce-dtype`: nothing of this step reads it"),
        ("--ddp-bucket-view", "`--ddp-bucket-view`: nothing of this step reads it"),
        ("--zero-sub-group-size 5 --zero 2 --dp 2", "`--zero-sub-group-size`: nothing of this step reads it"),
        ("--fsdp full_shard --zero 3", "it does not go with `--zero`"),
    ] {
        let said = refusal(options);
        assert!(said.contains(says) && said.contains("\n  help: "), "{options}: {said}");
    }
}

#[test]
fn a_rank_alone_may_shard() {
    Bench::new().answer("plan llama-3.2-1b --fsdp full_shard --seq 256");
    Bench::new().answer("plan llama-3.2-1b --zero 3 --seq 256");
}

/// DeepSpeed scales losses by itself: torch's GradScaler refuses nothing there.
#[test]
fn fp16_under_zero_is_planned() {
    Bench::new().answer("plan gpt2 --seq 64 --precision fp16-mixed --dp 2 --zero 1");
}

#[test]
fn there_are_no_more_shards_than_ranks() {
    let said = Bench::new().refusal("plan gpt2 --seq 64 --dp 4 --fsdp hybrid_shard --dp-shard-size 8");
    assert!(said.contains("there are 4 data parallel ranks, which are fewer than 8"), "{said}");
}
