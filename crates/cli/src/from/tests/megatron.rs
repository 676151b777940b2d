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

/// What stands within a condition is taken, and said; where the script says two things, the command line decides.
#[test]
fn conditions_of_a_script() {
    let script = "#!/bin/bash\nARGS=\"--seq-length 4096 --micro-batch-size 1 --bf16 \\\n\"\nif [ \"$RECOMPUTE\" -eq 1 ]; then\n    \
                  ARGS=\"$ARGS --recompute-granularity full --recompute-method uniform \\\n    --wandb-project x \"\nfi\n\
                  if [ \"$OPTIMIZER\" == adam ]; then\n    ARGS=\"$ARGS --optimizer adam\"\nelse\n    ARGS=\"$ARGS --optimizer sgd\"\nfi\n\
                  torchrun --nproc_per_node gpu --nnodes 1:2 pretrain_gpt.py $ARGS\n";
    insta::assert_snapshot!(becomes(&[("run.sh", script)], "llama-3.2-1b --gpus 4"), @"
    run.sh:11:1 (/optimizer): it stands within a condition (line 8), and no shell is run; elsewhere in the script it is `adam`
      help: say it: add `--optimizer` to the command line
    ");
    insta::assert_snapshot!(becomes(&[("run.sh", script)], "llama-3.2-1b --optimizer adamw --gpus 4"), @"
    peakledger plan llama-3.2-1b
      --stack megatron
      --micro-batch-size 1
      --seq-len 4096
      --precision bf16
      --master-weights fp32
      --grad-dtype fp32
      --clip-grad-norm
      --recompute full
      --optimizer adamw
      --gpus 4
    unplanned: run.sh:5 recompute-granularity: it stands within a condition (line 4), and no shell is run: taken
    unplanned: run.sh:5 recompute-method: it stands within a condition (line 4), and no shell is run: taken
    ");
}

#[test]
fn modules_that_are_planned_otherwise() {
    let text = "--num-layers 4 --hidden-size 512 --num-attention-heads 4 --vocab-size 1000 --make-vocab-size-divisible-by 10 --swiglu \
        --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --no-position-embedding --micro-batch-size 1 \
        --hidden-dropout 0 --bf16 --num-experts 8 --moe-layer-recompute --moe-enable-deepep --moe-made-up 3 --transformer-impl local \
        --sequence-parallel --tensor-model-parallel-size 1";
    insta::assert_snapshot!(becomes(&[("args.txt", text)], ""), @r#"
    cat > model.json <<'END'
    {
      "attention_dropout": 0.1,
      "hidden_act": "silu",
      "hidden_size": 512,
      "intermediate_size": 1344,
      "max_position_embeddings": 2048,
      "model_type": "mixtral",
      "num_attention_heads": 4,
      "num_experts_per_tok": 2,
      "num_hidden_layers": 4,
      "num_key_value_heads": 4,
      "num_local_experts": 8,
      "tie_word_embeddings": true,
      "vocab_size": 1000
    }
    END
    peakledger plan model.json
      --stack megatron
      --micro-batch-size 1
      --precision bf16
      --master-weights fp32
      --grad-dtype fp32
      --optimizer adamw
      --clip-grad-norm
      --tp 1
    not read: args.txt:1 moe-made-up
    unplanned: args.txt:1 make-vocab-size-divisible-by: rows of the embedding that are padded to another multiple: planned to one of 128 of each rank
    unplanned: args.txt:1 moe-enable-deepep: DeepEP's buffers: tokens are planned as sent by all-to-all
    unplanned: args.txt:1 moe-layer-recompute: layers of experts that are computed again: planned as kept
    unplanned: args.txt:1 transformer-impl: other modules than Transformer Engine's, which are planned
    "#);
}

/// A word of a comment or of a value makes no script of a config; Megatron's own names in Python are told.
#[test]
fn configs_that_are_no_scripts() {
    let kind =
        |name: &str, text: &str| read(Source::from_text(name, text), None, false).map(|(kind, _)| kind);
    let axolotl =
        "base_model: gpt2\nmicro_batch_size: 1\nhub_model_id: >\n  run with --foo bar\nargs:\n  - --trust\n";
    assert_eq!(kind("run.yaml", axolotl).unwrap(), Kind::Axolotl);
    let titan = "[job]\n[training]\nseq_len = 8192 # or --training.seq_len\n";
    assert_eq!(kind("run.toml", titan).unwrap(), Kind::Torchtitan);
    let python = "language_model:\n  num_layers: 24\nmodel_parallel:\n  tensor_model_parallel_size: 1\nmicro_batch_size: 2\n";
    insta::assert_snapshot!(kind("meg.yaml", python).unwrap_err().to_string(), @"
    meg.yaml:4:31 (/model_parallel/tensor_model_parallel_size): Megatron's options, but not as its command line has them
      help: write them as arguments: `--tensor-model-parallel-size 4 …`
    ");
}
