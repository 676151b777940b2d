//! DeepSpeed: what is `auto`, its three sizes and the keys of ZeRO.

use super::*;

#[test]
fn deepspeed_leaves_what_is_auto_to_the_training_arguments() {
    insta::assert_snapshot!(becomes(&[DEEPSPEED, TRAINING_ARGUMENTS], "--gpus 8"), @"
    peakledger plan Qwen/Qwen2.5-0.5B
      --zero 2
      --offload optimizer
      --zero-overlap-comm
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
      --gpus 8
    unplanned: training-arguments.json loss_type: TRL's head and loss in tiles of 4096 tokens by 32768 words: Liger's fused loss, which comes nearest, is planned; TRL before 1.7 has whole logits (`--fused-loss=off`)
    ");
    insta::assert_snapshot!(becomes(&[DEEPSPEED], "gpt2 --gpus 8"), @r"
    deepspeed-zero2.json:3:37 (/train_micro_batch_size_per_gpu): `auto` is left to another file or to the command line (train_micro_batch_size_per_gpu, gradient_accumulation_steps, bf16.enabled, gradient_clipping)
      help: say them: add `--micro-batch-size`, `--gradient-accumulation-steps`, `--precision` and `--clip-grad-norm` to the command line
    ");
}

#[test]
fn deepspeed_alone() {
    let text = r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 2e8, "stage3_prefetch_bucket_size": 5e7},
        "curriculum_learning": {"enabled": true}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "gpt2 --gpus 8"), @"
    peakledger plan gpt2
      --micro-batch-size 2
      --precision bf16-mixed
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --zero 3
      --zero-reduce-bucket-size 200000000
      --gradient-accumulation-steps 4
      --gpus 8
    unplanned: ds.json:4 curriculum_learning: sequences that grow: planned at their whole length
    ");
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "gpt2 --gpus 24"), @r"
    ds.json:1:22 (/train_batch_size): 64 sequences a step are no multiple of 48
      help: change the batch, or the number of GPUs
    ");
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "gpt2"), @r"
    ds.json:1:22 (/train_batch_size): 64 sequences a step, of how many GPUs is not said
      help: say it: add `--gpus N` to the command line
    ");
    let stage2 = r#"{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", stage2)], "gpt2 --gpus 8"), @r"
    ds.json:1:64 (/zero_optimization/offload_param/device): parameters are offloaded by stage 3 alone, and the stage is 2
      help: use stage 3, or offload the optimizer
    ");
    insta::assert_snapshot!(becomes(&[("ds.json", r#"{"zero_optimization": {"stage": 4}}"#)], "gpt2 --gpus 8"), @r"
    ds.json:1:33 (/zero_optimization/stage): as `--zero 4`: `4` is none of its values
      help: choose one of `0`, `1`, `2`, `3`; an option on the command line wins over the file
    ");
}

#[test]
fn deepspeeds_sizes_are_options_of_its_stage() {
    let text = r#"{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": STAGE,
        "overlap_comm": true, "sub_group_size": 1e12, "stage3_max_live_parameters": 5e9,
        "stage3_prefetch_bucket_size": 1e14, "stage3_param_persistence_threshold": 10000}}"#;
    let of_stage = |stage| becomes(&[("ds.json", &text.replace("STAGE", stage))], "gpt2 --gpus 8");
    insta::assert_snapshot!(of_stage("3"), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 3
      --zero-prefetch-bucket-size 100000000000000
      --zero-param-persistence-threshold 10000
      --zero-max-live-parameters 5000000000
      --zero-sub-group-size 1000000000000
      --gpus 8
    ");
    insta::assert_snapshot!(of_stage("2"), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 2
      --zero-overlap-comm
      --gpus 8
    ");
}

#[test]
fn sizes_that_transformers_fills_in_are_those_of_the_model() {
    let text = r#"{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": "auto"}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "llama-3.1-8b --gpus 8"), @"
    peakledger plan llama-3.1-8b
      --micro-batch-size 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 3
      --zero-reduce-bucket-size 16777216
      --zero-prefetch-bucket-size 15099494
      --zero-param-persistence-threshold 40960
      --gpus 8
    unplanned: ds.json:3 zero_optimization.stage3_max_live_parameters: `auto`, which nobody fills in: planned with DeepSpeed's default of 1000000000
    ");
    // what the command line says is no longer left out
    let words = "llama-3.1-8b --gpus 8 --zero-max-live-parameters 5 --zero-reduce-bucket-size 7";
    insta::assert_snapshot!(becomes(&[("ds.json", text)], words), @"
    peakledger plan llama-3.1-8b
      --micro-batch-size 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 3
      --zero-prefetch-bucket-size 15099494
      --zero-param-persistence-threshold 40960
      --gpus 8
      --zero-reduce-bucket-size 7
      --zero-max-live-parameters 5
    ");
    let stage2 = text.replace("\"stage\": 3", "\"stage\": 2");
    insta::assert_snapshot!(becomes(&[("ds.json", &stage2)], "llama-3.1-8b --gpus 8"), @"
    peakledger plan llama-3.1-8b
      --micro-batch-size 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 2
      --zero-reduce-bucket-size 16777216
      --gpus 8
    ");
}

/// DeepSpeed asserts that its three sizes and the ranks come out even (`_batch_assertion`).
#[test]
fn deepspeeds_sizes_that_do_not_come_out_are_refused() {
    let text = r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
        "bf16": {"enabled": true}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "gpt2 --gpus 16"), @"
    ds.json:1:22 (/train_batch_size): 64 sequences a step, but micro-batch size 2 × accumulation 4 × data parallel 16 = 128; DeepSpeed refuses that
      help: change one of them, or say `--gradient-accumulation-steps` on the command line
    ");
    for (words, steps) in
        [("--gpus 8", 4), ("--gpus 16 --tp 2", 4), ("--gpus 16 --gradient-accumulation-steps 2", 2)]
    {
        let line = becomes(&[("ds.json", text)], &format!("gpt2 {words}"));
        assert!(line.contains(&format!("--gradient-accumulation-steps {steps}")), "{line}");
    }
}

#[test]
fn an_offloaded_optimizer_of_deepspeed_is_its_own() {
    let text = r#"{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "gpt2 --gpus 8"), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --precision bf16-mixed
      --optimizer adamw
      --clip-grad-norm
      --zero 2
      --offload optimizer
      --gpus 8
    ");
}

/// The keys of `zero_optimization` that cannot change memory pass, and those that may are noted where they are not as usual.
#[test]
fn the_keys_of_zero() {
    let text = r#"{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": true}, "elasticity": {"enabled": false},
        "zero_optimization": {"stage": 2, "allgather_partitions": true, "reduce_scatter": true, "contiguous_gradients": true,
        "allgather_bucket_size": 2e8, "cpu_offload": true, "round_robin_gradients": true, "memory_efficient_linear": true}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "gpt2 --gpus 2"), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --gradient-accumulation-steps 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 2
      --offload optimizer
      --gpus 2
    ");
    let text = r#"{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": true}, "communication_data_type": "fp32",
        "zero_optimization": {"stage": 3, "reduce_scatter": false, "zero_quantized_weights": true,
        "stage3_module_granularity_threshold": 10, "mics_shard_size": 2, "stage3_some_new_key": 1}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "gpt2 --gpus 2"), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --gradient-accumulation-steps 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 3
      --gpus 2
    not read: ds.json:3 zero_optimization.stage3_some_new_key
    unplanned: ds.json:2 zero_optimization.reduce_scatter: gradients that are summed whole on every rank: planned as scattered
    unplanned: ds.json:2 zero_optimization.zero_quantized_weights: quantized gathering of weights (ZeRO++)
    unplanned: ds.json:3 zero_optimization.stage3_module_granularity_threshold: modules that are gathered as one: planned as each is used
    unplanned: ds.json:3 zero_optimization.mics_shard_size: shards within a part of the ranks (MiCS): planned over all
    unplanned: ds.json:1 communication_data_type: another type in which gradients are sent: planned in their own
    ");
}

/// Under torch's autocast weights stay as they are loaded, which ZeRO's stages have no plan for.
#[test]
fn torchs_autocast() {
    let text = r#"{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
        "torch_autocast": {"enabled": true, "dtype": "bfloat16"}, "zero_optimization": {"stage": STAGE}}"#;
    let of_stage = |stage: &str, words: &str| {
        becomes(&[("ds.json", &text.replace("STAGE", stage))], &format!("gpt2 --gpus 2 {words}"))
    };
    insta::assert_snapshot!(of_stage("0", ""), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --gradient-accumulation-steps 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 0
      --gpus 2
    unplanned: ds.json:2 zero_optimization: stage 0, where DeepSpeed reduces gradients after backward in buffers of its own, and under bf16 or fp16 makes fp32 copies of them all at the update: planned as torch's DDP
    ");
    insta::assert_snapshot!(of_stage("2", ""), @"
    ds.json:2:39 (/torch_autocast/enabled): torch_autocast leaves weights as they are loaded, in fp32, and under ZeRO they are planned in half alone: the nearest are `bf16`, half weights with fp32 copies as of `bf16.enabled`, and `fp32`
      help: say it: add `--precision` to the command line
    ");
    insta::assert_snapshot!(of_stage("2", "--precision fp32"), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --gradient-accumulation-steps 1
      --clip-grad-norm
      --zero 2
      --precision fp32
      --gpus 2
    ");
    let half = text
        .replace("STAGE", "2")
        .replace("\"torch_autocast\"", "\"bf16\": {\"enabled\": true}, \"torch_autocast\"");
    assert!(becomes(&[("ds.json", &half)], "gpt2 --gpus 2").contains("--precision bf16-mixed"));
    let unsaid = r#"{"train_micro_batch_size_per_gpu": 1, "torch_autocast": {"enabled": true}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", unsaid)], "gpt2 --gpus 2 --gradient-accumulation-steps 1"), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --precision fp16-mixed
      --clip-grad-norm
      --gradient-accumulation-steps 1
      --gpus 2
    unplanned: ds.json zero_optimization: stage 0, where DeepSpeed reduces gradients after backward in buffers of its own, and under bf16 or fp16 makes fp32 copies of them all at the update: planned as torch's DDP
    ");
}

/// What of its config no option of the plan is, and what is written in its other ways.
#[test]
fn what_is_noted_of_deepspeed() {
    let said = |more: &str| {
        let text = format!(r#"{{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0{more}}}"#);
        becomes(&[("ds.json", &text)], "gpt2 --gpus 2")
    };
    insta::assert_snapshot!(said(r#", "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}"#), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 3
      --offload optimizer
      --gpus 2
    unplanned: ds.json:1 zero_optimization.offload_optimizer.ratio: a part of the optimizer that stays on the card: planned whole on the host
    ");
    insta::assert_snapshot!(said(r#", "bf16": {"enabled": true}, "zero_optimization": {"stage": 0}"#), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --precision bf16
      --master-weights fp32
      --clip-grad-norm
      --zero 0
      --gpus 2
    unplanned: ds.json:1 zero_optimization: stage 0, where DeepSpeed reduces gradients after backward in buffers of its own, and under bf16 or fp16 makes fp32 copies of them all at the update: planned as torch's DDP
    ");
    insta::assert_snapshot!(said(r#", "zero_optimization": true"#), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --precision fp32
      --clip-grad-norm
      --zero 1
      --gpus 2
    ");
    insta::assert_snapshot!(said(r#", "bf16": {"enabled": true}, "fp16": {"enabled": true}"#), @"
    ds.json:1:112 (/fp16/enabled): bf16 is enabled too, and DeepSpeed takes one of them
      help: keep one of the two
    ");
    insta::assert_snapshot!(said(r#", "fp16": {"enabled": true, "fp16_master_weights_and_grads": true}, "zero_optimization": {"stage": 2}"#), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --precision fp16
      --clip-grad-norm
      --zero 2
      --gpus 2
    ");
}

/// What is no number is called what it is: in JSON no value is missing.
#[test]
fn a_flag_is_no_number() {
    let text = r#"{"train_micro_batch_size_per_gpu": true, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "gpt2 --gpus 8"), @"
    ds.json:1:36 (/train_micro_batch_size_per_gpu): `true` is not a whole number
      help: write a whole number
    ");
}
