//! accelerate: how many GPUs there are, and how they are used.

use super::*;

#[test]
fn accelerate_says_how_many_gpus_and_how_they_are_used() {
    insta::assert_snapshot!(becomes(&[ACCELERATE, TRAINING_ARGUMENTS], ""), @"
    peakledger plan Qwen/Qwen2.5-0.5B
      --gpus 16
      --gpus-per-node 8
      --fsdp full_shard
      --seq-len 4096
      --micro-batch-size 2
      --gradient-accumulation-steps 4
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --recompute full
      --loss-in-model
      --precision bf16-mixed
    unplanned: accelerate-fsdp2.yaml:6 fsdp_config: accelerate's autocast around the model that FSDP shards: planned with FSDP's own casts alone
    ");
    let text = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: cpu\n  \
                zero3_init_flag: true\n  gradient_accumulation_steps: 4\nmixed_precision: bf16\nnum_processes: 8\n\
                parallelism_config:\n  parallelism_config_tp_size: 2\n";
    insta::assert_snapshot!(becomes(&[("acc.yaml", text)], "gpt2"), @"
    peakledger plan gpt2
      --gpus 8
      --precision bf16-mixed
      --zero 3
      --offload optimizer
      --gradient-accumulation-steps 4
      --tp 2
    ");
    let text = "distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: fp8\n";
    insta::assert_snapshot!(becomes(&[("acc.yaml", text)], "gpt2"), @r"
    acc.yaml:3:18 (/mixed_precision): fp8 is not planned
      help: say it: add `--precision` to the command line
    ");
    insta::assert_snapshot!(becomes(&[("acc.yaml", text)], "gpt2 --precision bf16-mixed"), @r"
    peakledger plan gpt2
      --gpus 8
      --precision bf16-mixed
    ");
}

#[test]
fn ranks_that_share_a_sequence() {
    let text = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n\
                fsdp_config:\n  fsdp_version: 2\nparallelism_config:\n  parallelism_config_cp_size: 8\n  \
                parallelism_config_cp_comm_strategy: alltoall\n";
    insta::assert_snapshot!(becomes(&[("long.yaml", text)], "llama-3.1-8b --seq 131072"), @"
    peakledger plan llama-3.1-8b
      --gpus 8
      --precision bf16-mixed
      --fsdp full_shard
      --cp 8
      --cp-rotate-method alltoall
      --seq-len 131072
    unplanned: long.yaml:6 fsdp_config: accelerate's autocast around the model that FSDP shards: planned with FSDP's own casts alone
    ");
    let text = text.replace("alltoall", "sometimes");
    insta::assert_snapshot!(becomes(&[("long.yaml", &text)], "llama-3.1-8b"), @"
    long.yaml:9:40 (/parallelism_config/parallelism_config_cp_comm_strategy): no way of torch's: `sometimes`
      help: write allgather or alltoall
    ");
}

#[test]
fn fsdp_of_another_version_is_said() {
    let accelerate =
        "distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n";
    insta::assert_snapshot!(becomes(&[("acc.yaml", accelerate)], "gpt2"), @"
    peakledger plan gpt2
      --gpus 4
      --fsdp full_shard
    unplanned: acc.yaml:4 fsdp_config: FSDP1's flat parameters: FSDP2 is planned, which shards parameter by parameter
    ");
}
