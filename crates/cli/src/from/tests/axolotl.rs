//! Axolotl: an adapter on packed weights, all weights over many GPUs, and training that is not supervised.

use super::*;

#[test]
fn axolotl() {
    insta::assert_snapshot!(becomes(&[AXOLOTL], ""), @"
    peakledger plan meta-llama/Llama-3.1-8B
      --seq-len 4096
      --micro-batch-size 2
      --gradient-accumulation-steps 4
      --precision bf16-mixed
      --weights-dtype bf16
      --lora r=32,dropout=0.05,targets=all-linear
      --quantize nf4-double
      --optimizer adamw-8bit
      --clip-grad-norm
      --recompute full
      --attention sdpa
      --loss-in-model
      --fused-loss
    unplanned: axolotl-qlora.yaml:15 adapter: Axolotl's kernels of LoRA, which it runs unless lora_mlp_kernel, lora_qkv_kernel and lora_o_kernel are false: peft's modules are planned
    unplanned: axolotl-qlora.yaml:24 optimizer: pages of the optimizer state that the driver moves to the host where the card is full; planned on the card
    unplanned: axolotl-qlora.yaml:36 liger_rms_norm: transformers' own module is planned
    ");
    let text = "base_model: gpt2\nmicro_batch_size: 1\nbatch_size: 64\nsequence_len: 2048\nbf16: full\nfp16:\n\
                dp_shard_size: 4\ndp_replicate_size: 2\ntensor_parallel_size: 2\nfsdp_version: 2\nfsdp_config:\n  \
                offload_params: false\n  reshard_after_forward: true\ngradient_checkpointing: offload\n\
                attn_implementation: flex_attention\n";
    insta::assert_snapshot!(becomes(&[("full.yaml", text)], ""), @"
    peakledger plan gpt2
      --seq-len 2048
      --micro-batch-size 1
      --gradient-accumulation-steps 1
      --precision bf16
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --recompute full
      --offload activations
      --loss-in-model
      --fsdp-wrap accelerate-1.13
      --tp 2
      --dp 8
      --fsdp hybrid_shard
      --dp-shard-size 4
    unplanned: full.yaml:3 batch_size: a batch that Axolotl makes no accumulation of: planned with gradient_accumulation_steps alone, 1 where it is left out
    unplanned: full.yaml:15 attn_implementation: planned as sdpa
    ");
    insta::assert_snapshot!(becomes(&[("dpo.yaml", "base_model: gpt2\nrl: dpo\n")], ""), @"
    dpo.yaml:2:5 (/rl): `dpo` trains on more than one model or on what is generated, and configs are planned for supervised training alone
      help: `peakledger plan MODEL --post-training dpo` plans it, without the file; or remove it to plan a step of supervised training
    ");
}

/// bf16 is taken where it is left out, whatever is said of fp16 but true; `bfloat16` is autocast too.
#[test]
fn types_that_are_left_out() {
    let precision = |more: &str| {
        let said = becomes(&[("run.yaml", &format!("base_model: gpt2\nmicro_batch_size: 1\n{more}"))], "");
        let is_asked = |line: &&str| line.contains("--precision") || line.contains("--weights-dtype");
        said.lines().filter(is_asked).map(str::trim).collect::<Vec<_>>().join(" ")
    };
    let half = "--precision bf16-mixed --weights-dtype bf16";
    for (more, wanted) in [
        ("", half),
        ("fp16: false\n", half),
        ("float32: true\n", half),
        ("bf16: false\nbfloat16: true\n", half),
        ("bf16: auto\nfp16: true\n", "--precision fp16-mixed --weights-dtype fp16"),
        ("bf16: false\n", "--precision fp32"),
    ] {
        assert_eq!(precision(more), wanted, "{more}");
    }
}

/// Under its own FSDP2 weights stay in the type that they were loaded in; its kernels of LoRA run unless one is said not to.
#[test]
fn fsdp2_and_kernels_of_its_own() {
    let text =
        "base_model: gpt2\nmicro_batch_size: 1\nfsdp_version: 2\nfsdp_config:\n  offload_params: false\n";
    insta::assert_snapshot!(becomes(&[("run.yaml", text)], "--gpus 4"), @"
    peakledger plan gpt2
      --seq-len 512
      --micro-batch-size 1
      --gradient-accumulation-steps 1
      --precision bf16-mixed
      --weights-dtype bf16
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --loss-in-model
      --fsdp full_shard
      --fsdp-wrap accelerate-1.13
      --reduce-dtype bf16
      --gpus 4
    ");
    let adapters =
        "base_model: gpt2\nmicro_batch_size: 1\nadapter: lora\nlora_r: 8\nlora_target_linear: true\n";
    let notes = |more: &str| {
        let said = becomes(&[("run.yaml", &format!("{adapters}{more}"))], "");
        said.lines()
            .filter(|line| line.contains("unplanned"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
            .join("\n")
    };
    insta::assert_snapshot!(notes(""), @"unplanned: run.yaml:3 adapter: Axolotl's kernels of LoRA, which it runs unless lora_mlp_kernel, lora_qkv_kernel and lora_o_kernel are false: peft's modules are planned");
    assert_eq!(notes("lora_mlp_kernel: false\n"), "");
    assert_eq!(notes("load_in_8bit: true\n"), "");
}

/// Half types without autocast (`resolve_dtype`).
#[test]
fn half_without_autocast() {
    let said = |more: &str| {
        let said = becomes(
            &[("run.yaml", &format!("base_model: gpt2\nmicro_batch_size: 1\nbf16: false\n{more}"))],
            "",
        );
        said.lines().filter(|line| line.contains("--precision")).map(str::trim).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(said("float16: true\n"), "--precision fp16");
    assert_eq!(
        said("adapter: lora\nlora_r: 8\nlora_target_linear: true\nload_in_8bit: true\n"),
        "--precision fp16"
    );
}

/// Adapters are where a file says, and their bits go with their kind.
#[test]
fn adapters_and_their_bits() {
    let adapters = |more: &str| {
        let text =
            format!("base_model: gpt2\nmicro_batch_size: 1\nlora_r: 8\nlora_mlp_kernel: false\n{more}");
        let said = becomes(&[("run.yaml", &text)], "");
        let is_wanted = |line: &&str| {
            ["--lora", "--quantize"].iter().any(|it| line.contains(it))
                || !line.trim_start().starts_with("--")
        };
        said.lines().filter(is_wanted).map(str::trim).collect::<Vec<_>>().join("\n")
    };
    let linear = "lora_target_linear: true\n";
    insta::assert_snapshot!(adapters("adapter: lora\nlora_target_parameters: [mlp.experts]\n"), @"
    run.yaml:5:10 (/adapter): neither lora_target_modules nor lora_target_linear says which modules have adapters, and Axolotl then gives them to none
    help: say it: add `--lora` to the command line
    ");
    insta::assert_snapshot!(adapters(&format!("adapter: lora\n{linear}lora_target_modules: [q_proj, embed_tokens]\n")), @"
    peakledger plan gpt2
    --lora r=8,targets=all-linear
    unplanned: run.yaml:7 lora_target_modules: adapters on embed_tokens beside those on all linear modules: planned without
    ");
    insta::assert_snapshot!(adapters(&format!("adapter: lora\n{linear}load_in_4bit: true\n")), @"
    run.yaml:7:15 (/load_in_4bit): 4 bits are of `adapter: qlora`, and with `lora` Axolotl packs nothing by them
    help: say it: add `--quantize` to the command line
    ");
    insta::assert_snapshot!(adapters(&format!("adapter: qlora\n{linear}")), @"
    run.yaml:5:10 (/adapter): `qlora` needs `load_in_4bit: true`, without which Axolotl refuses it
    help: say it: add `--quantize` to the command line
    ");
    insta::assert_snapshot!(adapters(&format!("adapter: qlora\n{linear}load_in_4bit: true\n")), @"
    peakledger plan gpt2
    --lora r=8,targets=all-linear
    --quantize nf4-double
    ");
}
