//! What ranks do together once a step: gradients are summed after the last backward (`finalize_model_grads`,
//! `megatron/core/distributed/finalize_model_grads.py`), and parameters gathered after the update (`start_param_sync`,
//! `param_and_grad_buffer.py`). Scalars, as norms and losses, are left out, and so are the tokens of each expert.

use super::Buffer;
use crate::nn::Parameter;
use crate::nn::te::COALESCED;
use crate::options::Options;
use crate::parallel::Sharding;
use crate::torch::network::{Collective, Peers};
use crate::torch::{Dtype, Layout, Torch};
use peakledger_core::Category;
use std::rc::Rc;

/// Parameters whose gradients lie in one buffer: those of a part of a stage, experts apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    part_of_stage: u32,
    of_expert: bool,
    /// The data parallel ranks that have the same, and this one among them.
    pub(crate) ranks: u32,
    pub(crate) rank: u32,
    peers: Peers,
}

impl Group {
    /// Whether a parameter is one of them.
    pub(crate) fn has(&self, parameter: &Parameter) -> bool {
        (parameter.part_of_stage, parameter.of_expert) == (self.part_of_stage, self.of_expert)
    }

    /// Its buffer; shared out among the ranks under the distributed optimizer.
    pub(crate) fn buffer(&self, options: &Options, parameters: &[Parameter]) -> Buffer {
        let members = parameters.iter().filter(|parameter| self.has(parameter));
        let sizes: Vec<u64> = members.map(|parameter| parameter.tensor.layout().numel()).collect();
        Buffer::new(&sizes, is_shared_out(options).then_some(self.ranks))
    }
}

/// The groups of what this rank trains that have any parameters.
pub(crate) fn groups(options: &Options, parameters: &[Parameter]) -> Vec<Group> {
    let Ok(mesh) = options.mesh() else { unreachable!("a world that was checked") };
    let within_stage = options.parallel.rank % (mesh.world / mesh.pp);
    let parts_here = parameters.last().map_or(0, |parameter| parameter.part_of_stage + 1);
    let of_part = |part_of_stage| {
        [
            Group {
                part_of_stage,
                of_expert: false,
                ranks: mesh.replicas(),
                rank: mesh.replica_of(options.parallel.rank),
                peers: mesh.replica_peers(),
            },
            Group {
                part_of_stage,
                of_expert: true,
                ranks: mesh.edp,
                rank: within_stage / (mesh.etp * mesh.ep),
                peers: mesh.expert_replica_peers(),
            },
        ]
    };
    let all = (0..parts_here).flat_map(of_part);
    all.filter(|group| parameters.iter().any(|parameter| group.has(parameter))).collect()
}

fn is_shared_out(options: &Options) -> bool {
    options.parallel.sharding == Sharding::Zero1
}

/// Gradients become those of all ranks: the buffers summed over data parallel ranks, or each rank's part of them; what every
/// tensor parallel rank has whole but ran over its part of the sequence, or of the heads, summed over these; the embedding
/// that two stages have, over the two.
pub(crate) fn finalize_model_grads(torch: &Rc<Torch>, options: &Options, parameters: &[Parameter]) {
    let main_grad = |numbers: u64| numbers.saturating_mul(Dtype::F32.width());
    let Ok(mesh) = options.mesh() else { unreachable!("a world that was checked") };
    for group in groups(options, parameters) {
        let bytes = main_grad(group.buffer(options, parameters).numel);
        if mesh.replicas() > 1 {
            torch.launch("mul_.Scalar"); // `gradient_scaling_factor`
            torch.moves(bytes.saturating_mul(2));
        }
        let (op, what) = match is_shared_out(options) {
            true => ("reduce_scatter_tensor", Collective::ReduceScatter),
            false => ("all_reduce", Collective::AllReduce),
        };
        if group.ranks > 1 {
            torch.launch(op);
            torch.communicates(what, bytes, group.peers);
        }
    }
    sum_over_tensor_parallel(torch, (mesh.tensor_peers(), options.parallel.sp), parameters);
    let ends = mesh.stage_peers(0, mesh.pp - 1);
    for shared in parameters.iter().filter(|parameter| parameter.is_on_two_stages) {
        torch.launch("all_reduce");
        torch.communicates(Collective::AllReduce, main_grad(shared.tensor.layout().numel()), ends);
    }
}

/// `_allreduce_non_tensor_model_parallel_grads`: copied side by side, summed, and copied back.
fn sum_over_tensor_parallel(torch: &Rc<Torch>, (tp, splits): (Peers, bool), parameters: &[Parameter]) {
    let of_heads = |parameter: &Parameter| {
        let path = torch.tape.borrow().path(parameter.module);
        path.ends_with(".q_layernorm") || path.ends_with(".k_layernorm")
    };
    let is_summed = |it: &&Parameter| !it.of_expert && it.is_whole() && (splits || of_heads(it));
    let numbers = parameters.iter().filter(is_summed).map(|it| it.tensor.layout().numel());
    let numbers = numbers.fold(0, u64::saturating_add);
    if tp.ranks == 1 || numbers == 0 {
        return;
    }
    torch.launch("cat");
    let coalesced = torch.empty(Layout::contiguous(&[numbers]), Dtype::F32);
    coalesced.rename(Category::CommunicationBuffer, COALESCED);
    torch.reads(&[&coalesced]);
    torch.launch("all_reduce");
    torch.communicates(Collective::AllReduce, coalesced.bytes(), tp);
    torch.launch("copy_");
    torch.reads(&[&coalesced, &coalesced]);
}

/// Under the distributed optimizer each rank has stepped its part of the parameters, and gets the others'.
pub(crate) fn gather_parameters(torch: &Rc<Torch>, options: &Options, parameters: &[Parameter]) {
    if !is_shared_out(options) {
        return;
    }
    let width = parameters.first().map_or(0, |parameter| parameter.tensor.dtype().width());
    for group in groups(options, parameters).into_iter().filter(|group| group.ranks > 1) {
        let numbers = group.buffer(options, parameters).numel;
        torch.launch("all_gather_into_tensor");
        torch.communicates(Collective::AllGather, numbers.saturating_mul(width), group.peers);
    }
}
