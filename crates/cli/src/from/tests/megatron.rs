//! Megatron-LM: a script whose arguments describe the model, too.

use super::*;

#[test]
fn megatron() {
    insta::assert_snapshot!(becomes(&[MEGATRON], ""), @r#"
    cat > model.json <<'END'
    {
      "attention_dropout": 0.0,
      "hidden_act": "silu",
      "hidden_size": 4096,
      "intermediate_size": 14336,
      "max_position_embeddings": 131072,
      "model_type": "llama",
      "num_attention_heads": 32,
      "num_hidden_layers": 32,
      "num_key_value_heads": 8,
      "tie_word_embeddings": false,
      "vocab_size": 128256
    }
    END
    peakledger plan model.json
      --stack megatron
      --micro-batch-size 1
      --seq-len 8192
      --precision bf16
      --master-weights fp32
      --grad-dtype fp32
      --optimizer adamw
      --clip-grad-norm
      --zero 1
      --recompute full
      --tp 2
      --pp 2
      --sp
      --gpus 16
      --gpus-per-node 8
      --gradient-accumulation-steps 32
    "#);
    let text = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --swiglu --micro-batch-size $MBS";
    insta::assert_snapshot!(becomes(&[("args.txt", text)], "--batch 1"), @r"
    args.txt:1:1 (/num-layers): no family of models that is planned has these modules: SwiGLU, LayerNorm, `learned_absolute` positions, biases
      help: name the model: `peakledger plan MODEL --from FILE`
    ");
    insta::assert_snapshot!(becomes(&[("args.txt", text)], "gpt2"), @r"
    args.txt:1:1 (/micro-batch-size): `$MBS`, and no shell is run
      help: say it: add `--micro-batch-size` to the command line
    ");
    let text =
        "--num-layers 2 --micro-batch-size 1 --bf16 --fp8-format hybrid --tensor-model-parallel-size two";
    insta::assert_snapshot!(becomes(&[("args.txt", text)], "gpt2"), @r"
    args.txt:1:1 (/tensor-model-parallel-size): `two` is not a whole number; 1:1 (/fp8-format): fp8 is not planned
      help: `tensor-model-parallel-size`: write a whole number; `fp8-format`: say it: add `--precision` to the command line
    ");
}

#[test]
fn megatron_with_latents() {
    insta::assert_snapshot!(becomes(&[DEEPSEEK], ""), @r#"
    cat > model.json <<'END'
    {
      "attention_dropout": 0.0,
      "first_k_dense_replace": 3,
      "hidden_act": "silu",
      "hidden_size": 7168,
      "intermediate_size": 18432,
      "kv_lora_rank": 512,
      "max_position_embeddings": 163840,
      "model_type": "deepseek_v3",
      "moe_intermediate_size": 2048,
      "n_group": 8,
      "n_routed_experts": 256,
      "n_shared_experts": 1,
      "num_attention_heads": 128,
      "num_experts_per_tok": 8,
      "num_hidden_layers": 61,
      "num_key_value_heads": 128,
      "q_lora_rank": 1536,
      "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64,
      "tie_word_embeddings": false,
      "topk_group": 4,
      "v_head_dim": 128,
      "vocab_size": 129408
    }
    END
    peakledger plan model.json
      --stack megatron
      --micro-batch-size 1
      --seq-len 4096
      --precision bf16
      --master-weights fp32
      --grad-dtype fp32
      --optimizer adamw
      --clip-grad-norm
      --zero 1
      --recompute block:6
      --pp 8
      --ep 32
      --gpus 256
      --gpus-per-node 8
      --decoder-last-pipeline-num-layers 5
      --fused-loss
      --gradient-accumulation-steps 32
    "#);
    let network = "--num-layers 4 --hidden-size 512 --num-attention-heads 4 --vocab-size 1000 --swiglu --normalization RMSNorm \
        --disable-bias-linear --position-embedding-type rope --micro-batch-size 1 --hidden-dropout 0 --multi-latent-attention";
    let asked = |more: &str| becomes(&[("args.txt", &format!("{network} {more}"))], "");
    insta::assert_snapshot!(asked(""), @"
    args.txt:1:1 (/num-layers): no family of models that is planned has these modules: SwiGLU, RMSNorm, `rope` positions, no biases, latents that are not normed
      help: name the model: `peakledger plan MODEL --from FILE`
    ");
    insta::assert_snapshot!(asked("--qk-layernorm"), @"
    args.txt:1:1 (/num-layers): no family of models that is planned has these modules: SwiGLU, RMSNorm, `rope` positions, no biases, latents without experts
      help: name the model: `peakledger plan MODEL --from FILE`
    ");
    let experts = "--qk-layernorm --num-experts 8 --moe-ffn-hidden-size 64";
    insta::assert_snapshot!(asked(experts), @"
    args.txt:1:1 (/num-layers): shared experts of 0 are none of 64, as a deepseek_v3 has them
      help: name the model: `peakledger plan MODEL --from FILE`
    ");
    let shared = format!("{experts} --moe-shared-expert-intermediate-size 64");
    insta::assert_snapshot!(asked(&format!("{shared} --moe-layer-freq 2")), @"
    args.txt:1:1 (/num-layers): of 4 layers `--moe-layer-freq` `2` are not the last ones
      help: name the model: `peakledger plan MODEL --from FILE`
    ");
    insta::assert_snapshot!(asked(&shared), @"
    args.txt:1:1 (/num-layers): beside latents a router is planned with `--moe-router-score-function sigmoid` and `--moe-router-enable-expert-bias` alone
      help: name the model: `peakledger plan MODEL --from FILE`
    ");
    let router = format!("{shared} --moe-router-score-function sigmoid --moe-router-enable-expert-bias");
    let planned = asked(&format!("{router} --mtp-num-layers 1 --rope-type rope"));
    insta::assert_snapshot!(planned.lines().filter(|line| !line.starts_with("  ")).collect::<Vec<_>>().join("\n"), @"
    cat > model.json <<'END'
    {
    }
    END
    peakledger plan model.json
    unplanned: args.txt:1 rope-type: rotary positions by plain ops: planned as YaRN's, in a fused kernel
    unplanned: args.txt:1 mtp-num-layers: layers that predict the tokens after the next (MTP)
    ");
}

#[test]
fn megatron_recomputes_the_first_layers_of_a_stage() {
    let text =
        "--num-layers 8 --micro-batch-size 1 --bf16 --recompute-granularity full --recompute-method block";
    insta::assert_snapshot!(becomes(&[("args.txt", text)], "gpt2"), @"
    args.txt:1:1 (/recompute-method): how many layers of a stage are checkpoints, `--recompute-num-layers`, is left out
      help: say it: add `--recompute` to the command line
    ");
    let text = format!("{text} --recompute-num-layers 2");
    assert!(becomes(&[("args.txt", &text)], "gpt2").contains("--recompute block:2"));
}

/// An option that another follows has no value.
#[test]
fn a_value_that_is_missing() {
    let text = "--num-layers 2 --micro-batch-size 1 --bf16 --tensor-model-parallel-size --pipeline-model-parallel-size 2";
    insta::assert_snapshot!(becomes(&[("args.txt", text)], "gpt2"), @r"
    args.txt:1:1 (/tensor-model-parallel-size): its value is missing
      help: write a whole number
    ");
}
