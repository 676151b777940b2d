//! torchtitan: its own modules, and how it spreads them.

use super::*;

#[test]
fn torchtitan() {
    insta::assert_snapshot!(becomes(&[TORCHTITAN], "--gpus 16"), @"
    peakledger plan llama-3.1-8b
      --precision bf16-mixed
      --seq-len 8192
      --clip-grad-norm
      --optimizer adamw
      --optimizer-impl fused
      --recompute selective
      --fsdp full_shard
      --tp 2
      --sp
      --loss-parallel
      --micro-batch-size 1
      --gpus 16
    unplanned: torchtitan-llama3.toml:5 model: torchtitan's own modules: those of transformers are planned
    unplanned: torchtitan-llama3.toml:34 activation_checkpoint.selective_ac_option: every second product of a linear module is computed again: all are planned as kept
    ");
    insta::assert_snapshot!(becomes(&[TORCHTITAN], ""), @r"
    torchtitan-llama3.toml:27:30 (/parallelism/data_parallel_shard_degree): `--fsdp full_shard`, over how many GPUs is not said
      help: say it: add `--gpus N` to the command line
    ");
    let text = "[model]\nname = \"own\"\n[training]\nlocal_batch_size = 16\nseq_len = 2048\n[parallelism]\n\
                data_parallel_shard_degree = 1\npipeline_parallel_degree = 4\npipeline_parallel_microbatch_size = 2\n\
                pipeline_parallel_schedule = \"ZBVZeroBubble\"\n[activation_checkpoint]\nmode = \"none\"\n[quantize]\na = 1\n";
    insta::assert_snapshot!(becomes(&[("own.toml", text)], ""), @"
    own.toml:10:30 (/parallelism/pipeline_parallel_schedule): the schedule `ZBVZeroBubble` is not planned; no model is named
      help: name the model: `peakledger plan MODEL --from FILE`; say it: add `--schedule` to the command line
    ");
    insta::assert_snapshot!(becomes(&[("own.toml", text)], "gpt2 --schedule zb-h1"), @"
    peakledger plan gpt2
      --precision bf16-mixed
      --seq-len 2048
      --clip-grad-norm
      --optimizer adamw
      --optimizer-impl fused
      --recompute none
      --pp 4
      --micro-batch-size 2
      --gradient-accumulation-steps 8
      --schedule zb-h1
    unplanned: own.toml:1 model: torchtitan's own modules: those of transformers are planned
    ");
}

#[test]
fn ranks_that_share_a_sequence() {
    let text = "[model]\nname = \"own\"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n[parallelism]\n\
                context_parallel_degree = 4\ntensor_parallel_degree = 2\ndisable_loss_parallel = true\n\
                context_parallel_rotate_method = \"alltoall\"\ncontext_parallel_load_balancer = \"headtail\"\n\
                enable_sequence_parallel = false\n[activation_checkpoint]\nmode = \"full\"\n";
    insta::assert_snapshot!(becomes(&[("own.toml", text)], "llama-3.2-1b --gpus 8"), @"
    peakledger plan llama-3.2-1b
      --precision bf16-mixed
      --seq-len 8192
      --clip-grad-norm
      --optimizer adamw
      --optimizer-impl fused
      --recompute full
      --fsdp full_shard
      --tp 2
      --cp 4
      --loss-parallel=false
      --cp-rotate-method alltoall
      --cp-load-balance
      --micro-batch-size 1
      --gpus 8
    unplanned: own.toml:1 model: torchtitan's own modules: those of transformers are planned
    ");
    let text = text.replace("headtail", "ptrr").replace("disable_loss_parallel = true\n", "");
    insta::assert_snapshot!(becomes(&[("own.toml", &text)], "llama-3.2-1b --gpus 8"), @"
    peakledger plan llama-3.2-1b
      --precision bf16-mixed
      --seq-len 8192
      --clip-grad-norm
      --optimizer adamw
      --optimizer-impl fused
      --recompute full
      --fsdp full_shard
      --tp 2
      --cp 4
      --loss-parallel
      --cp-rotate-method alltoall
      --micro-batch-size 1
      --gpus 8
    unplanned: own.toml:1 model: torchtitan's own modules: those of transformers are planned
    unplanned: own.toml:10 parallelism.context_parallel_load_balancer: the load balancer `ptrr` is FlexAttention's: sdpa's is planned
    ");
}
