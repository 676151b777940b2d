//! Transformer Engine's modules, as Megatron-Core calls them (`transformer_engine/pytorch`, 2.11): fused norm and linear,
//! linear, grouped linear, RMSNorm, SwiGLU, rotary positions, attention, cross entropy. Each is one `autograd.Function` with a
//! backward of its own, so what is saved and what is made stands in its file, not in derivative rules.
//!
//! Gradients of weights are added straight into Megatron's fp32 `main_grad` by the product itself
//! (`fuse_wgrad_accumulation`). Autograd is handed a tensor that nobody reads in their place: one for each shape of weight,
//! made when it is first needed and kept (`get_dummy_wgrad`, `module/base.py`).

mod a2a;
mod attention;
mod cross_entropy;
mod grouped_linear;
mod layernorm_linear;
mod linear;
mod mla_rope;
mod p2p;
mod rms_norm;
mod rope;
mod swiglu;

pub(crate) use attention::DotProductAttention;
pub(crate) use cross_entropy::parallel_cross_entropy;
pub(crate) use grouped_linear::GroupedLinear;
pub(crate) use layernorm_linear::LayerNormLinear;
pub(crate) use linear::{Linear, Mode};
pub(crate) use mla_rope::{rope_for_kv, rope_for_q};
pub(crate) use rms_norm::RmsNorm;
pub(crate) use rope::fused_rope;
pub(crate) use swiglu::{swiglu, weighted_swiglu};

use crate::options::Options;
use crate::parallel::{CpComm, Mesh};
use crate::torch::cost::product_flops;
use crate::torch::network::{Collective, Peers};
use crate::torch::{Dtype, Layout, Tensor, Torch};
use peakledger_core::Category;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

const DUMMIES: &str = "dummy weight gradients";
const WORKSPACE: &str = "Transformer Engine's cuBLAS workspace";
const GATHERED: &str = "Megatron's buffer for gathered activations";
const ALL_TO_ALL: &str = "all-to-all of attention";
const AROUND: &str = "keys and values on their way around";
pub(crate) const COALESCED: &str = "gradients summed over tensor parallel ranks";
const PARAMETERS: &str = "param_data";
pub(crate) const ANGLES: &str = "rotary angles";
/// Layers whose angles Megatron keeps (`lru_cache`).
const MOST_ANGLES: usize = 32;

/// What has a name of its own, in words, and where that was read.
pub(crate) fn rule(name: &str) -> Option<(&'static str, &'static str)> {
    Some(match name {
        DUMMIES => (
            "handed to autograd in place of weight gradients that are in main_grad already: one for each shape, kept for good",
            "transformer_engine/pytorch/module/base.py, get_dummy_wgrad",
        ),
        WORKSPACE => (
            "for all products of its modules, kept for good",
            "transformer_engine/pytorch/cpp_extensions/gemm.py, get_cublas_workspace",
        ),
        GATHERED => (
            "what is split by sequence, whole for the head's products; kept for good",
            "megatron/core/utils.py, GlobalMemoryBuffer",
        ),
        ALL_TO_ALL => (
            "queries, keys, values and attended states on their way between ranks",
            "transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py",
        ),
        AROUND => (
            "keys and values of other ranks, and in backward their gradients with them",
            "transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py",
        ),
        grouped_linear::WORKSPACES => (
            "four, one for each stream of a grouped product, kept for good",
            "transformer_engine/pytorch/cpp_extensions/gemm.py, get_cublas_workspace",
        ),
        PARAMETERS => (
            "all parameters side by side, of which each data parallel rank steps a part",
            "megatron/core/distributed/param_and_grad_buffer.py",
        ),
        COALESCED => (
            "those of what every tensor parallel rank has whole, side by side",
            "megatron/core/distributed/finalize_model_grads.py, _allreduce_non_tensor_model_parallel_grads",
        ),
        ANGLES => (
            "made in the first forward and kept; latent attention has its own in each layer",
            "megatron/core/models/common/embeddings/rotary_pos_embedding.py, yarn_rotary_pos_embedding.py",
        ),
        _ => return None,
    })
}

/// How the experts of a layer are spread: over how many ranks, and each over how many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertGroups {
    /// Experts on all ranks.
    pub(crate) all: u64,
    /// The size of the expert parallel group.
    pub(crate) ep: u32,
    /// The size of the expert tensor parallel group.
    pub(crate) etp: u32,
    /// Both groups, as they are reached.
    pub(crate) peers: Peers,
    pub(crate) tensor_peers: Peers,
}

/// What the modules of a rank share: their process groups, and the buffers that live as long as the process.
pub(crate) struct Shared {
    torch: Rc<Torch>,
    /// The size of the tensor parallel group.
    pub(crate) tp: u32,
    /// Whether what lies between the matrices is split by sequence over that group.
    pub(crate) sequence_parallel: bool,
    /// The size of the context parallel group, where this rank stands in it, and how it attends.
    pub(crate) cp: u32,
    cp_rank: u32,
    cp_comm: CpComm,
    /// Both groups, as they are reached.
    pub(crate) tp_peers: Peers,
    pub(crate) cp_peers: Peers,
    /// How experts are spread.
    pub(crate) experts: ExpertGroups,
    capability: Option<(u8, u8)>,
    workspace: RefCell<Option<Tensor>>,
    grouped_workspaces: RefCell<Vec<Tensor>>,
    gathered: RefCell<Option<Tensor>>,
    dummies: RefCell<BTreeMap<(u64, u64), Tensor>>,
    angles: RefCell<VecDeque<Tensor>>,
}

impl Shared {
    /// Those of the rank that is planned, of so many experts.
    pub(crate) fn new(torch: &Rc<Torch>, options: &Options, mesh: &Mesh, experts: u64) -> Rc<Shared> {
        let parallel = &options.parallel;
        Rc::new(Shared {
            torch: torch.clone(),
            tp: mesh.tp,
            sequence_parallel: parallel.sp && mesh.tp > 1,
            cp: mesh.cp,
            cp_rank: mesh.place(parallel.rank).cp,
            cp_comm: parallel.cp_comm,
            tp_peers: mesh.tensor_peers(),
            cp_peers: mesh.context_peers(),
            experts: ExpertGroups {
                all: experts,
                ep: mesh.ep,
                etp: mesh.etp,
                peers: mesh.expert_peers(),
                tensor_peers: mesh.expert_tensor_peers(),
            },
            capability: options.capability,
            workspace: RefCell::new(None),
            grouped_workspaces: RefCell::new(Vec::new()),
            gathered: RefCell::new(None),
            dummies: RefCell::new(BTreeMap::new()),
            angles: RefCell::default(),
        })
    }

    pub(crate) fn torch(&self) -> &Rc<Torch> {
        &self.torch
    }

    /// The `lru_cache(maxsize=32)` ([`MOST_ANGLES`]) on `YarnRotaryEmbedding.forward`, which the embeddings of all layers share.
    pub(crate) fn keep_angles(&self, angles: Tensor) {
        let mut kept = self.angles.borrow_mut();
        if kept.len() == MOST_ANGLES {
            kept.pop_front();
        }
        kept.push_back(angles);
    }

    /// Experts of a layer on this rank.
    pub(crate) fn experts_here(&self) -> u64 {
        self.experts.all / u64::from(self.experts.ep)
    }

    /// A product over the last dimension of `x`, each element a sum over `inner`, by `general_gemm`
    /// (`cpp_extensions/gemm.py`).
    fn gemm(&self, x: &Tensor, other: &Tensor, sizes: &[u64], inner: u64) -> Tensor {
        let torch = &self.torch;
        torch.launch("general_gemm");
        self.workspace();
        let layout = Layout::contiguous(sizes);
        torch.multiplies(product_flops(layout.numel(), inner), x.dtype());
        torch.reads(&[x, other]);
        torch.empty(layout, x.dtype())
    }

    /// `weight.main_grad += grad.T @ x`, and what autograd is handed in its place.
    fn add_weight_gradient(&self, weight: &Tensor, x: &Tensor, grad: &Tensor) {
        let torch = &self.torch;
        torch.launch("general_gemm");
        self.workspace();
        let rows = grad.layout().numel() / grad.size(-1).max(1);
        torch.multiplies(product_flops(weight.layout().numel(), rows), x.dtype());
        let main_grad = weight.layout().numel().saturating_mul(Dtype::F32.width());
        torch.reads(&[x, grad]);
        torch.moves(main_grad.saturating_mul(2));
        self.dummy_gradient(weight);
    }

    /// The gradient of a bias, which comes out of the weight's product.
    fn bias_gradient(&self, bias: &Tensor) -> Tensor {
        self.torch.empty(bias.layout().clone(), bias.dtype())
    }

    /// `get_dummy_wgrad`: one tensor for all weights of a shape.
    pub(crate) fn dummy_gradient(&self, weight: &Tensor) {
        let shape = (weight.size(0), weight.size(1));
        let make = || {
            let dummy = self.torch.unwritten(weight.layout().packed(), weight.dtype());
            dummy.rename(Category::Workspace, DUMMIES);
            dummy
        };
        self.dummies.borrow_mut().entry(shape).or_insert_with(make);
    }

    /// `get_cublas_workspace`: one for all products, apart from those that torch gives cuBLAS itself; 32 MiB and 1 KiB from
    /// Hopper on, else 4 MiB.
    fn workspace(&self) {
        self.workspace.borrow_mut().get_or_insert_with(|| {
            let layout = Layout::contiguous(&[self.workspace_bytes()]);
            let workspace = self.torch.unwritten(layout, Dtype::Byte);
            workspace.rename(Category::Workspace, WORKSPACE);
            workspace
        });
    }

    fn workspace_bytes(&self) -> u64 {
        let is_recent = self.capability.is_some_and(|(major, _)| major >= 9);
        if is_recent { (32 << 20) + 1024 } else { 4 << 20 }
    }

    /// The tensor split by sequence, whole, in the buffer that Megatron keeps for it (`GlobalMemoryBuffer`,
    /// `megatron/core/utils.py`).
    pub(crate) fn gather_into_global_buffer(&self, x: &Tensor) -> Tensor {
        let whole = times_first(x, self.tp);
        self.torch.launch("all_gather_into_tensor");
        self.communicates(Collective::AllGather, whole.numel().saturating_mul(x.dtype().width()));
        let mut gathered = self.gathered.borrow_mut();
        let fits = gathered.as_ref().is_some_and(|buffer| buffer.layout().numel() >= whole.numel());
        if !fits {
            *gathered = None;
            let buffer = self.torch.unwritten(Layout::contiguous(&[whole.numel()]), x.dtype());
            buffer.rename(Category::CommunicationBuffer, GATHERED);
            *gathered = Some(buffer);
        }
        match &*gathered {
            Some(buffer) => buffer.alias(whole),
            None => unreachable!("it was just made"),
        }
    }

    /// `all_gather_into_tensor` along the first dimension, over the tensor parallel group.
    pub(crate) fn all_gather(&self, x: &Tensor) -> Tensor {
        self.torch.launch("all_gather_into_tensor");
        let whole = self.torch.empty(times_first(x, self.tp), x.dtype());
        whole.relabel(|stored| {
            if stored.category == Category::Workspace || stored.category == Category::Activation {
                (stored.category, stored.detail) = (Category::CommunicationBuffer, None);
            }
        });
        self.communicates(Collective::AllGather, whole.bytes());
        whole
    }

    /// `reduce_scatter_tensor` along the first dimension.
    pub(crate) fn reduce_scatter(&self, x: &Tensor) -> Tensor {
        self.torch.launch("reduce_scatter_tensor");
        self.communicates(Collective::ReduceScatter, x.bytes());
        let mut sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(x.sizes());
        if let Some(first) = sizes.first_mut() {
            *first /= u64::from(self.tp);
        }
        self.torch.empty(Layout::contiguous(&sizes), x.dtype())
    }

    /// `all_reduce`, in place.
    pub(crate) fn all_reduce(&self, x: &Tensor) {
        if self.tp > 1 {
            self.torch.launch("all_reduce");
            self.communicates(Collective::AllReduce, x.bytes());
        }
    }

    fn communicates(&self, what: Collective, bytes: u64) {
        self.torch.communicates(what, bytes, self.tp_peers);
    }
}

/// The sizes with the first as many times as large.
fn times_first(x: &Tensor, times: u32) -> Layout {
    let mut sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(x.sizes());
    if let Some(first) = sizes.first_mut() {
        *first = first.saturating_mul(u64::from(times));
    }
    Layout::contiguous(&sizes)
}

/// The sizes with the last replaced.
fn with_last(x: &Tensor, last: u64) -> SmallVec<[u64; 5]> {
    let mut sizes: SmallVec<[u64; 5]> = SmallVec::from_slice(x.sizes());
    if let Some(size) = sizes.last_mut() {
        *size = last;
    }
    sizes
}
