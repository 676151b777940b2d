//! What cannot be, or is not planned, with `--stack megatron`.

use crate::config::Architecture;
use crate::options::{Attention, Experts, HoldOutputs, Offload, OptimizerKind, Options, Precision, refused};
use crate::parallel::{CpComm, DataParallel, Mesh, Parallel, Schedule, Sharding};
use crate::torch::Dtype;
use peakledger_input::Problem;

/// Checks a step on Megatron's modules: its options, and that its sizes divide the model's.
///
/// # Errors
/// Names the option, and fills in the division that leaves a rest.
pub(crate) fn check(options: &Options, arch: &Architecture, seq_len: u64) -> Result<(), Problem> {
    let mesh = options.mesh()?;
    planned(options, arch)?;
    divides(options, arch, seq_len, &mesh)
}

fn planned(options: &Options, arch: &Architecture) -> Result<(), Problem> {
    if arch.blueprint.megatron(&arch.shape).is_none() {
        let family = arch.family.model_type;
        let cause = format!("this {family} has no Megatron modules here");
        return refused(
            "--stack",
            cause,
            "llama, mistral, qwen2, qwen3, mixtral, qwen3_moe and deepseek_v3 with SwiGLU have, without biases on the output; leave it out",
        );
    }
    if arch.shape.window.is_some() {
        let cause = "attention through a window is not planned on Megatron's modules yet";
        return refused("--stack", cause, "leave it out for this model");
    }
    let is_half = matches!(options.precision, Precision::Bf16 | Precision::Fp16);
    if !is_half || options.weights_dtype.is_some() {
        let cause = "Megatron's weights are planned in bf16 or fp16, with gradients and masters in fp32";
        return refused("--precision", cause, "use bf16 or fp16, or leave it out: bf16");
    }
    if options.grad_dtype != Some(Dtype::F32) {
        return refused(
            "--grad-dtype",
            "Megatron's main_grad is planned in fp32",
            "use fp32, or leave it out",
        );
    }
    if options.master_weights != Some(Dtype::F32) {
        let cause = "Megatron's optimizer steps fp32 copies";
        return refused("--master-weights", cause, "use fp32, or leave it out");
    }
    let Parallel { sharding, sp, tp, schedule, .. } = options.parallel;
    if options.parallel.data != DataParallel::default() {
        let cause = "the sizes of DDP, FSDP and DeepSpeed's ZeRO say nothing to Megatron's optimizer";
        return refused(
            "--stack",
            cause,
            "leave out --reduce-dtype, --sync-each-batch, --ddp-… and --zero-…",
        );
    }
    let not_planned = [
        (
            "--zero",
            matches!(sharding, Sharding::Zero2 | Sharding::Zero3),
            "its distributed optimizer is stage 1",
        ),
        (
            "--fsdp",
            matches!(sharding, Sharding::FullShard | Sharding::ShardGradOp | Sharding::HybridShard),
            "Megatron-FSDP is not planned",
        ),
        (
            "--schedule",
            !matches!(schedule, Schedule::OneFOneB | Schedule::Interleaved),
            "the schedules are Megatron-LM's, 1f1b and interleaved",
        ),
        ("--optimizer", options.optimizer != OptimizerKind::AdamW, "it is planned with its FusedAdam"),
        ("--optimizer-impl", options.optimizer_impl.is_some(), "its Adam has one implementation"),
        (
            "--attention",
            options.attention != Attention::Sdpa,
            "Transformer Engine's fused attention is planned",
        ),
        ("--attention-mask", options.padded, "its causal kernels take no mask"),
        ("--expand-kv", options.expand_kv, "its kernels take grouped heads as they are"),
        ("--experts", options.experts != Experts::GroupedMm, "its experts are a grouped product"),
        ("--offload", options.offload != Offload::default(), "nothing of it is planned on the host"),
        ("--lora", options.lora.is_some(), "its modules are trained whole"),
        ("--freeze", !options.freeze.is_empty(), "its modules are trained whole"),
        ("--quantize", options.quantize.is_some(), "its weights are planned as they are"),
        ("--hold-outputs", options.hold_outputs != HoldOutputs::No, "its loop keeps the losses alone"),
        ("--loss-in-model", options.loss_in_model, "its model always computes the loss"),
        ("--sp", sp && tp == 1, "the sequence is split over the tensor parallel ranks, and there is one"),
    ];
    match not_planned.iter().find(|(_, asked, _)| *asked) {
        Some((option, _, why)) => refused(option, format!("with --stack megatron {why}"), "leave it out"),
        None => Ok(()),
    }
}

fn divides(options: &Options, arch: &Architecture, seq_len: u64, mesh: &Mesh) -> Result<(), Problem> {
    let shape = &arch.shape;
    let [tp, cp] = [mesh.tp, mesh.cp].map(u64::from);
    let no_multiple = |option: &str, what: &str, of: u64, by: &str, ranks: u64| {
        let cause = format!("{of} {what} are no multiple of {by} = {ranks}");
        refused(option, cause, "use a size that divides them")
    };
    let mut sizes = vec![
        ("--tp", "query heads", shape.num_attention_heads, format!("tp {tp}"), tp),
        ("--tp", "key and value heads", shape.num_key_value_heads, format!("tp {tp}"), tp),
    ];
    if cp > 1 {
        sizes.push(("--cp", "tokens", seq_len, format!("2 × cp {cp}"), cp * 2));
        if options.parallel.cp_comm == CpComm::AllToAll {
            if shape.v_head_dim.is_some() {
                let cause = "Transformer Engine's all-to-all takes keys and values of one width";
                return refused("--cp-comm-type", cause, "use p2p, or leave it out");
            }
            let of = format!("tp {tp} × cp {cp}");
            sizes.push(("--cp", "key and value heads", shape.num_key_value_heads, of, tp * cp));
        }
    }
    if options.parallel.sp {
        sizes.push(("--sp", "tokens", seq_len, format!("tp {tp} × cp {cp}"), tp * cp));
    }
    let experts = shape.num_experts;
    if experts > 0 {
        sizes.push(("--ep", "experts", experts, format!("ep {}", mesh.ep), mesh.ep.into()));
        if tp > 1 && !options.parallel.sp {
            let cause = "Megatron trains experts under tensor parallel with sequence parallel alone";
            return refused("--tp", cause, "add --sp");
        }
    } else if mesh.ep > 1 {
        let cause = "the model has no experts to spread";
        return refused("--ep", cause, "leave it out");
    }
    for (option, what, of, by, ranks) in sizes {
        if ranks > 0 && of % ranks != 0 {
            return no_multiple(option, what, of, &by, ranks);
        }
    }
    Ok(())
}
