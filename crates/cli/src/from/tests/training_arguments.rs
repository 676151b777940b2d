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
    insta::assert_snapshot!(becomes(&[("args.json", text)], "gpt2"), @"
    args.json:1:30 (/optim): the optimizer `galore_adamw` is not planned: the nearest is adamw
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

/// What the arguments become that say so much beside a batch: options with a word in them, and notes.
fn said(more: &str, words: &str, wanted: &str) -> String {
    let args = format!(r#"{{"output_dir": "out", "bf16": true, "per_device_train_batch_size": 4{more}}}"#);
    let said = becomes(&[("args.json", &args)], words);
    let is_wanted = |line: &&str| {
        wanted.split(' ').any(|option| line.contains(option)) || !line.trim_start().starts_with("--")
    };
    said.lines().filter(is_wanted).map(str::trim).collect::<Vec<_>>().join("\n")
}

/// Which modules peft has for a family is not the file's to say.
#[test]
fn adapters_of_the_familys_own_modules() {
    let adapters = r#", "max_length": 64, "use_peft": true"#;
    insta::assert_snapshot!(said(adapters, "gpt2", "--lora"), @"
    args.json:1:101 (/use_peft): lora_target_modules is left out, and peft then takes what it has for the model's family: of a llama or qwen `--lora r=16,dropout=0.05,targets=q_proj+v_proj`
    help: say it: add `--lora` to the command line
    ");
    insta::assert_snapshot!(said(adapters, "gpt2 --lora r=8,targets=c_attn", "--lora"), @"
    peakledger plan gpt2
    --lora r=8,targets=c_attn
    unplanned: args.json loss_type: TRL's head and loss in tiles of 4096 tokens by 32768 words: Liger's fused loss, which comes nearest, is planned; TRL before 1.7 has whole logits (`--fused-loss=off`)
    ");
    let listed = |targets: &str| {
        let more = format!(r#"{adapters}, "lora_r": 8, "lora_dropout": 0, "lora_target_modules": {targets}"#);
        said(&more, "gpt2", "--lora")
    };
    insta::assert_snapshot!(listed(r#"["self_attn.q_proj", "mlp.c_proj"]"#), @"
    peakledger plan gpt2
    --lora r=8,targets=q_proj+mlp.c_proj
    unplanned: args.json loss_type: TRL's head and loss in tiles of 4096 tokens by 32768 words: Liger's fused loss, which comes nearest, is planned; TRL before 1.7 has whole logits (`--fused-loss=off`)
    ");
    insta::assert_snapshot!(listed(r#"["model.layers.*q_proj"]"#), @"
    args.json:1:101 (/use_peft): which modules have adapters is said by the regular expression `model.layers.*q_proj`, which is not read: `--lora r=16,targets=q_proj+v_proj` names them
    help: say it: add `--lora` to the command line
    ");
}

#[test]
fn kernels_of_liger() {
    let kernels = |config: &str| {
        said(
            &format!(r#", "use_liger_kernel": true, "liger_kernel_config": {config}"#),
            "gpt2",
            "--fused-loss",
        )
    };
    insta::assert_snapshot!(kernels(r#"{"fused_linear_cross_entropy": false, "cross_entropy": true}"#), @"
    peakledger plan gpt2
    --fused-loss=false
    unplanned: args.json:1 liger_kernel_config.cross_entropy: Liger's cross entropy of whole logits: torch's is planned
    unplanned: args.json:1 use_liger_kernel: Liger's norms, rope and SwiGLU: transformers' own are planned
    ");
    insta::assert_snapshot!(kernels(r#"{"rope": false, "rms_norm": false, "swiglu": false}"#), @"
    peakledger plan gpt2
    --fused-loss
    ");
    insta::assert_snapshot!(kernels("null"), @"
    peakledger plan gpt2
    --fused-loss
    unplanned: args.json:1 use_liger_kernel: Liger's norms, rope and SwiGLU: transformers' own are planned
    ");
}

#[test]
fn what_accelerate_is_given() {
    let wanted = "--sync-each-batch --micro-batch-size --gradient-accumulation-steps --dp";
    let asked = |config: &str, words: &str| {
        said(&format!(r#", "gradient_accumulation_steps": 2, "accelerator_config": {config}"#), words, wanted)
    };
    let syncs = r#"{"gradient_accumulation_kwargs": {"sync_each_batch": true}, "even_batches": true}"#;
    insta::assert_snapshot!(asked(syncs, "gpt2 --gpus 4"), @"
    peakledger plan gpt2
    --micro-batch-size 4
    --gradient-accumulation-steps 2
    --sync-each-batch
    ");
    insta::assert_snapshot!(asked(syncs, "gpt2"), @"
    peakledger plan gpt2
    --micro-batch-size 4
    --gradient-accumulation-steps 2
    ");
    insta::assert_snapshot!(asked(r#"{"split_batches": true}"#, "gpt2 --gpus 4"), @"
    peakledger plan gpt2
    --gradient-accumulation-steps 2
    --micro-batch-size 1
    ");
    insta::assert_snapshot!(asked(r#"{"split_batches": true}"#, "gpt2"), @"
    args.json:1:145 (/accelerator_config/split_batches): 8 sequences a step, of how many GPUs is not said
    help: say it: add `--gpus N` to the command line
    ");
}

/// SGD alone has momentum, wherever its arguments are.
#[test]
fn momentum_among_the_optimizers_arguments() {
    let sgd = |file: (&str, &str)| {
        let said = becomes(&[file], "gpt2");
        let lines = said.lines().filter(|line| line.contains("--optimizer ") || line.contains("--momentum"));
        lines.map(str::trim).collect::<Vec<_>>().join(" ")
    };
    let args = |more: &str| said(more, "gpt2", "--optimizer --momentum");
    insta::assert_snapshot!(args(r#", "optim": "sgd", "optim_args": "nesterov=true, momentum=0.9""#), @"
    peakledger plan gpt2
    --optimizer sgd
    --momentum 0.9
    ");
    insta::assert_snapshot!(args(r#", "optim": "adamw_torch_8bit", "optim_args": "momentum=0.9""#), @"
    args.json:1:80 (/optim): the optimizer `adamw_torch_8bit` is not planned: the nearest is adamw-8bit
    help: say it: add `--optimizer` to the command line
    ");
    insta::assert_snapshot!(args(r#", "adafactor": true, "optim": "adamw_torch""#), @"
    peakledger plan gpt2
    --optimizer adafactor
    unplanned: args.json:1 adafactor: transformers' own Adafactor: torch.optim's is planned
    ");
    let deepspeed =
        r#"{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"momentum": 0.9}}}"#;
    assert_eq!(sgd(("ds.json", deepspeed)), "--optimizer sgd --momentum 0.9");
    let axolotl = "base_model: gpt2\nmicro_batch_size: 1\noptimizer: sgd\noptim_args:\n  momentum: 0.9\n";
    assert_eq!(sgd(("run.yaml", axolotl)), "--optimizer sgd --momentum 0.9");
}

#[test]
fn how_trl_makes_the_model() {
    let made =
        r#", "max_length": 64, "model_init_kwargs": {"dtype": "bfloat16", "attn_implementation": "eager"}"#;
    insta::assert_snapshot!(said(made, "gpt2", "--weights-dtype --attention"), @"
    peakledger plan gpt2
    --weights-dtype bf16
    --attention eager
    unplanned: args.json loss_type: TRL's head and loss in tiles of 4096 tokens by 32768 words: Liger's fused loss, which comes nearest, is planned; TRL before 1.7 has whole logits (`--fused-loss=off`)
    ");
    insta::assert_snapshot!(said(r#", "torch_compile_backend": "inductor", "use_liger": true"#, "gpt2", "--fused-loss"), @"
    peakledger plan gpt2
    --fused-loss
    unplanned: args.json:1 use_liger: Liger's norms, rope and SwiGLU: transformers' own are planned
    unplanned: args.json:1 torch_compile_backend: torch.compile
    ");
}
