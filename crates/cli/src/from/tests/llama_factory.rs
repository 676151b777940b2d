//! LLaMA-Factory: adapters, all weights, and a stage that is not supervised.

use super::*;

#[test]
fn llama_factory() {
    insta::assert_snapshot!(becomes(&[LLAMA_FACTORY], ""), @r"
    peakledger plan Qwen/Qwen2.5-7B
      --seq-len 4096
      --micro-batch-size 1
      --gradient-accumulation-steps 8
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --loss-in-model
      --recompute full
      --attention sdpa
      --lora r=16,targets=q_proj+v_proj
      --precision bf16-mixed
      --weights-dtype bf16
    ");
    let text = "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: full\npure_bf16: true\noptim: adamw_torch\n\
                quantization_bit: 4\n";
    insta::assert_snapshot!(becomes(&[("full.yaml", text)], "--seq 256"), @r"
    peakledger plan gpt2
      --micro-batch-size 8
      --gradient-accumulation-steps 1
      --optimizer adamw
      --clip-grad-norm
      --loss-in-model
      --recompute full
      --quantize nf4-double
      --precision bf16
      --seq-len 256
    ");
    insta::assert_snapshot!(becomes(&[("dpo.yaml", "stage: dpo\nfinetuning_type: lora\n")], "gpt2"), @"
    dpo.yaml:1:1 (/bf16): neither bf16 nor fp16 is true, so the checkpoint's own type is computed in; 1:8 (/stage): the stage `dpo` is not planned
      help: `bf16`: say it: add `--precision` to the command line; `stage`: `peakledger plan MODEL --post-training dpo` plans it, without the file; or write sft to plan a step of supervised training
    ");
}

/// Layers are checkpointed unless LLaMA-Factory and the trainer are both told otherwise.
#[test]
fn checkpoints() {
    let recompute = |more: &str| {
        let text = format!("model_name_or_path: gpt2\nfinetuning_type: full\nbf16: true\n{more}");
        let said = becomes(&[("run.yaml", &text)], "");
        said.lines()
            .find(|line| line.trim_start().starts_with("--recompute"))
            .map(|line| line.trim().to_owned())
            .unwrap_or(said)
    };
    for (more, wanted) in [
        ("", "full"),
        ("gradient_checkpointing: false\n", "full"),
        ("disable_gradient_checkpointing: true\n", "none"),
        ("disable_gradient_checkpointing: true\ngradient_checkpointing: false\n", "none"),
        ("disable_gradient_checkpointing: true\ngradient_checkpointing: true\n", "full"),
    ] {
        assert_eq!(recompute(more), format!("--recompute {wanted}"), "{more}");
    }
}

#[test]
fn version_1_is_told_apart() {
    let text = "model: Qwen/Qwen3-0.6B\ntemplate: qwen3_nothink\ndist_config:\n  name: fsdp2\nmicro_batch_size: 1\ncutoff_len: 2048\n";
    insta::assert_snapshot!(becomes(&[("v1.yaml", text)], ""), @"
    v1.yaml:1:8 (/model): `model` is of LLaMA-Factory's version 1, whose arguments are not read: they have other names and other defaults
      help: say it by options, without the file: `peakledger plan MODEL --batch N --seq LENGTH`
    ");
}
