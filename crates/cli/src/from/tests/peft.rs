//! peft: the adapters that a run trains.

use super::*;

#[test]
fn adapters_and_the_model_that_they_belong_to() {
    insta::assert_snapshot!(becomes(&[PEFT], ""), @"
    peakledger plan Qwen/Qwen2.5-7B
      --lora r=16,dropout=0.05,targets=q_proj+k_proj+v_proj+o_proj
    ");
    // of a run, whose own file says the rest
    insta::assert_snapshot!(becomes(&[TRAINING_ARGUMENTS, PEFT], "llama-3.2-1b"), @"
    peakledger plan llama-3.2-1b
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
      --lora r=16,dropout=0.05,targets=q_proj+k_proj+v_proj+o_proj
    unplanned: training-arguments.json loss_type: TRL's head and loss in tiles of 4096 tokens by 32768 words: Liger's fused loss, which comes nearest, is planned; TRL before 1.7 has whole logits (`--fused-loss=off`)
    ");
}

#[test]
fn what_a_plan_has_not() {
    let text = r#"{"peft_type": "LORA", "r": 4, "target_modules": "all-linear", "use_dora": true, "bias": "all",
                   "rank_pattern": {"q_proj": 8}, "modules_to_save": ["lm_head"], "lora_alfa": 1}"#;
    insta::assert_snapshot!(becomes(&[("adapter_config.json", text)], "gpt2"), @"
    peakledger plan gpt2
      --lora r=4,targets=all-linear,save=lm_head
    not read: adapter_config.json:2 lora_alfa
    unplanned: adapter_config.json:1 use_dora: DoRA's magnitudes: LoRA is planned
    unplanned: adapter_config.json:2 rank_pattern: adapters of other ranks in some modules: all have `r`
    unplanned: adapter_config.json:1 bias: biases that are trained: planned as frozen
    ");
    let of = |text: &str| becomes(&[("adapter_config.json", text)], "gpt2");
    insta::assert_snapshot!(of(r#"{"peft_type": "IA3", "target_modules": ["c_attn"]}"#), @"
    adapter_config.json:1:15 (/peft_type): adapters of the type `IA3` are not planned
      help: say it: add `--lora` to the command line
    ");
    insta::assert_snapshot!(of(r#"{"peft_type": "LORA", "target_modules": ".*attn.*"}"#), @"
    adapter_config.json:1:41 (/target_modules): the pattern `.*attn.*`, which modules it means is not looked up
      help: say it: add `--lora` to the command line
    ");
    insta::assert_snapshot!(of(r#"{"peft_type": "LORA", "target_modules": null}"#), @"
    adapter_config.json:1:15 (/peft_type): which modules have adapters is left to the model's family
      help: say it: add `--lora` to the command line
    ");
}

#[test]
fn it_is_no_model() {
    let source = Source::from_text(
        "adapter_config.json",
        r#"{"peft_type": "LORA", "r": 4, "base_model_name_or_path": "gpt2"}"#,
    );
    insta::assert_snapshot!(not_a_model(&source).unwrap().to_string(), @"
    adapter_config.json: a training config (peft), not that of a model
      help: it names the model itself: `peakledger plan --from adapter_config.json`
    ");
}
