//! What each kind of config becomes: the samples in `examples/configs`, and what is special about a kind.

use super::*;
use crate::step_args::StepArgs;

/// A verb's command line, as far as it is about options of a step.
#[derive(clap::Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[arg(value_parser = crate::args::model())]
    model: Option<Model>,
    #[command(flatten)]
    given: Given,
}

/// The command line that the texts become, with more words; or what is wrong with them.
fn becomes(files: &[(&str, &str)], words: &str) -> String {
    let line = <Line as clap::Parser>::try_parse_from(words.split_whitespace()).unwrap();
    let answer = resolved(files, &line);
    match answer {
        Err(problem) => problem.to_string(),
        Ok(resolved) => {
            let origins = resolved.origins.unwrap();
            let mut lines = vec![origins.command.replace(" --", "\n  --")];
            let key = |key: &peakledger_report::OriginKey| match key.line {
                Some(line) => format!("{}:{line} {}", key.file, key.key),
                None => format!("{} {}", key.file, key.key),
            };
            lines.extend(origins.not_read.iter().map(|not| format!("not read: {}", key(&not.origin))));
            lines.extend(
                origins
                    .not_planned
                    .iter()
                    .map(|not| format!("unplanned: {}: {}", key(&not.origin), not.what)),
            );
            lines.join("\n")
        }
    }
}

fn resolved(files: &[(&str, &str)], line: &Line) -> Result<Resolved, Problem> {
    let mut combined = Combined::default();
    for (name, text) in files {
        let (kind, found) = read(Source::from_text(*name, *text), None, false)?;
        combined.take((*name).to_owned(), kind, Input::of(*name), found)?;
    }
    let command = StepArgs::augment_args(Command::new("plan"));
    combined.resolve("plan", line.model.as_ref(), &line.given, &command)
}

macro_rules! sample {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../examples/configs/", $name)))
    };
}

const DEEPSPEED: (&str, &str) = sample!("deepspeed-zero2.json");
const TRAINING_ARGUMENTS: (&str, &str) = sample!("training-arguments.json");
const ACCELERATE: (&str, &str) = sample!("accelerate-fsdp2.yaml");
const AXOLOTL: (&str, &str) = sample!("axolotl-qlora.yaml");
const LLAMA_FACTORY: (&str, &str) = sample!("llama-factory-lora.yaml");
const TORCHTITAN: (&str, &str) = sample!("torchtitan-llama3.toml");
const MEGATRON: (&str, &str) = sample!("megatron-llama3.sh");
const DEEPSEEK: (&str, &str) = sample!("megatron-deepseek-v3.sh");

#[test]
fn deepspeed_leaves_what_is_auto_to_the_training_arguments() {
    insta::assert_snapshot!(becomes(&[DEEPSPEED, TRAINING_ARGUMENTS], "--gpus 8"), @"
    peakledger plan Qwen/Qwen2.5-0.5B
      --zero 2
      --offload optimizer
      --zero-overlap-comm
      --seq-len 4096
      --micro-batch-size 2
      --gradient-accumulation-steps 4
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --recompute full
      --loss-in-model
      --precision bf16-mixed
      --gpus 8
    ");
    insta::assert_snapshot!(becomes(&[DEEPSPEED], "gpt2 --gpus 8"), @r"
    deepspeed-zero2.json:3:37 (/train_micro_batch_size_per_gpu): `auto` is left to another file or to the command line (train_micro_batch_size_per_gpu, gradient_accumulation_steps, bf16.enabled, gradient_clipping)
      help: say them: add `--micro-batch-size`, `--gradient-accumulation-steps`, `--precision` and `--clip-grad-norm` to the command line
    ");
}

#[test]
fn deepspeed_alone() {
    let text = r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 2e8, "stage3_prefetch_bucket_size": 5e7},
        "curriculum_learning": {"enabled": true}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "gpt2 --gpus 8"), @"
    peakledger plan gpt2
      --micro-batch-size 2
      --precision bf16-mixed
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --zero 3
      --zero-reduce-bucket-size 200000000
      --gradient-accumulation-steps 4
      --gpus 8
    unplanned: ds.json:4 curriculum_learning: sequences that grow: planned at their whole length
    ");
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "gpt2 --gpus 24"), @r"
    ds.json:1:22 (/train_batch_size): 64 sequences a step are no multiple of 48
      help: change the batch, or the number of GPUs
    ");
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "gpt2"), @r"
    ds.json:1:22 (/train_batch_size): 64 sequences a step, of how many GPUs is not said
      help: say it: add `--gpus N` to the command line
    ");
    let stage2 = r#"{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", stage2)], "gpt2 --gpus 8"), @r"
    ds.json:1:64 (/zero_optimization/offload_param/device): parameters are offloaded by stage 3 alone, and the stage is 2
      help: use stage 3, or offload the optimizer
    ");
    insta::assert_snapshot!(becomes(&[("ds.json", r#"{"zero_optimization": {"stage": 4}}"#)], "gpt2 --gpus 8"), @r"
    ds.json:1:33 (/zero_optimization/stage): as `--zero 4`: `4` is none of its values
      help: choose one of `0`, `1`, `2`, `3`; an option on the command line wins over the file
    ");
}

#[test]
fn deepspeeds_sizes_are_options_of_its_stage() {
    let text = r#"{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": STAGE,
        "overlap_comm": true, "sub_group_size": 1e12, "stage3_max_live_parameters": 5e9,
        "stage3_prefetch_bucket_size": 1e14, "stage3_param_persistence_threshold": 10000}}"#;
    let of_stage = |stage| becomes(&[("ds.json", &text.replace("STAGE", stage))], "gpt2 --gpus 8");
    insta::assert_snapshot!(of_stage("3"), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 3
      --zero-prefetch-bucket-size 100000000000000
      --zero-param-persistence-threshold 10000
      --zero-max-live-parameters 5000000000
      --zero-sub-group-size 1000000000000
      --gpus 8
    ");
    insta::assert_snapshot!(of_stage("2"), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 2
      --zero-overlap-comm
      --gpus 8
    ");
}

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
    insta::assert_snapshot!(becomes(&[("args.json", text)], "gpt2"), @r"
    args.json:1:30 (/optim): the optimizer `galore_adamw` is not planned
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
      --gpus 4
    unplanned: args.json:2 fsdp_config: accelerate's autocast around the model that FSDP shards: planned with FSDP's own casts alone
    ");
}

#[test]
fn accelerate_says_how_many_gpus_and_how_they_are_used() {
    insta::assert_snapshot!(becomes(&[ACCELERATE, TRAINING_ARGUMENTS], ""), @"
    peakledger plan Qwen/Qwen2.5-0.5B
      --gpus 16
      --gpus-per-node 8
      --fsdp full_shard
      --seq-len 4096
      --micro-batch-size 2
      --gradient-accumulation-steps 4
      --optimizer adamw
      --optimizer-impl fused
      --clip-grad-norm
      --recompute full
      --loss-in-model
      --precision bf16-mixed
    unplanned: accelerate-fsdp2.yaml:6 fsdp_config: accelerate's autocast around the model that FSDP shards: planned with FSDP's own casts alone
    ");
    let text = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: cpu\n  \
                zero3_init_flag: true\n  gradient_accumulation_steps: 4\nmixed_precision: bf16\nnum_processes: 8\n\
                parallelism_config:\n  parallelism_config_tp_size: 2\n";
    insta::assert_snapshot!(becomes(&[("acc.yaml", text)], "gpt2"), @"
    peakledger plan gpt2
      --gpus 8
      --precision bf16-mixed
      --zero 3
      --offload optimizer
      --gradient-accumulation-steps 4
      --tp 2
    ");
    let text = "distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: fp8\n";
    insta::assert_snapshot!(becomes(&[("acc.yaml", text)], "gpt2"), @r"
    acc.yaml:3:18 (/mixed_precision): fp8 is not planned
      help: say it: add `--precision` to the command line
    ");
    insta::assert_snapshot!(becomes(&[("acc.yaml", text)], "gpt2 --precision bf16-mixed"), @r"
    peakledger plan gpt2
      --gpus 8
      --precision bf16-mixed
    ");
}

#[test]
fn a_run_is_sharded_in_one_way() {
    insta::assert_snapshot!(becomes(&[ACCELERATE, DEEPSPEED], "gpt2"), @r"
    deepspeed-zero2.json:8:14 (/zero_optimization/stage): it asks for `--zero 2`, and accelerate-fsdp2.yaml for `--fsdp full_shard`
      help: a run is sharded by one of the two: leave one file out
    ");
    // the command line decides
    insta::assert_snapshot!(becomes(&[ACCELERATE], "gpt2 --zero 1 --dp 4"), @"
    peakledger plan gpt2
      --gpus-per-node 8
      --precision bf16-mixed
      --recompute full
      --dp 4
      --zero 1
    ");
}

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
    let text = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n\
                fsdp_config:\n  fsdp_version: 2\nparallelism_config:\n  parallelism_config_cp_size: 8\n  \
                parallelism_config_cp_comm_strategy: alltoall\n";
    insta::assert_snapshot!(becomes(&[("long.yaml", text)], "llama-3.1-8b --seq 131072"), @"
    peakledger plan llama-3.1-8b
      --gpus 8
      --precision bf16-mixed
      --fsdp full_shard
      --cp 8
      --cp-rotate-method alltoall
      --seq-len 131072
    unplanned: long.yaml:6 fsdp_config: accelerate's autocast around the model that FSDP shards: planned with FSDP's own casts alone
    ");
    let text = text.replace("alltoall", "sometimes");
    insta::assert_snapshot!(becomes(&[("long.yaml", &text)], "llama-3.1-8b"), @"
    long.yaml:9:40 (/parallelism_config/parallelism_config_cp_comm_strategy): no way of torch's: `sometimes`
      help: write allgather or alltoall
    ");
}

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
    args.txt:1:1 (/tensor-model-parallel-size): `two` is not a whole number
      help: write a whole number
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

#[test]
fn what_is_none_of_them() {
    insta::assert_snapshot!(becomes(&[("x.yaml", "a: 1\n")], "gpt2"), @r"
    x.yaml: its keys are of no training config that is known
      help: known are Megatron, torchtitan, LLaMA-Factory, Axolotl, accelerate, DeepSpeed, TrainingArguments; `--from-kind` says which it is: `deepspeed`, `training-arguments`, `accelerate`, `axolotl`, `llama-factory`, `torchtitan`, `megatron`
    ");
    insta::assert_snapshot!(becomes(&[("config.json", r#"{"model_type": "llama", "hidden_size": 1}"#)], "gpt2"), @r"
    config.json: a model's config, not that of a training run
      help: name it as the MODEL, without --from
    ");
}

#[test]
fn a_value_that_is_none_is_named_by_its_place() {
    let text = "base_model: gpt2\nmicro_batch_size: -1\n";
    insta::assert_snapshot!(becomes(&[("a.yaml", text)], ""), @r"
    a.yaml:2:19 (/micro_batch_size): `-1` is not a whole number
      help: write a whole number
    ");
    let text = "base_model: gpt2\nmicro_batch_size: 1\nadapter: lora\nlora_r: 0\n";
    insta::assert_snapshot!(becomes(&[("a.yaml", text)], ""), @"
    a.yaml:3:10 (/adapter): as `--lora r=0,targets=all-linear`: `r` is a whole number from 1 to 65536, not `0`
      help: write it as `r=16`; left out are `dropout=0`, `dtype=fp32` and `targets=all-linear`, as in `r=16,dropout=0.05,dtype=bf16,targets=q_proj+v_proj`; `save=embed_tokens+lm_head` trains these too (`alpha` is taken and changes no byte); `none` trains none; an option on the command line wins over the file
    ");
    insta::assert_snapshot!(becomes(&[("a.yaml", "base_model: not/there\nmicro_batch_size: 1\n")], ""), @"
    a.yaml:1:13 (/base_model): the model `not/there` is not known
      help: it is not in the catalogue nor in the local Hugging Face cache, and nothing is downloaded; name its config.json in place of it; `peakledger plan MODEL --from FILE` takes another model
    ");
}

#[test]
fn a_kind_is_said_or_told_by_the_keys() {
    let source = || Source::from_text("x.yaml", "mixed_precision: bf16\nnum_processes: 2\n");
    assert!(read(source(), None, true).is_err());
    let (kind, found) = read(source(), Some(Kind::Accelerate), true).unwrap();
    assert_eq!((kind, found.settings.len()), (Kind::Accelerate, 2));
    let named = Source::from_text(AXOLOTL.0, AXOLOTL.1);
    assert_eq!(read(named.clone(), Some(Kind::Accelerate), false).unwrap().0, Kind::Axolotl);
    assert_eq!(read(named, Some(Kind::Accelerate), true).unwrap().0, Kind::Accelerate);
}

#[test]
fn what_a_file_says_never_reaches_the_terminal_raw() {
    let text = "use_peft: true\noutput_dir: x\nlora_target_modules: [\"\\e[31mq\"]\n";
    let said = becomes(&[("a.yaml", text)], "gpt2");
    assert!(said.contains(r"targets=\u{1b}[31mq'"), "{said}");
}

#[test]
fn of_many_keys_that_are_not_known_some_are_listed() {
    let keys: String = (0..5000).map(|key| format!("key_{key}: 1\n")).collect();
    let said = becomes(&[("a.yaml", &format!("optim: sgd\n{keys}"))], "gpt2");
    assert_eq!(said.matches("not read: ").count(), 21);
    assert!(said.contains("not read: a.yaml 4980 more"), "{said}");
}

/// Whatever a file says, it is read or refused.
#[test]
fn no_text_makes_it_panic() {
    for (name, text) in
        [DEEPSPEED, TRAINING_ARGUMENTS, ACCELERATE, AXOLOTL, LLAMA_FACTORY, TORCHTITAN, MEGATRON, DEEPSEEK]
    {
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)).step_by(7) {
            let _cut = becomes(&[(name, &text[..end])], "gpt2");
            let turned = format!("{}{}", &text[end..], &text[..end]);
            let _turned = becomes(&[(name, &turned)], "gpt2");
        }
    }
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
fn sizes_that_transformers_fills_in_are_those_of_the_model() {
    let text = r#"{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": "auto"}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "llama-3.1-8b --gpus 8"), @"
    peakledger plan llama-3.1-8b
      --micro-batch-size 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 3
      --zero-reduce-bucket-size 16777216
      --zero-prefetch-bucket-size 15099494
      --zero-param-persistence-threshold 40960
      --gpus 8
    unplanned: ds.json:3 zero_optimization.stage3_max_live_parameters: `auto`, which nobody fills in: planned with DeepSpeed's default of 1000000000
    ");
    // what the command line says is no longer left out
    let words = "llama-3.1-8b --gpus 8 --zero-max-live-parameters 5 --zero-reduce-bucket-size 7";
    insta::assert_snapshot!(becomes(&[("ds.json", text)], words), @"
    peakledger plan llama-3.1-8b
      --micro-batch-size 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 3
      --zero-prefetch-bucket-size 15099494
      --zero-param-persistence-threshold 40960
      --gpus 8
      --zero-reduce-bucket-size 7
      --zero-max-live-parameters 5
    ");
    let stage2 = text.replace("\"stage\": 3", "\"stage\": 2");
    insta::assert_snapshot!(becomes(&[("ds.json", &stage2)], "llama-3.1-8b --gpus 8"), @"
    peakledger plan llama-3.1-8b
      --micro-batch-size 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 2
      --zero-reduce-bucket-size 16777216
      --gpus 8
    ");
}

#[test]
fn fsdp_of_another_version_is_said() {
    let accelerate =
        "distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n";
    insta::assert_snapshot!(becomes(&[("acc.yaml", accelerate)], "gpt2"), @"
    peakledger plan gpt2
      --gpus 4
      --fsdp full_shard
    unplanned: acc.yaml:4 fsdp_config: FSDP1's flat parameters: FSDP2 is planned, which shards parameter by parameter
    ");
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

#[test]
fn an_offloaded_optimizer_of_deepspeed_is_its_own() {
    let text = r#"{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "gpt2 --gpus 8"), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --precision bf16-mixed
      --optimizer adamw
      --clip-grad-norm
      --zero 2
      --offload optimizer
      --gpus 8
    ");
}

#[test]
fn modules_that_are_saved_are_trained() {
    let lora = |text: &str| {
        let said = becomes(&[("run.yaml", text)], "gpt2");
        let lines = said.lines().filter(|line| line.contains("--lora") || line.contains("unplanned"));
        lines.map(str::trim).collect::<Vec<_>>().join("\n")
    };
    let axolotl = "base_model: gpt2\nmicro_batch_size: 1\nadapter: lora\nlora_r: 4\nlora_target_linear: true\n\
                   lora_modules_to_save: [embed_tokens, lm_head]\n";
    insta::assert_snapshot!(lora(axolotl), @"--lora r=4,targets=all-linear,save=embed_tokens+lm_head");
    let factory =
        "finetuning_type: lora\nlora_rank: 4\nbf16: true\nadditional_target: embed_tokens,lm_head\n";
    insta::assert_snapshot!(lora(factory), @"--lora r=4,targets=all-linear,save=embed_tokens+lm_head,save_dtype=fp32");
    insta::assert_snapshot!(lora(&format!("{factory}pure_bf16: true\n")), @"--lora r=4,targets=all-linear,save=embed_tokens+lm_head");
}

/// Whatever is printed of a file can be typed: each option by itself, and all of them as one line.
#[test]
fn what_is_printed_of_files_can_be_typed() {
    let deepspeed = r#"{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}, "gradient_clipping": 0,
        "zero_optimization": {"stage": 3, "overlap_comm": false}}"#;
    let files: [(&[(&str, &str)], &str); 8] = [
        (&[DEEPSPEED, TRAINING_ARGUMENTS], "--gpus 8"),
        (&[("ds.json", deepspeed)], "gpt2 --gpus 8 --hold-outputs=step --sp=off --offload=off"),
        (&[ACCELERATE, TRAINING_ARGUMENTS], "--gpus 8"),
        (&[AXOLOTL], "--clip-grad-norm=on"),
        (&[LLAMA_FACTORY], ""),
        (&[TORCHTITAN], "--gpus 64"),
        (&[MEGATRON], "--gpus 64"),
        (&[DEEPSEEK], "--gpus 2048"),
    ];
    let parsed = |words: Vec<&str>| <Line as clap::Parser>::try_parse_from(words);
    let mut flags = 0;
    for (files, words) in files {
        let line = parsed(words.split_whitespace().collect()).unwrap();
        let resolved = resolved(files, &line).unwrap_or_else(|problem| panic!("{files:?}: {problem}"));
        let wanted = resolved.step.options(None).unwrap();
        let origins = resolved.origins.unwrap();
        for option in &origins.options {
            let (name, value) = (option.option, &option.value);
            let typed = parsed(option.written.split(' ').collect());
            let typed = typed.unwrap_or_else(|error| panic!("{}: {error}", option.written)).given.step;
            let mut meant = StepArgs::default();
            meant.change([format!("{name}={value}")]).unwrap();
            let options =
                |step: StepArgs| format!("{:?}", step.options(None).map_err(|problem| problem.cause));
            assert_eq!(options(typed), options(meant), "{}", option.written);
            flags += usize::from(value == "true" || value == "false");
        }
        // what a file spells out as the model is written before the line
        let command = origins.command.lines().last().unwrap_or_default();
        let words: Vec<&str> = command.split(' ').skip(2).collect();
        let again = parsed(words).unwrap_or_else(|error| panic!("{command}: {error}"));
        assert_eq!(again.given.step.options(None).unwrap(), wanted, "{command}");
    }
    assert!(flags > 5, "{flags}");
}

/// DeepSpeed asserts that its three sizes and the ranks come out even (`_batch_assertion`).
#[test]
fn deepspeeds_sizes_that_do_not_come_out_are_refused() {
    let text = r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
        "bf16": {"enabled": true}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "gpt2 --gpus 16"), @"
    ds.json:1:22 (/train_batch_size): 64 sequences a step, but micro-batch size 2 × accumulation 4 × data parallel 16 = 128; DeepSpeed refuses that
      help: change one of them, or say `--gradient-accumulation-steps` on the command line
    ");
    for (words, steps) in
        [("--gpus 8", 4), ("--gpus 16 --tp 2", 4), ("--gpus 16 --gradient-accumulation-steps 2", 2)]
    {
        let line = becomes(&[("ds.json", text)], &format!("gpt2 {words}"));
        assert!(line.contains(&format!("--gradient-accumulation-steps {steps}")), "{line}");
    }
}

/// A slip is said with what it may be a slip for, where that is not there too.
#[test]
fn a_key_that_nobody_knows_may_be_a_slip() {
    let meant = |text: &str| {
        let line = <Line as clap::Parser>::try_parse_from(["gpt2", "--gpus", "8"]).unwrap();
        let origins = resolved(&[("ds.json", text)], &line).unwrap().origins.unwrap();
        let said = origins.not_read.into_iter().map(|not| (not.origin.key, not.meant));
        said.map(|(key, meant)| format!("{key}: {meant:?}")).collect::<Vec<_>>().join(", ")
    };
    let bf16 = r#""bf16": {"enabled": true}"#;
    let said = meant(&format!(
        r#"{{{bf16}, "train_micro_batch_size_per_gpu": 1, "gradient_acumulation_steps": 4, "zero_optimization": {{"stge": 3}}, "x": 1}}"#
    ));
    insta::assert_snapshot!(said, @r#"gradient_acumulation_steps: Some("gradient_accumulation_steps"), x: None, zero_optimization.stge: Some("stage")"#);
    let said = meant(&format!(
        r#"{{{bf16}, "train_micro_batch_size_per_gpu": 1, "train_micro_batch_size_per_gpus": 2}}"#
    ));
    assert_eq!(said, "train_micro_batch_size_per_gpus: None");
}

/// What is wrong with a file is said at once, from above, what is asked beside it among it.
#[test]
fn all_that_is_wrong_is_said_at_once() {
    let text =
        "base_model: gpt2\nrl: kto\nadapter: ia3\nmicro_batch_size: x\nbf16: maybe\nflash_attention: 3\n";
    insta::assert_snapshot!(becomes(&[("many.yaml", text)], ""), @"
    many.yaml:2:5 (/rl): `kto` trains on more than one model or on what is generated, and configs are planned for supervised training alone; 3:10 (/adapter): the adapter `ia3` is not planned; 4:19 (/micro_batch_size): `x` is not a whole number; 5:7 (/bf16): `maybe` is not true or false; 6:18 (/flash_attention): `3` is not true or false
      help: `rl`: the nearest is `peakledger plan MODEL --post-training dpo`, which trains on pairs, without the file; or remove it to plan a step of supervised training; `adapter`: say it: add `--lora` to the command line; `micro_batch_size`: write a whole number; `bf16`: write true or false; `flash_attention`: write true or false
    ");
    let of_two = [
        ("ds.json", r#"{"zero_optimization": {"stage": "three"}}"#),
        ("more.json", r#"{"max_grad_norm": "x", "optim": "rmsprop"}"#),
    ];
    insta::assert_snapshot!(becomes(&of_two, "gpt2 --gpus 2"), @"
    ds.json:1:33 (/zero_optimization/stage): `three` is not a whole number; more.json:1:19 (/max_grad_norm): not a number; more.json:1:33 (/optim): the optimizer `rmsprop` is not planned
      help: `zero_optimization.stage`: write a whole number; `max_grad_norm`: write a number; `optim`: say it: add `--optimizer` to the command line
    ");
}

/// The keys of `zero_optimization` that cannot change memory pass, and those that may are noted where they are not as usual.
#[test]
fn the_keys_of_zero() {
    let text = r#"{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": true}, "elasticity": {"enabled": false},
        "zero_optimization": {"stage": 2, "allgather_partitions": true, "reduce_scatter": true, "contiguous_gradients": true,
        "allgather_bucket_size": 2e8, "cpu_offload": true, "round_robin_gradients": true, "memory_efficient_linear": true}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "gpt2 --gpus 2"), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --gradient-accumulation-steps 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 2
      --offload optimizer
      --gpus 2
    ");
    let text = r#"{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": true}, "communication_data_type": "fp32",
        "zero_optimization": {"stage": 3, "reduce_scatter": false, "zero_quantized_weights": true,
        "stage3_module_granularity_threshold": 10, "mics_shard_size": 2, "stage3_some_new_key": 1}}"#;
    insta::assert_snapshot!(becomes(&[("ds.json", text)], "gpt2 --gpus 2"), @"
    peakledger plan gpt2
      --micro-batch-size 1
      --gradient-accumulation-steps 1
      --precision bf16-mixed
      --clip-grad-norm
      --zero 3
      --gpus 2
    not read: ds.json:3 zero_optimization.stage3_some_new_key
    unplanned: ds.json:2 zero_optimization.reduce_scatter: gradients that are summed whole on every rank: planned as scattered
    unplanned: ds.json:2 zero_optimization.zero_quantized_weights: quantized gathering of weights (ZeRO++)
    unplanned: ds.json:3 zero_optimization.stage3_module_granularity_threshold: modules that are gathered as one: planned as each is used
    unplanned: ds.json:3 zero_optimization.mics_shard_size: shards within a part of the ranks (MiCS): planned over all
    unplanned: ds.json:1 communication_data_type: another type in which gradients are sent: planned in their own
    ");
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
