//! `TrainingArguments`: what transformers' and TRL's trainers do with them.

use super::*;

#[test]
fn training_arguments_become_what_trainer_does() {
    insta::assert_snapshot!(becomes(&[TRAINING_ARGUMENTS], ""), @"
    peakledger plan Qwen/Qwen2.5-0.5B
      --seq-len 4096
      --micro-batch-size 2
      --gradient-accumulation-steps 4
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --recompute full
      --loss-in-model
      --precision bf16-mixed
      --weights-dtype fp32
      --fused-loss
    unplanned: training-arguments.json loss_type: TRL's head and loss in tiles of 4096 tokens by 32768 words: Liger's fused loss, which comes nearest, is planned; TRL before 1.7 has whole logits (`--fused-loss=off`)
    ");
    let text = r#"{"output_dir": "x", "optim": "galore_adamw", "neftune_noise_alpha": 5, "made_up": 1, "nothing": null}"#;
    insta::assert_snapshot!(becomes(&[("args.json", text)], "gpt2 --optimizer sgd"), @r"
    peakledger plan gpt2
      --micro-batch-size 8
      --gradient-accumulation-steps 1
      --clip-grad-norm
      --loss-in-model
      --precision fp32
      --optimizer sgd
    not read: args.json:1 made_up
    unplanned: args.json:1 neftune_noise_alpha: noise on the embeddings
    ");
    insta::assert_snapshot!(becomes(&[("args.json", text)], "gpt2"), @r"
    args.json:1:30 (/optim): the optimizer `galore_adamw` is not planned
      help: say it: add `--optimizer` to the command line
    ");
    let text = r#"{"output_dir": "x", "bf16": true, "fsdp": "full_shard auto_wrap offload",
        "fsdp_config": {"version": 2, "reshard_after_forward": false, "activation_checkpointing": true}}"#;
    insta::assert_snapshot!(becomes(&[("args.json", text)], "gpt2 --gpus 4"), @"
    peakledger plan gpt2
      --micro-batch-size 8
      --gradient-accumulation-steps 1
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --loss-in-model
      --offload parameters
      --fsdp shard_grad_op
      --recompute full
      --precision bf16-mixed
      --reduce-dtype bf16
      --gpus 4
    unplanned: args.json:2 fsdp_config: accelerate's autocast around the model that FSDP shards: planned with FSDP's own casts alone
    ");
}

#[test]
fn weights_are_loaded_as_whoever_loads_them_does() {
    let args = |more: &str| {
        format!(r#"{{"output_dir": "out", "bf16": true, "per_device_train_batch_size": 1 {more}}}"#)
    };
    let weights = |model: &str, more: &str, words: &str| {
        let text = args(more);
        let said = becomes(&[("args.json", &text)], &format!("{model} {words}"));
        let is_asked = |line: &&str| line.contains("--precision") || line.contains("--weights-dtype");
        said.lines().filter(is_asked).map(str::trim).collect::<Vec<_>>().join(" ")
    };
    // transformers 5 takes the type of the config; TRL asks for fp32; accelerate makes fp32 of what FSDP trains
    for (model, more, words, wanted) in [
        ("qwen3-0.6b", "", "", "--precision bf16-mixed --weights-dtype bf16"),
        ("llama-2-7b", "", "", "--precision bf16-mixed --weights-dtype fp16"),
        ("gpt2", "", "", "--precision bf16-mixed"),
        ("qwen3-0.6b", r#", "dtype": "float32""#, "", "--precision bf16-mixed --weights-dtype fp32"),
        ("qwen3-0.6b", r#", "dtype": "auto""#, "", "--precision bf16-mixed --weights-dtype bf16"),
        ("qwen3-0.6b", r#", "max_length": 64"#, "", "--precision bf16-mixed --weights-dtype fp32"),
        ("qwen3-0.6b", r#", "fsdp": true"#, "--gpus 2", "--precision bf16-mixed"),
        (
            "qwen3-0.6b",
            r#", "fsdp": true, "torch_dtype": "bfloat16""#,
            "--gpus 2",
            "--precision bf16-mixed --weights-dtype fp32",
        ),
        (
            "qwen3-0.6b",
            r#", "fsdp": true"#,
            "--gpus 2 --lora r=4",
            "--precision bf16-mixed --weights-dtype bf16",
        ),
        ("qwen3-0.6b", "", "--precision fp32", "--precision fp32"),
    ] {
        let said = weights(model, more, words);
        let said = said.replace(words, "").trim().to_owned();
        assert_eq!(said, wanted.replace(words, "").trim(), "{model}{more} {words}");
    }
}

#[test]
fn paged_states() {
    let text = r#"{"per_device_train_batch_size": 1, "optim": "paged_adamw_32bit", "ddp_find_unused_parameters": false}"#;
    insta::assert_snapshot!(becomes(&[("args.json", text)], "gpt2"), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --gradient-accumulation-steps 1
      --optimizer adamw-32bit
      --clip-grad-norm
      --loss-in-model
      --precision fp32
    unplanned: args.json:1 optim: pages of the optimizer state that the driver moves to the host where the card is full; planned on the card
    ");
}

#[test]
fn fsdp_of_another_version_is_said() {
    let args = r#"{"output_dir": "out", "fsdp": "full_shard auto_wrap"}"#;
    insta::assert_snapshot!(becomes(&[("args.json", args)], "gpt2 --gpus 4"), @"
    peakledger plan gpt2
      --micro-batch-size 8
      --gradient-accumulation-steps 1
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --loss-in-model
      --fsdp full_shard
      --precision fp32
      --gpus 4
    unplanned: args.json:1 fsdp: FSDP1, which transformers 4 runs by these words: planned as FSDP2, which transformers 5 does
    ");
}
