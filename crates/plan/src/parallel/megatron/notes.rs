//! What a plan on Megatron's modules takes for granted, in words.

use crate::model::megatron::Score;
use crate::options::Recompute;
use crate::parallel::{CpComm, Mesh, Sharding};
use crate::plan::Plan;
use crate::torch::kernel::cublas_workspace_of_torch_2_10;
use peakledger_core::Bytes;

/// What is assumed, by topic.
pub(crate) fn assumptions(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("model", model(plan)),
        ("parallel", parallel(plan)),
        ("batch", batch(plan)),
        ("precision", precision(plan)),
        ("attention", attention(plan)),
        ("optimizer", optimizer(plan)),
        ("recompute", recompute(plan)),
        ("loop", training_loop(plan)),
        ("kernels", kernels(plan)),
    ]
    .into_iter()
    .chain((plan.architecture.shape.num_experts > 0).then(|| ("experts", experts(plan))))
    .collect()
}

fn experts(plan: &Plan) -> String {
    let Ok(mesh) = plan.options.mesh() else { return String::new() };
    let Mesh { ep, etp, edp, .. } = mesh;
    let score = plan.architecture.blueprint.megatron(&plan.architecture.shape).and_then(|gpt| gpt.experts);
    let router = match score.map(|experts| experts.score) {
        Some(Score::Sigmoid { groups: Some([groups, best]) }) => {
            format!("routers by sigmoid with a bias, over the best {best} of {groups} groups,")
        }
        Some(Score::Sigmoid { groups: None }) => "routers by sigmoid with a bias".to_owned(),
        Some(Score::Softmax) | None => "routers by softmax".to_owned(),
    };
    format!(
        "ep {ep} × etp {etp} × edp {edp}: TEGroupedMLP behind the all-to-all dispatcher; {router} in the type of the model spread \
         the tokens evenly; tokens permuted by plain ops, no auxiliary loss"
    )
}

/// What the figures leave out beside what others do.
pub(crate) const NOT_COUNTED: [&str; 2] = [
    "what cuDNN's attention takes as a workspace, and the partial sums of the norms' backward",
    "the attention mask that Megatron's loader may make, which Transformer Engine's causal kernels do not read",
];

fn model(plan: &Plan) -> String {
    let tied = plan.architecture.shape.tie_word_embeddings;
    let head = if tied { "the head's weight is the embedding's" } else { "a head of its own" };
    let latent = plan.architecture.shape.v_head_dim.is_some();
    let predicting = if latent { ", no MTP layers (--mtp-num-layers)" } else { "" };
    format!(
        "Megatron-Core 0.16 with Transformer Engine 2.11 on torch 2.10, every parameter trained, no dropout{predicting}; {head}; rows of \
         the vocabulary padded to a multiple of 128 × tp"
    )
}

fn parallel(plan: &Plan) -> String {
    let parallel = &plan.options.parallel;
    let Ok(mesh) = plan.options.mesh() else { return String::new() };
    let Mesh { world, tp, cp, dp, pp, .. } = mesh;
    let sp = if parallel.sp { " with sequence parallel" } else { "" };
    let comm = match (cp, parallel.cp_comm) {
        (1, _) => "",
        (_, CpComm::AllToAll) => " (a2a)",
        (_, CpComm::P2p) => " (p2p)",
    };
    format!(
        "rank {} of {world}: tp {tp}{sp} × cp {cp}{comm} × dp {dp} × pp {pp}; communication does not overlap with \
         computation, as without --tp-comm-overlap, --overlap-grad-reduce and --overlap-param-gather: gradients are summed \
         and parameters gathered in the update",
        parallel.rank
    )
}

fn batch(plan: &Plan) -> String {
    let (batch, length) = (plan.options.micro_batch_size, plan.seq_len);
    let sequences = if batch == 1 { "sequence" } else { "sequences" };
    let steps = match plan.options.gradient_accumulation_steps {
        1 => String::new(),
        steps => format!(", {steps} micro-batches a step, each on the device while it runs"),
    };
    format!("{batch} {sequences} of {length} tokens a data parallel rank{steps}")
}

fn precision(plan: &Plan) -> String {
    let weights = plan.options.weights().as_str();
    let sharded = match plan.options.parallel.sharding {
        Sharding::Zero1 => {
            "a data parallel rank's part of master weights and optimizer state in fp32 (distributed optimizer)"
        }
        _ => "master weights and optimizer state in fp32 (Float16OptimizerWithFloat16Params)",
    };
    format!(
        "weights in {weights}; gradients summed in a persistent fp32 main_grad, into which the products write \
         (gradient_accumulation_fusion); {sharded}"
    )
}

fn attention(plan: &Plan) -> String {
    let core = match plan.architecture.shape.v_head_dim {
        Some(_) => {
            "over latents (MLASelfAttention), positions by the fused kernels of YaRN with tables in each layer; Transformer \
             Engine's fused attention (cuDNN), which takes values narrower than keys"
        }
        None => "Transformer Engine's fused attention (cuDNN)",
    };
    match plan.options.recompute {
        Recompute::Selective => format!("{core}, computed again in backward"),
        _ => core.to_owned(),
    }
}

fn optimizer(plan: &Plan) -> String {
    let clip = if plan.options.clip_grad_norm { ", after clip_grad_norm" } else { "" };
    format!("FusedAdam, which makes no temporaries{clip}")
}

fn recompute(plan: &Plan) -> String {
    let checkpoint = "a checkpoint that runs again whole in backward (tensor_parallel.checkpoint)";
    match plan.options.recompute {
        Recompute::None => "none: activations are kept for backward".to_owned(),
        Recompute::Full => format!("full, uniform: every layer is {checkpoint}"),
        Recompute::Every(layers) => format!("full, uniform: {layers} layers in a row are {checkpoint}"),
        Recompute::Block(layers) => {
            format!(
                "full, block: each of the first {layers} layers of a stage, or of a part of it, is {checkpoint}"
            )
        }
        Recompute::Layers(layers) => format!("full: of {} layers each is {checkpoint}", layers.len()),
        Recompute::Selective => format!("selective, core_attn: the attention itself is {checkpoint}"),
    }
}

fn training_loop(plan: &Plan) -> String {
    let loss = match plan.options.fused_loss {
        true => {
            "cross entropy is Transformer Engine's (--cross-entropy-loss-fusion, impl te), which writes the gradient over the logits"
        }
        false => "cross entropy is Megatron's own (vocab_parallel_cross_entropy), over logits in fp32",
    };
    format!("{loss}; gradients are set to zero in their buffers")
}

fn kernels(plan: &Plan) -> String {
    let workspace = Bytes::new(cublas_workspace_of_torch_2_10(plan.options.capability));
    let of_card = match plan.options.capability {
        Some(_) => "",
        None => ", all as on an A100 (sm80) while --gpu names no card",
    };
    format!(
        "two cuBLAS workspaces of {workspace} for the head's products, for the loop's thread and autograd's, and Transformer \
         Engine's own{of_card}"
    )
}
