//! Arguments of Megatron-LM (`megatron/training/arguments.py`), as a list or in the script that launches it.

mod latent;
mod model;
mod script;

pub(super) use script::{fields, is_arguments};

use super::reading::Reading;
use peakledger_input::{Problem, quoted};
use serde_json::Value;

pub(super) const SIGNS: &[&str] = &[
    "tensor-model-parallel-size",
    "pipeline-model-parallel-size",
    "micro-batch-size",
    "global-batch-size",
    "num-layers",
    "seq-length",
    "use-distributed-optimizer",
];

const PASSES: &[&str] = &[
    "nproc_per_node",
    "nproc-per-node",
    "nnodes",
    "node_rank",
    "node-rank",
    "master_addr",
    "master-addr",
    "master_port",
    "master-port",
    "rdzv*",
    "train-iters",
    "train-samples",
    "rampup-batch-size",
    "lr*",
    "min-lr",
    "weight-decay*",
    "start-weight-decay",
    "end-weight-decay",
    "adam-*",
    "sgd-momentum",
    "init-method-*",
    "seed",
    "data-*",
    "train-data-path",
    "valid-data-path",
    "test-data-path",
    "split",
    "mock-data",
    "num-workers",
    "dataloader-type",
    "no-create-attention-mask-in-dataloader",
    "tokenizer-*",
    "tiktoken-*",
    "vocab-file",
    "merge-file",
    "save*",
    "load",
    "no-save-*",
    "no-load-*",
    "finetune",
    "ckpt-*",
    "dist-ckpt-*",
    "use-dist-ckpt",
    "auto-detect-ckpt-format",
    "async-save",
    "use-checkpoint-*",
    "exit-*",
    "eval-*",
    "log-*",
    "timing-log-*",
    "tensorboard-*",
    "wandb-*",
    "logging-level",
    "profile*",
    "use-pytorch-profiler",
    "record-memory-history",
    "memory-snapshot-path",
    "one-logger-*",
    "no-one-logger",
    "enable-one-logger",
    "distributed-backend",
    "distributed-timeout-*",
    "manual-gc*",
    "no-check-for-nan-in-loss-and-grad",
    "check-for-*",
    "use-mcore-models",
    "use-cpu-initialization",
    "no-initialization",
    "rerun-mode",
    "loss-scale*",
    "initial-loss-scale",
    "min-loss-scale",
    "hysteresis",
    "attention-softmax-in-fp32",
    "no-async-tensor-model-parallel-allreduce",
    "norm-epsilon",
    "rotary-base",
    "rotary-seq-len-interpolation-factor",
    "use-rope-scaling",
    "rope-scaling-factor",
    "no-masked-softmax-fusion",
    "moe-aux-loss-coeff",
    "moe-z-loss-coeff",
    "moe-router-load-balancing-type",
    "moe-router-force-load-balancing",
    "moe-router-pre-softmax",
    "moe-input-jitter-eps",
    "moe-use-upcycling",
    "moe-token-drop-policy",
    "moe-router-topk-scaling-factor",
    "moe-router-bias-update-rate",
    "moe-per-layer-logging",
    "use-tp-pp-dp-mapping",
    "deterministic-mode",
    "calculate-per-token-loss",
    "disable-gloo-process-groups",
    "no-overlap-p2p-communication",
    "num-dataset-builder-threads",
    "reset-position-ids",
    "reset-attention-mask",
    "eod-mask-loss",
    "legacy-tokenizer",
    "trust-remote-code",
    "bert-no-binary-head",
    "decoupled-lr",
    "decoupled-min-lr",
    "override-opt*",
    "no-weight-decay-cond-type",
    "ddp-average-in-collective",
    "no-mmap-bin-files",
    "no-persist-layer-norm",
    "high-priority-stream-groups",
    "sft",
    "te-rng-tracker",
    "inference-rng-tracker",
    "check-weight-hash-across-dp-replicas-interval",
    "enable-experimental",
    "align-grad-reduce",
    "align-param-gather",
    "use-sharp",
    "keep-fp8-transpose-cache",
    "init-model-with-meta-device",
    "lazy-mpu-init",
    "mtp-loss-scaling-factor",
    "overlap-grad-reduce",
    "overlap-param-gather",
    "use-flash-attn",
    "moe-grouped-gemm",
    "moe-token-dispatcher-type",
    "moe-permute-fusion",
    "moe-router-dtype",
    "moe-router-fusion",
];

pub(super) fn read(reading: &mut Reading<'_>) -> Result<(), Problem> {
    reading.imply("--stack", "megatron", "Megatron's modules");
    reading.count("micro-batch-size", "--micro-batch-size");
    reading.samples("global-batch-size");
    reading.count("seq-length", "--seq-len");
    reading.attempt(types);
    reading.attempt(optimizer);
    reading.attempt(recompute);
    reading.attempt(sizes);
    reading.attempt(pipeline);
    reading.attempt(loss);
    reading.attempt(model::read);
    for (key, what) in [
        ("tp-comm-overlap", "user buffers of overlapped tensor parallel communication"),
        ("fp32-residual-connection", "a residual stream in fp32"),
        ("cpu-offloading-num-layers", "layers whose activations wait on the host"),
        ("cpu-offloading", "activations that wait on the host"),
        ("ddp-bucket-size", "buckets of another size, to which gradients are padded"),
        ("ddp-num-buckets", "buckets of another size, to which gradients are padded"),
        ("ddp-pad-buckets-for-high-nccl-busbw", "buckets that are padded for the network"),
        ("nccl-communicator-config-path", "communicators of other sizes: planned as they are by default"),
        ("no-bias-swiglu-fusion", "SwiGLU in kernels of its own: planned fused"),
        ("no-bias-gelu-fusion", "GELU in kernels of its own: planned fused"),
        ("fp16-lm-cross-entropy", "a loss over half logits: planned over fp32"),
        ("hybrid-override-pattern", "layers of other kinds: a transformer's are planned"),
        ("hierarchical-context-parallel-sizes", "context parallel in levels: planned in one"),
        ("attention-output-gate", "gates of the attention's output"),
        ("overlap-p2p-communication-warmup-flush", "what is sent ahead in warm-up and flush"),
        ("use-megatron-fsdp", "Megatron-FSDP"),
        ("use-custom-fsdp", "Megatron-FSDP"),
        ("use-nccl-ub", "user buffers of NCCL"),
        (
            "no-gradient-accumulation-fusion",
            "weight gradients that are made before they are added: planned as added at once",
        ),
        ("overlap-param-gather-with-optimizer-step", "parameters that are gathered during the update"),
        ("defer-embedding-wgrad-compute", "the head's weight gradients, put off to the end of the pipeline"),
        ("overlap-moe-expert-parallel-comm", "two micro-batches at once"),
        ("mtp-num-layers", "layers that predict the tokens after the next (MTP)"),
        ("delay-wgrad-compute", "weight gradients that are put off"),
        ("moe-expert-capacity-factor", "experts that drop tokens"),
        ("moe-pad-expert-input-to-capacity", "experts that are padded"),
        ("moe-enable-deepep", "DeepEP's buffers: tokens are planned as sent by all-to-all"),
        ("moe-shared-expert-overlap", "shared experts beside the sending of tokens: planned after it"),
        ("moe-use-legacy-grouped-gemm", "the older grouped products: Transformer Engine's are planned"),
        ("use-legacy-models", "Megatron's legacy modules: those of its core are planned"),
        ("empty-unused-memory-level", "emptying the cache between steps"),
        ("enable-cuda-graph", "CUDA graphs"),
        ("external-cuda-graph", "CUDA graphs"),
        ("cuda-graph-impl", "CUDA graphs"),
    ] {
        reading.not_planned_if_set(key, what);
    }
    for key in ["main-grads-dtype", "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype"] {
        if reading.text(key)?.is_some_and(|dtype| dtype != "fp32") {
            reading.not_planned(key, "the optimizer's own in another type: planned in fp32");
        }
    }
    reading.not_planned_if_set_without(
        "--recompute",
        "moe-layer-recompute",
        "layers of experts that are computed again: planned as kept",
    );
    if reading.text("transformer-impl")?.is_some_and(|modules| modules != "transformer_engine") {
        reading.not_planned("transformer-impl", "other modules than Transformer Engine's, which are planned");
    }
    if reading.text("attention-backend")?.is_some_and(|backend| matches!(backend, "unfused" | "local")) {
        reading.not_planned("attention-backend", "attention that is not fused: planned as cuDNN's");
    }
    if reading.number("num-distributed-optimizer-instances")?.is_some_and(|instances| instances > 1) {
        let what = "a distributed optimizer in several instances: planned over all data parallel ranks";
        reading.not_planned("num-distributed-optimizer-instances", what);
    }
    reading.pass(PASSES);
    reading.pass(latent::PASSES);
    conditions(reading);
    Ok(())
}

/// Says what hangs on a condition of the script: no shell is run, and an option that stands within one is taken. Where the script
/// says something else elsewhere, the command line says which it is.
fn conditions(reading: &mut Reading<'_>) {
    for script::Conditional { name, line, other } in script::conditionals(reading.whole_text()) {
        let options = reading.options_by(&name);
        let is_shape = model::reads(&name);
        let counts = match is_shape {
            true => reading.found.model.is_some(),
            false => reading.is_read(&name) && !passes(&name),
        };
        let place = format!("it stands within a condition (line {line}), and no shell is run");
        let elsewhere = |other: &str| {
            let other = if other.is_empty() { "without a value".to_owned() } else { quoted(other) };
            format!("{place}; elsewhere in the script it is {other}")
        };
        match (other, options.first()) {
            (Some(other), Some(option)) => reading.unplanned(option, &name, &elsewhere(&other)),
            (Some(other), None) if is_shape && counts => {
                reading.found.model = None;
                reading.ask("MODEL", &name, &elsewhere(&other));
            }
            (_, Some(option)) => reading.note_without(option, &name, &format!("{place}: taken")),
            (_, None) if counts => reading.note(&name, &format!("{place}: taken")),
            _ => {}
        }
    }
}

/// Whether an argument is one that cannot change memory.
fn passes(name: &str) -> bool {
    PASSES.iter().any(|passed| match passed.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == *passed,
    })
}

/// Half types have fp32 copies that the optimizer steps (`Float16OptimizerWithFloat16Params`); bf16 sums gradients in fp32.
fn types(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let (bf16, fp16) = (reading.is("bf16")?, reading.is("fp16")?);
    let in_fp32 = reading.is("accumulate-allreduce-grads-in-fp32")?;
    let in_bf16 = reading.is("grad-reduce-in-bf16")?;
    if bf16 || fp16 {
        let half = if bf16 { "bf16" } else { "fp16" };
        reading.set("--precision", half, half);
        reading.imply("--master-weights", "fp32", "Megatron's optimizer steps fp32 copies");
        if in_fp32 {
            reading.set("--grad-dtype", "fp32", "accumulate-allreduce-grads-in-fp32");
        } else if bf16 && !in_bf16 {
            reading.imply("--grad-dtype", "fp32", "with bf16 Megatron sums gradients in fp32");
        } else {
            let key = if in_bf16 { "grad-reduce-in-bf16" } else { half };
            reading.not_planned(key, "gradients summed in the half type: planned in fp32");
        }
    } else {
        reading.imply("--precision", "fp32", "neither bf16 nor fp16");
    }
    for key in ["fp8-format", "fp8-recipe", "fp4-format"] {
        if reading.has(key) {
            reading.value(key);
            reading.unplanned("--precision", key, "fp8 is not planned");
        }
    }
    reading.pass(&["fp8-*"]);
    Ok(())
}

fn optimizer(reading: &mut Reading<'_>) -> Result<(), Problem> {
    match reading.text("optimizer")? {
        None => reading.imply("--optimizer", "adamw", "optimizer left out: adam"),
        Some("adam") => reading.set("--optimizer", "adamw", "optimizer"),
        Some("sgd") => {
            reading.set("--optimizer", "sgd", "optimizer");
            let momentum = reading.amount("sgd-momentum")?;
            match momentum {
                Some(momentum) => reading.set("--momentum", momentum, "sgd-momentum"),
                None => reading.imply("--momentum", 0.9, "sgd-momentum left out"),
            }
        }
        Some("muon" | "dist_muon") => reading.set("--optimizer", "muon", "optimizer"),
        Some(other) => {
            reading.unplanned(
                "--optimizer",
                "optimizer",
                &format!("the optimizer {} is not planned", quoted(other)),
            );
        }
    }
    match reading.amount("clip-grad")? {
        Some(norm) => reading.set("--clip-grad-norm", norm > 0.0, "clip-grad"),
        None => reading.imply("--clip-grad-norm", true, "clip-grad left out"),
    }
    if reading.is("use-distributed-optimizer")? {
        reading.set("--zero", 1, "use-distributed-optimizer");
    }
    if reading.is("use-torch-fsdp2")? {
        let keeps = reading.is("torch-fsdp2-no-reshard-after-forward")?;
        reading.set("--fsdp", if keeps { "shard_grad_op" } else { "full_shard" }, "use-torch-fsdp2");
    }
    if reading.is("optimizer-cpu-offload")? {
        reading.set("--offload", "optimizer", "optimizer-cpu-offload");
        if reading.amount("optimizer-offload-fraction")?.is_some_and(|part| part < 1.0) {
            reading.not_planned(
                "optimizer-offload-fraction",
                "a part of the optimizer on the host: planned whole",
            );
        }
    }
    reading.not_planned_if_set(
        "use-precision-aware-optimizer",
        "states of the optimizer in other types than fp32",
    );
    Ok(())
}

/// The cross entropy is Transformer Engine's where that is asked for (`--cross-entropy-fusion-impl te`).
fn loss(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let by = reading.text("cross-entropy-fusion-impl")?;
    if reading.is("cross-entropy-loss-fusion")? {
        match by {
            Some("te") => reading.set("--fused-loss", true, "cross-entropy-loss-fusion"),
            _ => reading.not_planned("cross-entropy-loss-fusion", "Megatron's own fused cross entropy"),
        }
    }
    Ok(())
}

/// `--recompute-granularity` and what belongs to it.
fn recompute(reading: &mut Reading<'_>) -> Result<(), Problem> {
    let method = reading.text("recompute-method")?;
    let layers = reading.number("recompute-num-layers")?;
    let granularity = match reading.text("recompute-granularity")? {
        None if reading.is("recompute-activations")? => Some("selective"),
        granularity => granularity,
    };
    let key =
        if reading.has("recompute-granularity") { "recompute-granularity" } else { "recompute-activations" };
    match (granularity, method, layers) {
        (None, ..) => {}
        (Some("full"), Some("block"), Some(layers)) => {
            reading.set("--recompute", format!("block:{layers}"), "recompute-num-layers");
        }
        (Some("full"), Some("block"), None) => {
            let cause = "how many layers of a stage are checkpoints, `--recompute-num-layers`, is left out";
            reading.unplanned("--recompute", "recompute-method", cause);
        }
        (Some("full"), _, None | Some(1)) => reading.set("--recompute", "full", key),
        (Some("full"), _, Some(layers)) => {
            reading.set("--recompute", format!("every:{layers}"), "recompute-num-layers");
        }
        (Some("selective"), ..) => reading.set("--recompute", "selective", key),
        (Some(other), ..) => {
            let problem = reading.problem(key, format!("no granularity of Megatron: {}", quoted(other)));
            return Err(problem.mend("write full or selective"));
        }
    }
    if let Some(modules) = reading.words("recompute-modules")?
        && granularity == Some("selective")
        && modules.iter().any(|module| module != "core_attn")
    {
        let cause = "which modules are computed again is not planned: core_attn alone is";
        reading.unplanned("--recompute", "recompute-modules", cause);
    }
    reading.not_planned_if_set(
        "distribute-saved-activations",
        "checkpoints that are split over tensor parallel ranks",
    );
    reading.pass(&["recompute-activations"]);
    Ok(())
}

fn sizes(reading: &mut Reading<'_>) -> Result<(), Problem> {
    for (key, option) in [
        ("tensor-model-parallel-size", "--tp"),
        ("pipeline-model-parallel-size", "--pp"),
        ("context-parallel-size", "--cp"),
        ("expert-model-parallel-size", "--ep"),
        ("expert-tensor-parallel-size", "--etp"),
    ] {
        reading.count(key, option);
    }
    if reading.is("sequence-parallel")? {
        reading.set("--sp", true, "sequence-parallel");
    }
    // torchrun's
    let per_node = ["nproc_per_node", "nproc-per-node"].into_iter().find(|key| reading.has(key));
    if let Some(key) = per_node {
        // what a variable says is asked for where it is needed, as is what torchrun finds out (`determine_local_world_size`,
        // `parse_min_max_nnodes`)
        let text = |key: &str| reading.peek(key).and_then(Value::as_str).unwrap_or_default();
        let is_found = matches!(text(key), "gpu" | "auto" | "cpu" | "xpu") || text("nnodes").contains(':');
        if is_found {
            reading.pass(&[key, "nnodes"]);
        } else if !reading.is_variable(key) && !reading.is_variable("nnodes") {
            let nodes = reading.number("nnodes")?.unwrap_or(1);
            if let Some(gpus) = reading.number(key)? {
                reading.set("--gpus", gpus.saturating_mul(nodes), key);
                if nodes > 1 {
                    reading.set("--gpus-per-node", gpus, key);
                }
            }
        }
    }
    Ok(())
}

fn pipeline(reading: &mut Reading<'_>) -> Result<(), Problem> {
    if let Some(stages) = reading.number("num-virtual-stages-per-pipeline-rank")?.filter(|stages| *stages > 1)
    {
        reading.set("--virtual-stages", stages, "num-virtual-stages-per-pipeline-rank");
    }
    let key = "num-layers-per-virtual-pipeline-stage";
    if let Some(per_stage) = reading.number(key)? {
        let layers = reading.number("num-layers")?;
        let pp = reading.number("pipeline-model-parallel-size")?;
        let stages = layers.zip(pp).and_then(|(layers, pp)| layers.checked_div(pp.checked_mul(per_stage)?));
        match stages {
            Some(stages) if stages > 0 => reading.set("--virtual-stages", stages, key),
            _ => reading.ask(
                "--virtual-stages",
                key,
                "how many that makes needs --num-layers and --pipeline-model-parallel-size",
            ),
        }
    }
    reading.count("decoder-first-pipeline-num-layers", "--decoder-first-pipeline-num-layers");
    reading.count("decoder-last-pipeline-num-layers", "--decoder-last-pipeline-num-layers");
    for key in [
        "pipeline-model-parallel-layout",
        "account-for-embedding-in-pipeline-split",
        "account-for-loss-in-pipeline-split",
    ] {
        reading.not_planned_if_set(key, "stages of its own choice: planned even");
    }
    Ok(())
}
