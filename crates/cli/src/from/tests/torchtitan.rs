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
    own.toml:2:8 (/model/name): `own` is no model that is known here, and has no flavor; the schedule `ZBVZeroBubble` is not planned
      help: name the model: `peakledger plan MODEL --from FILE`; say it: add `--schedule` to the command line
    ");
    insta::assert_snapshot!(becomes(&[("own.toml", text)], "gpt2 --schedule zb-h1"), @"
    peakledger plan gpt2
      --precision fp32
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
    unplanned: own.toml:8 parallelism.pipeline_parallel_degree: fewer layers on the first and the last stage: planned even, and `--decoder-first-pipeline-num-layers` says how many the first has
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

/// Of a pipeline parameters stay gathered by default, and its ends have fewer layers.
#[test]
fn a_pipeline_does_not_reshard() {
    let text = "[model]\nname = \"own\"\n[training]\nlocal_batch_size = 8\n[parallelism]\npipeline_parallel_degree = 2\n\
                data_parallel_shard_degree = 4\nPOLICY\n[activation_checkpoint]\nmode = \"full\"\n";
    insta::assert_snapshot!(becomes(&[("own.toml", &text.replace("POLICY", ""))], "gpt2 --gpus 8"), @"
    peakledger plan gpt2
      --precision bf16-mixed
      --seq-len 2048
      --clip-grad-norm
      --optimizer adamw
      --optimizer-impl fused
      --recompute full
      --fsdp shard_grad_op
      --pp 2
      --micro-batch-size 1
      --gradient-accumulation-steps 8
      --gpus 8
    unplanned: own.toml:1 model: torchtitan's own modules: those of transformers are planned
    unplanned: own.toml:6 parallelism.pipeline_parallel_degree: fewer layers on the first and the last stage: planned even, and `--decoder-first-pipeline-num-layers` says how many the first has
    ");
    let always = "fsdp_reshard_after_forward = \"always\"\npipeline_parallel_first_stage_less_layers = 0\n\
                  pipeline_parallel_last_stage_less_layers = 0";
    insta::assert_snapshot!(becomes(&[("own.toml", &text.replace("POLICY", always))], "gpt2 --gpus 8"), @"
    peakledger plan gpt2
      --precision bf16-mixed
      --seq-len 2048
      --clip-grad-norm
      --optimizer adamw
      --optimizer-impl fused
      --recompute full
      --fsdp full_shard
      --pp 2
      --micro-batch-size 1
      --gradient-accumulation-steps 8
      --gpus 8
    unplanned: own.toml:1 model: torchtitan's own modules: those of transformers are planned
    unplanned: own.toml:8 parallelism.fsdp_reshard_after_forward: the last norm and the head resharded after forward too: planned whole up to backward
    ");
    let hybrid = text.replace("POLICY", "data_parallel_replicate_degree = 2");
    insta::assert_snapshot!(becomes(&[("own.toml", &hybrid)], "gpt2 --gpus 16"), @"
    peakledger plan gpt2
      --precision bf16-mixed
      --seq-len 2048
      --clip-grad-norm
      --optimizer adamw
      --optimizer-impl fused
      --recompute full
      --fsdp hybrid_shard
      --dp-shard-size 4
      --pp 2
      --micro-batch-size 1
      --gradient-accumulation-steps 8
      --gpus 16
    unplanned: own.toml:1 model: torchtitan's own modules: those of transformers are planned
    unplanned: own.toml:7 parallelism.data_parallel_shard_degree: parameters that stay whole from forward to backward: planned as resharded between replicas
    unplanned: own.toml:6 parallelism.pipeline_parallel_degree: fewer layers on the first and the last stage: planned even, and `--decoder-first-pipeline-num-layers` says how many the first has
    ");
    let wrong = text.replace("POLICY", "fsdp_reshard_after_forward = \"sometimes\"");
    insta::assert_snapshot!(becomes(&[("own.toml", &wrong)], "gpt2 --gpus 8"), @"
    own.toml:8:30 (/parallelism/fsdp_reshard_after_forward): no policy of torchtitan: `sometimes`
      help: write default, always or never
    ");
}

/// Every second layer is checkpointed where nothing is said.
#[test]
fn a_checkpoint_of_every_nth_layer() {
    let recompute = |section: &str| {
        let text = format!("[training]\nlocal_batch_size = 1\n[activation_checkpoint]\n{section}\n");
        let said = becomes(&[("own.toml", &text)], "gpt2 --gpus 2");
        said.lines()
            .find(|line| line.trim_start().starts_with("--recompute"))
            .map(|line| line.trim().to_owned())
            .unwrap_or(said)
    };
    insta::assert_snapshot!(recompute(""), @"--recompute layers:1+3+5+7+9+11");
    insta::assert_snapshot!(recompute("mode = \"selective\"\nselective_ac_option = \"4\""), @"--recompute layers:3+7+11");
    insta::assert_snapshot!(recompute("selective_ac_option = 1"), @"--recompute full");
    insta::assert_snapshot!(recompute("selective_ac_option = \"op\""), @"--recompute selective");
    insta::assert_snapshot!(recompute("mode = \"selective\"\nselective_ac_option = \"7\""), @"
    own.toml:5:23 (/activation_checkpoint/selective_ac_option): of checkpoints of every Nth layer those of 2, 3, 4 and 8 are planned, and `layers:SET` names others
      help: say it: add `--recompute` to the command line
    ");
    insta::assert_snapshot!(recompute("mode = \"memory_budget\""), @"
    own.toml:4:8 (/activation_checkpoint/mode): what a compiler keeps within a budget is not planned
      help: say it: add `--recompute` to the command line
    ");
}

/// Tensor parallel ranks that nobody shards compute in fp32, and copies of a whole model have larger buckets.
#[test]
fn without_fsdp() {
    let text = |more: &str| {
        format!(
            "[training]\nlocal_batch_size = 1\n[parallelism]\ndata_parallel_shard_degree = 1\n{more}\n[activation_checkpoint]\nmode = \"none\"\n"
        )
    };
    insta::assert_snapshot!(becomes(&[("own.toml", &text("tensor_parallel_degree = 2"))], "gpt2 --gpus 2"), @"
    peakledger plan gpt2
      --precision fp32
      --seq-len 2048
      --clip-grad-norm
      --optimizer adamw
      --optimizer-impl fused
      --recompute none
      --tp 2
      --sp
      --loss-parallel
      --micro-batch-size 1
      --gpus 2
    unplanned: own.toml:1 training: torchtitan's own modules: those of transformers are planned
    ");
    insta::assert_snapshot!(becomes(&[("own.toml", &text("data_parallel_replicate_degree = 2"))], "gpt2"), @"
    peakledger plan gpt2
      --precision bf16-mixed
      --seq-len 2048
      --clip-grad-norm
      --optimizer adamw
      --optimizer-impl fused
      --recompute none
      --dp 2
      --micro-batch-size 1
    unplanned: own.toml:1 training: torchtitan's own modules: those of transformers are planned
    unplanned: own.toml:5 parallelism.data_parallel_replicate_degree: DDP's buckets of 100 MiB: planned with its own of 25 MiB
    ");
}

/// Before 0.1 the degrees stood beside the training's own keys and among the experiments.
#[test]
fn keys_of_older_versions() {
    let text = "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nbatch_size = 8\nseq_len = 8192\n\
                data_parallel_shard_degree = -1\ntensor_parallel_degree = 2\n[experimental]\npipeline_parallel_degree = 4\n\
                enable_async_tensor_parallel = false\ncustom_import = \"\"\n[float8]\nenable_float8_linear = true\n\
                [activation_checkpoint]\nmode = \"full\"\n";
    insta::assert_snapshot!(becomes(&[("old.toml", text)], "--gpus 16"), @"
    peakledger plan llama-3.1-8b
      --precision bf16-mixed
      --seq-len 8192
      --clip-grad-norm
      --optimizer adamw
      --optimizer-impl fused
      --recompute full
      --fsdp shard_grad_op
      --tp 2
      --pp 4
      --sp
      --loss-parallel
      --micro-batch-size 2
      --gradient-accumulation-steps 4
      --gpus 16
    unplanned: old.toml:1 model: torchtitan's own modules: those of transformers are planned
    unplanned: old.toml:10 experimental.pipeline_parallel_degree: fewer layers on the first and the last stage: planned even, and `--decoder-first-pipeline-num-layers` says how many the first has
    unplanned: old.toml:14 float8.enable_float8_linear: linear modules in float8: `nn.Linear` is planned
    ");
}

/// Gradients are reduced in float32, whatever type weights have.
#[test]
fn gradients_are_reduced_in_fp32() {
    let text = "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nlocal_batch_size = 1\ndtype = \"bfloat16\"\n";
    let said = becomes(&[("half.toml", text)], "--gpus 4");
    assert!(said.contains("--precision bf16\n") && said.contains("--reduce-dtype fp32\n"), "{said}");
    assert!(!becomes(&[("half.toml", text)], "--gpus 4 --fsdp none").contains("--reduce-dtype"));
}

#[test]
fn a_flavor_that_is_not_known_is_named() {
    let of = |model: &str, words: &str| {
        becomes(&[("own.toml", &format!("[model]\n{model}\n[training]\nsteps = 1\n"))], words)
    };
    insta::assert_snapshot!(of("name = \"deepseek_v3\"\nflavor = \"16B\"", "--gpus 8"), @"
    own.toml:3:10 (/model/flavor): the flavor `16B` of `deepseek_v3` is none that is known here
      help: name the model: `peakledger plan MODEL --from FILE`
    ");
    insta::assert_snapshot!(of("name = \"llama4\"\nflavor = \"17bx16e\"", "--gpus 8"), @"
    own.toml:3:10 (/model/flavor): the flavor `17bx16e` of `llama4` is none that is known here
      help: name the model: `peakledger plan MODEL --from FILE`
    ");
    let whole = of("name = \"deepseek_v3\"\nflavor = \"671B\"", "--gpus 8");
    assert!(whole.starts_with("peakledger plan deepseek-v3\n"), "{whole}");
    // the command line names it
    let named = of("name = \"deepseek_v3\"\nflavor = \"16B\"", "deepseek-llm-7b --gpus 8");
    assert!(named.starts_with("peakledger plan deepseek-llm-7b\n"), "{named}");
}
