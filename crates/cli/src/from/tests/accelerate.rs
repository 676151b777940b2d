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
      --fused-loss
      --reduce-dtype bf16
    unplanned: accelerate-fsdp2.yaml:6 fsdp_config: accelerate's autocast around the model that FSDP shards: planned with FSDP's own casts alone
    unplanned: training-arguments.json loss_type: TRL's head and loss in tiles of 4096 tokens by 32768 words: Liger's fused loss, which comes nearest, is planned; TRL before 1.7 has whole logits (`--fused-loss=off`)
    ");
    let text = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: cpu\n  \
                zero3_init_flag: true\n  gradient_accumulation_steps: 4\nmixed_precision: bf16\nnum_processes: 8\n\
                parallelism_config:\n  parallelism_config_tp_size: 2\n";
    insta::assert_snapshot!(becomes(&[("acc.yaml", text)], "gpt2"), @"
    peakledger plan gpt2
      --gpus 8
      --precision bf16-mixed
      --clip-grad-norm
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
      --reduce-dtype bf16
      --seq-len 131072
    unplanned: long.yaml:6 fsdp_config: the whole model as one unit, where nothing says which are wrapped: the decoder layers are planned
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
      --precision fp32
      --fsdp full_shard
      --fsdp-wrap layers
    unplanned: acc.yaml:4 fsdp_config: the whole model as one unit, where nothing says which are wrapped: the decoder layers are planned
    unplanned: acc.yaml:4 fsdp_config: FSDP1's flat parameters: FSDP2 is planned, which shards parameter by parameter
    ");
}

/// What accelerate makes DeepSpeed's config of where a file leaves it out.
#[test]
fn deepspeed_without_a_file() {
    let text = "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\ndeepspeed_config: {}\n";
    insta::assert_snapshot!(becomes(&[("acc.yaml", text)], "gpt2"), @"
    peakledger plan gpt2
      --gpus 8
      --precision bf16-mixed
      --zero 2
      --clip-grad-norm
    ");
}

/// Gradients are reduced in the type of the precision, whoever says that.
#[test]
fn gradients_are_reduced_in_the_type_of_the_precision() {
    let text = "distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n";
    let reduced = |words: &str| {
        let said = becomes(&[("acc.yaml", text)], &format!("gpt2 {words}"));
        let is_asked = |line: &&str| line.contains("--reduce-dtype");
        said.lines().filter(is_asked).map(str::trim).collect::<Vec<_>>().join(" ")
    };
    for (words, wanted) in [
        ("--precision bf16-mixed", "--reduce-dtype bf16"),
        ("--precision fp16-mixed", "--reduce-dtype fp16"),
        ("--precision fp32", ""),
        ("--precision bf16-mixed --reduce-dtype fp32", "--reduce-dtype fp32"),
        ("--precision bf16-mixed --fsdp shard_grad_op", "--reduce-dtype bf16"),
        ("--precision bf16-mixed --zero 2", ""),
    ] {
        assert_eq!(reduced(words), wanted, "{words}");
    }
}

/// YAML reads an unquoted no as false.
#[test]
fn a_word_that_yaml_reads_as_a_flag() {
    let text = "distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: no\n";
    insta::assert_snapshot!(becomes(&[("acc.yaml", text)], "gpt2"), @r"
    acc.yaml:3:18 (/mixed_precision): `mixed_precision` is a word here, and this is read as true or false
      help: write no or off in quotes, if it was meant
    ");
}

/// FSDP2 asks whether it reshards, and FSDP1 for its strategy; each passes by the other's key.
#[test]
fn a_strategy_is_read_by_its_version() {
    let sharded = |keys: &str| {
        let text = format!(
            "distributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\nfsdp_config:\n  \
             fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n{keys}"
        );
        let said = becomes(&[("acc.yaml", &text)], "gpt2");
        let is_asked =
            |line: &&str| line.contains("--fsdp ") || line.contains("reshard") || line.contains("strategy");
        said.lines().filter(is_asked).map(str::trim).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(sharded("  fsdp_version: 2\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n"), @"
    --fsdp full_shard
    unplanned: acc.yaml:7 fsdp_config.fsdp_sharding_strategy: FSDP2 takes fsdp_reshard_after_forward, true where it is left out, and not this: planned so
    ");
    insta::assert_snapshot!(sharded("  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n"), @"--fsdp shard_grad_op");
    insta::assert_snapshot!(sharded("  fsdp_version: 1\n  fsdp_reshard_after_forward: SHARD_GRAD_OP\n"), @"
    --fsdp full_shard
    unplanned: acc.yaml:7 fsdp_config.fsdp_reshard_after_forward: FSDP1 takes fsdp_sharding_strategy, FULL_SHARD where it is left out, and not this: planned so
    ");
    insta::assert_snapshot!(sharded("  fsdp_version: 1\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n"), @"--fsdp shard_grad_op");
}

/// Without mixed precision a launched step is in fp32, unless its trainer says otherwise.
#[test]
fn precision_of_what_is_launched() {
    let launched = "distributed_type: MULTI_GPU\nnum_processes: 4\nmixed_precision: 'no'\n";
    let precision = |files: &[(&str, &str)]| {
        let said = becomes(files, "gpt2");
        said.lines().filter(|line| line.contains("--precision")).map(str::trim).collect::<Vec<_>>().join(" ")
    };
    let trl = r#"{"max_length": 64, "output_dir": "out"}"#;
    assert_eq!(precision(&[("acc.yaml", launched)]), "--precision fp32");
    assert_eq!(precision(&[("acc.yaml", launched), ("sft.json", trl)]), "--precision bf16-mixed");
    assert_eq!(precision(&[("sft.json", trl), ("acc.yaml", launched)]), "--precision bf16-mixed");
    assert_eq!(
        precision(&[("ds.json", r#"{"bf16": {"enabled": true}}"#), ("acc.yaml", launched)]),
        "--precision bf16"
    );
}

#[test]
fn megatron_that_is_launched() {
    let text = "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_tp_degree: 2\n  \
                megatron_lm_sequence_parallelism: true\nmixed_precision: bf16\nnum_processes: 4\n";
    insta::assert_snapshot!(becomes(&[("acc.yaml", text)], "llama-3.2-1b"), @"
    peakledger plan llama-3.2-1b
      --gpus 4
      --stack megatron
      --tp 2
      --sp
      --clip-grad-norm
      --precision bf16
      --master-weights fp32
      --grad-dtype fp32
    ");
}
