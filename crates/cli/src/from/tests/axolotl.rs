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
      --precision bf16
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --recompute full
      --offload activations
      --loss-in-model
      --tp 2
      --dp 8
      --fsdp hybrid_shard
      --dp-shard-size 4
      --gradient-accumulation-steps 8
    unplanned: full.yaml:15 attn_implementation: planned as sdpa
    ");
    insta::assert_snapshot!(becomes(&[("dpo.yaml", "base_model: gpt2\nrl: dpo\n")], ""), @"
    dpo.yaml:2:5 (/rl): `dpo` trains on more than one model or on what is generated, and configs are planned for supervised training alone
      help: `peakledger plan MODEL --post-training dpo` plans it, without the file; or remove it to plan a step of supervised training
    ");
}
