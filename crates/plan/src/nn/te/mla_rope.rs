//! `ApplyMLARotaryEmbQ` and `ApplyMLARotaryEmbKV` (`megatron/core/fusions/fused_mla_yarn_rope_apply.py`): the kernels that turn
//! what latent attention turns by position. Queries are turned where they are; keys are put together from those of each
//! head and the turned part, which all heads share, and values are taken from beside them. Both save the tables of cosines and
//! sines.

use crate::torch::autograd::{record, record_all};
use crate::torch::{Layout, Tensor, ops};
use smallvec::smallvec;

/// Queries `[s, b, heads, width]`, the last part of each head turned in place; so is the gradient.
pub(crate) fn rope_for_q(q: &Tensor, tables: &[Tensor; 2]) -> Tensor {
    let turn = |op, x: &Tensor| {
        x.torch().launch(op);
        x.torch().reads(&[x, x]); // and writes it
    };
    turn("rotary_fwd_q_kernel", q);
    let tables = tables.each_ref().map(Tensor::save);
    record(q.detach(), &[q], move |grad| {
        let _tables = tables.each_ref().map(|table| table.unpack());
        let grad = ops::contiguous(grad);
        turn("rotary_bwd_q_kernel", &grad);
        smallvec![Some(grad)]
    })
}

/// Keys `[s, b, heads, width + turned]` and values `[s, b, heads, width of values]` of `kv`, which has `width` and that of values
/// side by side for each head, and of `k_pos_emb`, `[s, b, 1, turned]`.
pub(crate) fn rope_for_kv(
    kv: &Tensor,
    k_pos_emb: &Tensor,
    tables: &[Tensor; 2],
    value_width: u64,
) -> [Tensor; 2] {
    let [length, batch, heads, both, turned] =
        [kv.size(0), kv.size(1), kv.size(2), kv.size(3), k_pos_emb.size(3)];
    let make = move |of: &Tensor, heads: u64, width: u64| {
        of.torch().empty(Layout::contiguous(&[length, batch, heads, width]), of.dtype())
    };
    let torch = kv.torch();
    torch.launch("rotary_fwd_kv_kernel");
    torch.reads(&[kv, k_pos_emb]);
    let key = make(kv, heads, both.saturating_sub(value_width).saturating_add(turned));
    let value = make(kv, heads, value_width);
    let tables = tables.each_ref().map(Tensor::save);
    let outputs = record_all(vec![key.clone(), value.clone()], &[kv, k_pos_emb], move |grads| {
        let _tables = tables.each_ref().map(|table| table.unpack());
        let grads: Vec<Tensor> = grads.iter().flatten().map(ops::contiguous).collect();
        let Some(grad) = grads.first() else { return smallvec![None, None] };
        grad.torch().launch("rotary_bwd_kv_kernel");
        grads.iter().for_each(|grad| grad.torch().reads(&[grad]));
        let for_kv = make(grad, heads, both);
        smallvec![Some(for_kv), Some(make(grad, 1, turned))]
    });
    outputs.try_into().unwrap_or([key, value])
}
