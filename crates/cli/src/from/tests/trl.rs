//! TRL: what its configs imply beside the training arguments, and training that is not supervised.

use super::*;

#[test]
fn what_sft_implies() {
    // a length that only TRL has tells it
    let text = r#"{"output_dir": "out", "per_device_train_batch_size": 1, "packing": true}"#;
    insta::assert_snapshot!(becomes(&[("args.json", text)], "gpt2"), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --gradient-accumulation-steps 1
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --loss-in-model
      --precision bf16-mixed
      --weights-dtype fp32
      --seq-len 1024
      --recompute full
      --fused-loss
    unplanned: args.json loss_type: TRL's head and loss in tiles of 4096 tokens by 32768 words: Liger's fused loss, which comes nearest, is planned; TRL before 1.7 has whole logits (`--fused-loss=off`)
    ");
    // what is said wins
    let text = r#"{"output_dir": "out", "per_device_train_batch_size": 1, "max_length": 2048, "bf16": false,
        "gradient_checkpointing": false, "loss_type": "nll"}"#;
    insta::assert_snapshot!(becomes(&[("args.json", text)], "gpt2 --fused-loss=off"), @"
    peakledger plan gpt2
      --seq-len 2048
      --micro-batch-size 1
      --gradient-accumulation-steps 1
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --recompute none
      --loss-in-model
      --precision fp32
      --weights-dtype fp32
      --fused-loss=false
    ");
    // the smoothed loss has whole logits
    let text = r#"{"max_length": 64, "per_device_train_batch_size": 1, "fp16": true, "label_smoothing_factor": 0.1}"#;
    insta::assert_snapshot!(becomes(&[("args.json", text)], "gpt2"), @"
    peakledger plan gpt2
      --seq-len 64
      --micro-batch-size 1
      --gradient-accumulation-steps 1
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --loss-in-model
      --precision fp16-mixed
      --weights-dtype fp32
      --recompute full
    unplanned: args.json:1 label_smoothing_factor: the smoothed loss, which keeps the logits once more
    ");
    let text = r#"{"per_device_train_batch_size": 1, "max_length": null, "packing": false}"#;
    insta::assert_snapshot!(becomes(&[("args.json", text)], "gpt2"), @"
    args.json:1:50 (/max_length): no sequence is cut, and how long they are is not said
      help: say it: add `--seq-len` to the command line
    ");
    let text = r#"{"per_device_train_batch_size": 1, "max_length": 64, "gradient_checkpointing_kwargs": {"selective": true}}"#;
    let said = becomes(&[("args.json", text)], "gpt2");
    assert!(said.contains("--recompute full") && said.contains("attention that is kept"), "{said}");
    // of transformers' own trainer nothing changes
    let text = r#"{"output_dir": "out", "per_device_train_batch_size": 1, "block_size": 512}"#;
    insta::assert_snapshot!(becomes(&[("args.json", text)], "gpt2"), @"
    peakledger plan gpt2
      --seq-len 512
      --micro-batch-size 1
      --gradient-accumulation-steps 1
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --loss-in-model
      --precision fp32
    ");
}

#[test]
fn adapters_on_quantized_weights_are_bf16() {
    let text = r#"{"per_device_train_batch_size": 1, "use_peft": true, "lora_target_modules": ["c_attn"],
        "lora_modules_to_save": ["lm_head"], "load_in_4bit": LOAD}"#;
    let lora = |load: &str| {
        let said = becomes(&[("args.json", &text.replace("LOAD", load))], "gpt2");
        said.lines().find(|line| line.contains("--lora")).map(|line| line.trim().to_owned()).unwrap_or(said)
    };
    insta::assert_snapshot!(lora("true"), @"--lora r=16,dropout=0.05,dtype=bf16,targets=c_attn,save=lm_head,save_dtype=bf16");
    insta::assert_snapshot!(lora("false"), @"--lora r=16,dropout=0.05,targets=c_attn,save=lm_head");
}

#[test]
fn training_that_is_not_supervised_is_refused() {
    let refused = |more: &str| {
        becomes(&[("args.json", &format!(r#"{{"output_dir": "out", "max_length": 512, {more}}}"#))], "gpt2")
    };
    insta::assert_snapshot!(refused(r#""num_generations": 8, "max_completion_length": 256, "beta": 0.0"#), @"
    args.json:1:61 (/num_generations): `num_generations` is of GRPO in TRL, which trains on more than tokens that are given, and configs are planned for supervised training alone
      help: `peakledger plan MODEL --post-training grpo` plans it, without the file; or remove its keys to plan a step of supervised training
    ");
    insta::assert_snapshot!(refused(r#""beta": 0.1, "loss_type": ["sigmoid", "sft"]"#), @"
    args.json:1:68 (/loss_type): `loss_type` is of DPO in TRL, which trains on more than tokens that are given, and configs are planned for supervised training alone
      help: `peakledger plan MODEL --post-training dpo` plans it, without the file; or remove its keys to plan a step of supervised training
    ");
    insta::assert_snapshot!(refused(r#""beta": 0.1"#), @"
    args.json:1:50 (/beta): `beta` is of post-training in TRL, which trains on more than tokens that are given, and configs are planned for supervised training alone
      help: `peakledger plan MODEL --post-training grpo`, `ppo` or `dpo` plans one, without the file; or remove its keys to plan a step of supervised training
    ");
    for (more, plans) in [
        (r#""use_vllm": true"#, "`peakledger plan MODEL --post-training grpo` plans it"),
        (r#""precompute_ref_log_probs": true"#, "`peakledger plan MODEL --post-training dpo` plans it"),
        (r#""num_ppo_epochs": 4, "cliprange": 0.2"#, "`peakledger plan MODEL --post-training ppo` plans it"),
        (
            r#""num_generations": 2, "normalize_advantages": true"#,
            "the nearest is `peakledger plan MODEL --post-training grpo`",
        ),
        (
            r#""desirable_weight": 1.0, "precompute_ref_log_probs": true"#,
            "the nearest is `peakledger plan MODEL --post-training dpo`",
        ),
        (r#""center_rewards_coefficient": 0.01"#, "remove its keys to plan a step of supervised training"),
    ] {
        let said = refused(more);
        assert!(
            said.contains("configs are planned for supervised training alone") && said.contains(plans),
            "{more}: {said}"
        );
    }
}
