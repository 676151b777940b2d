//! What people's other tools call what is an option here: Hugging Face's arguments, DeepSpeed, Axolotl, Megatron, torchtitan.
//!
//! One table of options and one of values. Nothing here is taken for what it stands for: who writes such a word is told
//! what to write, since the words of two tools seldom mean quite the same.

use crate::from::optimizer;

/// Options of others with spaces between them, what to write in their place, and what differs.
const OPTIONS: &[(&str, &str, &str)] = &[
    // the batch
    (
        "bs bsz mbs mbsz batch-size micro-batch microbatch-size local-batch-size device-batch-size \
         per-device-batch-size per-device-train-batch-size per-gpu-train-batch-size \
         train-micro-batch-size-per-gpu",
        "--micro-batch-size N",
        "",
    ),
    (
        "gbs global-batch-size global-batch train-batch-size total-batch-size",
        "--micro-batch-size N",
        "what one rank has at a time; times `--gradient-accumulation-steps` and the data parallel ranks it is the \
         whole",
    ),
    (
        "ga gas grad-acc grad-acc-steps grad-accum grad-accum-steps gradient-accumulation accumulation-steps \
         accumulate-grad-batches num-microbatches micro-batches",
        "--gradient-accumulation-steps N",
        "",
    ),
    (
        "seqlen seq-length sequence-len sequence-length max-length max-len max-seq-len max-seq-length \
         model-max-length max-position-embeddings cutoff-len block-size context context-len context-length ctx \
         ctx-len max-tokens tokens",
        "--seq-len N",
        "",
    ),
    // types
    (
        "bf16 mixed-precision amp autocast bf16-mixed",
        "--precision bf16-mixed",
        "fp32 weights under autocast, which is the default; with `--precision bf16` the weights are bf16 too",
    ),
    (
        "fp16 fp16-mixed",
        "--precision fp16-mixed",
        "fp32 weights under autocast; with `--precision fp16` the weights are fp16 too",
    ),
    ("bfloat16 pure-bf16", "--precision bf16", ""),
    ("half float16 pure-fp16", "--precision fp16", ""),
    ("fp32 float32 no-amp", "--precision fp32", ""),
    (
        "dtype torch-dtype model-dtype param-dtype params-dtype weight-dtype load-dtype load-in-bf16 data-type",
        "--weights-dtype bf16",
        "the type of the weights alone; `--precision bf16` is of compute and optimizer too",
    ),
    ("main-params-dtype fp32-master-weights master-dtype", "--master-weights fp32", ""),
    ("main-grads-dtype accumulate-allreduce-grads-in-fp32 grad-accum-dtype", "--grad-dtype fp32", ""),
    // quantized weights and adapters
    ("load-in-4bit load-4bit 4bit int4 bnb-4bit use-4bit bnb-4bit-quant-type", "--quantize nf4", ""),
    (
        "double-quant use-double-quant bnb-4bit-use-double-quant use-bnb-nested-quant",
        "--quantize nf4-double",
        "",
    ),
    ("load-in-8bit load-8bit 8bit bnb-8bit use-8bit", "--quantize int8", ""),
    ("quantization quantization-bit quant quant-type", "--quantize nf4", "or `int8`"),
    ("qlora", "--lora r=16 --quantize nf4", "add `--prepare-for-kbit` where peft prepares the model"),
    ("lora-r lora-rank r", "--lora r=N", ""),
    ("peft use-peft use-lora adapter adapters finetuning-type", "--lora r=16", ""),
    ("lora-alpha", "--lora r=16,alpha=32", "it changes no byte"),
    ("modules-to-save lora-modules-to-save", "--lora r=N,save=MODULE", "several with `+` between them"),
    ("lora-dropout", "--lora r=16,dropout=0.05", ""),
    (
        "lora-target-modules target-modules lora-target lora-targets lora-target-linear",
        "--lora r=16,targets=q_proj+v_proj",
        "or `targets=all-linear`, the default",
    ),
    ("freeze-layers freeze-embeddings freeze-modules", "--freeze model.embed_tokens", ""),
    // the optimizer
    ("optim optimizer-name optimizer-type", "--optimizer NAME", "names of other tools are told ours there"),
    ("adam-8bit use-8bit-adam adamw-8bit", "--optimizer adamw-8bit", ""),
    ("fused fused-adam fused-adamw fused-optimizer", "--optimizer-impl fused", ""),
    ("foreach", "--optimizer-impl foreach", "it is the default"),
    (
        "max-grad-norm grad-clip gradient-clipping clip-grad clip-grad-norm-value",
        "--clip-grad-norm",
        "to which norm changes no byte",
    ),
    // attention and the loss
    (
        "flash-attention flash-attention-2 flash-attn flash-attn-2 use-flash-attn use-flash-attention fa2 attn \
         attn-impl attn-implementation sdpa xformers",
        "--attention sdpa",
        "it runs the flash kernel where card and types have it, and is the default",
    ),
    ("eager", "--attention eager", ""),
    (
        "packing sample-packing packed padding-free",
        "--attention-mask none",
        "rows are full, which is the default; `padded` passes a mask",
    ),
    (
        "liger liger-kernel use-liger use-liger-kernel cut-cross-entropy cce fused-ce fused-cross-entropy \
         fused-linear-cross-entropy chunked-loss",
        "--fused-loss",
        "head and loss alone: Liger's norms, rope and SwiGLU are not planned",
    ),
    // what is computed again, and what waits on the host
    (
        "gc ac grad-ckpt grad-checkpointing gradient-checkpoint use-gradient-checkpointing \
         activation-checkpointing activation-checkpoint fsdp-activation-checkpointing checkpoint-activations \
         checkpointing recompute-activations recompute-method remat",
        "--recompute full",
        "",
    ),
    ("recompute-granularity selective-ac ac-mode", "--recompute selective", "or `full`"),
    ("recompute-num-layers", "--recompute block:N", "or `every:N`, where the method is uniform"),
    (
        "offload-optimizer offload-optimizer-device optimizer-offload optimizer-cpu-offload zero-offload \
         cpu-offload",
        "--offload optimizer",
        "with `parameters` in its place they and their gradients wait on the host too",
    ),
    (
        "offload-param offload-params offload-param-device param-offload fsdp-offload-params",
        "--offload parameters",
        "",
    ),
    (
        "activation-offload activation-offloading offload-activations cpu-offloading",
        "--offload activations",
        "",
    ),
    // many GPUs
    (
        "num-gpus n-gpus n-gpu ngpu ngpus nproc nproc-per-node num-processes world-size num-machines nnodes nodes \
         num-nodes",
        "--gpus N",
        "all of them; those of a node are `--gpus-per-node`",
    ),
    (
        "deepspeed deepspeed-config deepspeed-config-file ds-config",
        "--from FILE",
        "or say the stage: `--zero N`",
    ),
    (
        "config config-file accelerate-config job-config yaml",
        "--from FILE",
        "the config of a run; a model's config.json is the MODEL itself",
    ),
    ("zero1 zero-1 use-distributed-optimizer distributed-optimizer", "--zero 1", ""),
    ("zero2 zero-2", "--zero 2", ""),
    ("zero3 zero-3", "--zero 3", ""),
    ("zero-stage stage", "--zero N", ""),
    ("fsdp2 fsdp1 fully-shard sharding-strategy fsdp-sharding-strategy", "--fsdp full_shard", ""),
    ("hsdp", "--fsdp hybrid_shard", ""),
    ("ddp data-parallel data-parallel-size dp-size dp-degree", "--dp N", ""),
    (
        "tensor-parallel tensor-parallel-size tensor-parallel-degree tensor-model-parallel-size tp-size tp-degree",
        "--tp N",
        "",
    ),
    (
        "pipeline-parallel pipeline-parallel-size pipeline-parallel-degree pipeline-model-parallel-size pp-size \
         pp-degree",
        "--pp N",
        "",
    ),
    ("context-parallel context-parallel-size context-parallel-degree cp-size cp-degree", "--cp N", ""),
    (
        "expert-parallel expert-parallel-size expert-parallel-degree expert-model-parallel-size ep-size ep-degree",
        "--ep N",
        "",
    ),
    ("expert-tensor-parallel-size", "--etp N", ""),
    ("sequence-parallel", "--sp", ""),
    (
        "vpp virtual-pipeline-model-parallel-size num-virtual-stages-per-pipeline-rank",
        "--virtual-stages N",
        "",
    ),
    ("pipeline-schedule pipeline-parallel-schedule pp-schedule", "--schedule 1f1b", ""),
    ("megatron use-megatron mcore", "--stack megatron", ""),
    // the card and the answer
    (
        "card device gpu-type gpu-name gpu-memory vram memory hardware",
        "--gpu rtx-4090",
        "or an amount, `--gpu 24GiB`; `peakledger list gpus` shows the known ones",
    ),
    (
        "expandable-segments cuda-alloc-conf pytorch-cuda-alloc-conf pytorch-alloc-conf",
        "--alloc-conf expandable_segments:True",
        "",
    ),
    ("json", "--format json", ""),
    ("csv", "--format csv", ""),
    ("markdown md", "--format markdown", ""),
    ("html", "--format html", ""),
    ("out outfile output-file output-path", "--output FILE", ""),
    ("verbose full", "--all", ""),
    // post-training
    ("grpo rlhf rl", "--post-training grpo", ""),
    ("ppo", "--post-training ppo", ""),
    ("dpo", "--post-training dpo", ""),
    ("vllm use-vllm", "--rollout-engine vllm", ""),
    ("num-generations rollout-n", "--group-size N", ""),
    ("max-completion-length max-response-length max-new-tokens", "--response-len N", ""),
    ("max-prompt-length", "--prompt-len N", ""),
];

/// Options of others that no byte depends on.
const NO_BYTE: &str = "lr learning-rate weight-decay warmup-steps warmup-ratio epochs num-epochs num-train-epochs max-steps \
     steps seed tf32 adam-beta1 adam-beta2 adam-epsilon lr-scheduler-type dataset output-dir save-steps \
     logging-steps";

/// Options of others that change memory and that no plan has yet.
const NOT_PLANNED: &str = "compile torch-compile fp8 neftune-noise-alpha use-dora dora";

/// The model, which is named without an option.
const MODEL: &str = "model model-name model-name-or-path model-path model-id base-model pretrained-model";

/// Values of others: of which option, the words, and what to write in their place.
const VALUES: &[(&str, &str, &str)] = &[
    (
        "--attention",
        "flash flash-attention flash-attention-2 flash-attention-3 flash-attn flash-attn-2 fa2 fa3 xformers \
         mem-efficient",
        "--attention sdpa",
    ),
    ("--optimizer", "adam adamw-hf adamw-apex", "--optimizer adamw"),
    (
        "--optimizer",
        "fusedadam fused-adam fused-adamw adamw-fused adamw-apex-fused",
        "--optimizer adamw --optimizer-impl fused",
    ),
    ("--optimizer", "cpu-adam cpuadam deepspeedcpuadam adamw-cpu", "--optimizer adamw --offload optimizer"),
    ("--optimizer", "adam8bit adam-8bit adamw8bit 8bit-adam", "--optimizer adamw-8bit"),
    ("--quantize", "4bit 4-bit 4 int4 fp4 bnb bnb-4bit load-in-4bit qlora true", "--quantize nf4"),
    ("--quantize", "8bit 8-bit 8 bnb-8bit load-in-8bit llm-int8", "--quantize int8"),
    ("--precision", "mixed amp auto autocast", "--precision bf16-mixed"),
    ("--precision", "bfloat16 bf16-true", "--precision bf16"),
    ("--precision", "float16 half fp16-true 16-true", "--precision fp16"),
    ("--precision", "16 16-mixed", "--precision fp16-mixed"),
    ("--precision", "float32 full 32 32-true tf32 no none", "--precision fp32"),
    ("--precision", "4bit int4 nf4", "--quantize nf4"),
    ("--precision", "8bit int8", "--quantize int8"),
    ("--weights-dtype", "4bit int4 nf4", "--quantize nf4"),
    ("--weights-dtype", "8bit int8", "--quantize int8"),
    ("--recompute", "true yes on all uniform 1 gradient-checkpointing", "--recompute full"),
    ("--recompute", "false no 0", "--recompute none"),
    ("--offload", "cpu optim optimizer-state optimizer-states true", "--offload optimizer"),
    ("--offload", "param params parameter weights model", "--offload parameters"),
    ("--offload", "activation acts", "--offload activations"),
    ("--fsdp", "true 1 zero3 full-shard-auto-wrap fully-shard", "--fsdp full_shard"),
    ("--fsdp", "zero2 2", "--fsdp shard_grad_op"),
    ("--fsdp", "hsdp hybrid hybrid-shard-zero2", "--fsdp hybrid_shard"),
    ("--fsdp", "no-shard no false 0", "--fsdp none"),
    ("--zero", "stage1 zero1 stage-1 zero-1", "--zero 1"),
    ("--zero", "stage2 zero2 stage-2 zero-2", "--zero 2"),
    ("--zero", "stage3 zero3 stage-3 zero-3 true", "--zero 3"),
    ("--schedule", "interleaved1f1b interleaved-1f1b", "--schedule interleaved"),
    ("--stack", "hf huggingface torch pytorch", "--stack transformers"),
    ("--stack", "mcore megatron-core megatron-lm te nemo", "--stack megatron"),
    ("--cp-comm-type", "ring", "--cp-comm-type p2p"),
    ("--cp-comm-type", "ulysses alltoall all-to-all", "--cp-comm-type a2a"),
    ("--format", "text txt terminal", "--format table"),
    ("--format", "md", "--format markdown"),
    ("--format", "htm page", "--format html"),
];

/// What is looked for in lists: the words, and the list that has it.
const LISTS: &[(&str, &str)] = &[
    ("cards card devices device hardware", "peakledger list gpus"),
    ("architectures", "peakledger list families"),
];

/// Commands that people look for: the words, and what answers.
const VERBS: &[(&str, &str)] = &[
    (
        "explain why",
        "`peakledger plan MODEL --explain NAME` says how a figure came about, `peakledger read --oom-message LOG` why memory ran out",
    ),
    (
        "estimate predict simulate calculate run train model memory",
        "`peakledger plan MODEL` says what a step holds",
    ),
    ("oom", "`peakledger read --oom-message LOG` says what an out-of-memory message means"),
    (
        "search tune optimize recommend suggest",
        "`peakledger fit MODEL --gpu CARD` says what fits, with `--search` of every combination",
    ),
    ("snapshot measure trace profile analyze", "`peakledger read FILE` says what a run did hold"),
    ("models gpus cards families devices", "`peakledger list` knows `models`, `gpus` and `families`"),
    ("web ui gui", "`peakledger serve` opens a page of this machine"),
];

/// Options of a type, which go by their names in torch.
const DTYPES: &str = "--weights-dtype --grad-dtype --master-weights --reduce-dtype --reference-dtype";

/// What to do about an option of other tools, with those that `has` names.
pub(crate) fn option(word: &str, has: impl Fn(&str) -> bool) -> Option<String> {
    let word = plain(word);
    let known = |words: &str| is_among(&word, words);
    if let Some((_, ours, note)) =
        OPTIONS.iter().find(|(theirs, ours, _)| known(theirs) && has(first_option(ours)))
    {
        return Some(written(ours, note));
    }
    // of a verb that plans
    if !has("micro-batch-size") {
        return None;
    }
    if known(MODEL) {
        return Some("name the model without an option: `peakledger plan MODEL`".to_owned());
    }
    if known(NO_BYTE) {
        return Some("leave it out: no byte depends on it".to_owned());
    }
    known(NOT_PLANNED).then(|| "leave it out: what it does to memory is not planned yet".to_owned())
}

/// What answers where a command is asked for that there is not.
pub(crate) fn verb(word: &str) -> Option<&'static str> {
    let word = plain(word);
    VERBS.iter().find(|(theirs, _)| is_among(&word, theirs)).map(|(_, ours)| *ours)
}

/// What to write in place of a value of other tools.
pub(crate) fn value(option: &str, word: &str) -> Option<String> {
    let word = plain(word);
    let of_table = VALUES.iter().find(|(of, theirs, _)| *of == option && is_among(&word, theirs));
    if let Some((.., ours)) = of_table {
        return Some(written(ours, ""));
    }
    if option == "WHAT" {
        return LISTS.iter().find(|(theirs, _)| is_among(&word, theirs)).map(|(_, ours)| written(ours, ""));
    }
    if is_among(option, DTYPES) {
        let ours = match word.trim_start_matches("torch.") {
            "bfloat16" => "bf16",
            "float16" | "half" => "fp16",
            "float32" | "float" => "fp32",
            _ => return None,
        };
        return Some(written(&format!("{option} {ours}"), ""));
    }
    // one table of names for configs and for people
    let named = optimizer::of(&word.replace('-', "_")).filter(|_| option == "--optimizer")?;
    let implementation =
        named.implementation.map(|how| format!(" --optimizer-impl {how}")).unwrap_or_default();
    let note = named.not_planned.map(|what| format!("not planned: {what}")).unwrap_or_default();
    Some(written(&format!("--optimizer {}{implementation}", named.kind), &note))
}

/// What to write, and what differs.
fn written(ours: &str, note: &str) -> String {
    let note = if note.is_empty() { String::new() } else { format!(" ({note})") };
    format!("write `{ours}`{note}")
}

/// Whether a word is one of several, which have spaces between them.
fn is_among(word: &str, words: &str) -> bool {
    words.split(' ').any(|known| known == word)
}

/// A word however it is spelt: case, dashes and underscores do not matter.
fn plain(word: &str) -> String {
    word.trim().trim_start_matches('-').to_ascii_lowercase().replace('_', "-")
}

/// The name of the option that a mend begins with.
fn first_option(ours: &str) -> &str {
    ours.trim_start_matches('-').split(' ').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::{CommandFactory, Parser};

    /// What is to be written, as a command of a verb that has it; numbers in the places of N, and a name in that of NAME.
    fn is_understood(ours: &str) -> bool {
        let post = ["--group-size", "--response-len", "--prompt-len", "--rollout-engine"];
        let mut words = ["peakledger", "plan", "gpt2"].map(str::to_owned).to_vec();
        if post.iter().any(|option| ours.starts_with(option)) {
            words.extend(["--post-training", "grpo"].map(str::to_owned));
        }
        words.extend(ours.split(' ').map(|word| match word {
            "NAME" => "adamw".to_owned(),
            word => word.replace('N', "2"),
        }));
        Cli::try_parse_from(words).is_ok()
    }

    #[test]
    fn what_is_to_be_written_can_be() {
        for (theirs, ours, _) in OPTIONS {
            assert!(is_understood(ours), "{theirs}: {ours}");
        }
        for (option, theirs, ours) in VALUES {
            assert!(is_understood(ours), "{option} {theirs}: {ours}");
        }
        for option in DTYPES.split(' ').filter(|option| *option != "--reference-dtype") {
            assert!(
                value(option, "torch.bfloat16").is_some_and(|mend| mend == format!("write `{option} bf16`")),
                "{option}"
            );
        }
    }

    #[test]
    fn commands_that_people_look_for_are_none_of_ours() {
        let command = Cli::command();
        for (theirs, ours) in VERBS {
            assert!(theirs.split(' ').all(|word| command.find_subcommand(word).is_none()), "{theirs}");
            let told = ours.split('`').filter_map(|part| part.strip_prefix("peakledger "));
            let verbs: Vec<&str> = told.filter_map(|told| told.split(' ').next()).collect();
            assert!(
                !verbs.is_empty() && verbs.iter().all(|verb| command.find_subcommand(verb).is_some()),
                "{ours}"
            );
        }
        assert_eq!(verb("Explain").map(|ours| ours.contains("plan MODEL --explain NAME")), Some(true));
    }

    #[test]
    fn no_word_is_twice_or_our_own() {
        let command = Cli::command();
        let plan = command.find_subcommand("plan").unwrap();
        let ours: Vec<&str> = plan.get_arguments().filter_map(clap::Arg::get_long).collect();
        let lists = OPTIONS.iter().map(|(theirs, ..)| *theirs).chain([NO_BYTE, NOT_PLANNED, MODEL]);
        let mut words: Vec<&str> = lists.flat_map(|words| words.split(' ')).collect();
        assert!(words.iter().all(|word| *word == plain(word)), "as they are looked up");
        words.sort_unstable();
        let twice: Vec<_> = words.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert!(twice.is_empty(), "{twice:?}");
        let own: Vec<_> = words.iter().filter(|word| ours.contains(word)).collect();
        assert!(own.is_empty(), "{own:?}");
    }

    #[test]
    fn a_verb_is_told_of_the_options_that_it_has() {
        assert!(
            option("--json", |name| name == "format").is_some_and(|mend| mend == "write `--format json`")
        );
        assert_eq!(option("--bf16", |name| name == "format"), None);
        assert_eq!(option("--lr", |name| name == "format"), None);
        assert_eq!(
            value("--optimizer", "AdamW_Torch_Fused").as_deref(),
            Some("write `--optimizer adamw --optimizer-impl fused`")
        );
        assert_eq!(value("--attention", "flex"), None);
        assert_eq!(value("WHAT", "Cards").as_deref(), Some("write `peakledger list gpus`"));
        assert!(option("--nodes", |name| name == "gpus").is_some_and(|mend| mend.contains("`--gpus N`")));
    }
}
