//! `DotProductAttention` by cuDNN's fused kernels (`FusedAttnFunc` in `attention/dot_product_attention/backends.py`), which
//! Transformer Engine takes before flash attention from Hopper on (`get_attention_backend`, `utils.py`). Saves queries, keys,
//! values, output, a log-sum for each row and the state of the random generator. Values may be narrower than keys, as latent
//! attention has them: flash attention 2 is out then, the fused kernels take them where all three are tensors of their own.

use super::{Shared, a2a, p2p};
use crate::parallel::CpComm;
use crate::torch::autograd::{record, recorded};
use crate::torch::{Dtype, Layout, Tensor, ops};
use std::rc::Rc;

/// Causal attention of `[s, b, heads, width]`; `k` and `v` may have fewer heads.
pub(crate) struct DotProductAttention {
    shared: Rc<Shared>,
}

impl DotProductAttention {
    pub(crate) fn new(shared: &Rc<Shared>) -> DotProductAttention {
        DotProductAttention { shared: shared.clone() }
    }

    /// The attended states, `[s, b, heads * width of values]`.
    pub(crate) fn forward(&self, qkv: [&Tensor; 3]) -> Tensor {
        // keys and values that are parts of one tensor with strides of their own fit no layout (`get_qkv_layout`)
        let qkv = qkv.map(ops::contiguous);
        let qkv = qkv.each_ref();
        let attended = match (self.shared.cp, self.shared.cp_comm) {
            (1, _) => fused(qkv),
            (_, CpComm::AllToAll) => a2a::attention(qkv, &self.shared),
            (_, CpComm::P2p) => p2p::attention(qkv, &self.shared),
        };
        let merged = attended.size(2).saturating_mul(attended.size(3));
        ops::reshape(&attended, &[attended.size(0), attended.size(1), merged])
    }
}

/// What the forward kernel puts out: the attended states, the log-sums, the state of the random generator.
pub(super) fn kernel([q, k, v]: [&Tensor; 3]) -> [Tensor; 3] {
    let torch = q.torch();
    torch.launch("fused_attn_fwd");
    torch.multiplies(ops::attention_flops([1, 1], [q, k, v], 0), q.dtype());
    torch.reads(&[q, k, v]);
    let [length, batch, heads] = [0, 1, 2].map(|dim| q.size(dim));
    let attended = torch.empty(Layout::contiguous(&[length, batch, heads, v.size(3)]), q.dtype());
    let random = torch.empty(Layout::contiguous(&[2]), Dtype::Int64);
    let log_sums = torch.empty(Layout::contiguous(&[batch, heads, length, 1]), Dtype::F32);
    [attended, log_sums, random]
}

/// The gradients of queries, keys and values.
pub(super) fn kernel_backward([q, k, v]: [&Tensor; 3], attended: &Tensor, grad: &Tensor) -> [Tensor; 3] {
    let torch = grad.torch();
    torch.launch("fused_attn_bwd");
    torch.multiplies(ops::attention_flops([3, 2], [q, k, v], 0), grad.dtype());
    torch.reads(&[grad, q, k, v, attended]);
    [q, k, v].map(|t| torch.empty(t.layout().packed(), grad.dtype()))
}

fn fused(qkv: [&Tensor; 3]) -> Tensor {
    let [attended, log_sums, random] = kernel(qkv);
    if !recorded(attended.torch(), &qkv) {
        return attended;
    }
    let inputs = qkv.map(Tensor::save);
    let outputs = [attended.save(), log_sums.save(), random.save()];
    record(attended, &qkv, move |grad| {
        let qkv = inputs.each_ref().map(|saved| saved.unpack());
        let [attended, _log_sums, _random] = outputs.each_ref().map(|saved| saved.unpack());
        let grads = kernel_backward(qkv.each_ref(), &attended, &ops::contiguous(grad));
        grads.into_iter().map(Some).collect()
    })
}
