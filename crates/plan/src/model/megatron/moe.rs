//! `MoELayer` (`megatron/core/transformer/moe/moe_layer.py`) with the all-to-all dispatcher (`token_dispatcher.py`) and
//! `TEGroupedMLP` (`experts.py`): tokens are copied together expert by expert, sent to the ranks of their experts, sorted by
//! expert there, and the same way back.
//!
//! Routers spread the tokens evenly, so that as many rows come back as went. Tokens are permuted by plain ops
//! (`moe_permute_fusion` off), routers compute in the type of the model (`moe_router_dtype` unset) and have no auxiliary loss.

use super::mlp::Mlp;
use crate::config::Shape;
use crate::nn::Builder;
use crate::nn::te::{GroupedLinear, Shared, weighted_swiglu};
use crate::torch::autograd::record;
use crate::torch::cost::{Collective, product_flops};
use crate::torch::{Dtype, Layout, ModuleId, Tensor, ops};
use smallvec::smallvec;
use std::rc::Rc;

/// The experts of a family, to Megatron.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Experts {
    /// Of a layer, on all ranks.
    pub(crate) number: u64,
    /// To how many of them a token goes (`--moe-router-topk`).
    pub(crate) chosen: u64,
    /// The width inside one (`--moe-ffn-hidden-size`).
    pub(crate) width: u64,
    /// The width of those that every token goes to (`--moe-shared-expert-intermediate-size`).
    pub(crate) shared_width: Option<u64>,
    /// Which layers have them.
    pub(crate) layers: Vec<bool>,
}

/// A router, the experts of this rank, and those that every token goes to.
pub(super) struct MoeLayer {
    module: ModuleId,
    router: ModuleId,
    gate: Tensor,
    linear_fc1: GroupedLinear,
    linear_fc2: GroupedLinear,
    experts: ModuleId,
    shared_experts: Option<Mlp>,
    shared: Rc<Shared>,
    chosen: u64,
}

impl MoeLayer {
    pub(super) fn new(
        build: &mut Builder,
        parent: ModuleId,
        shape: &Shape,
        spec: &Experts,
        shared: &Rc<Shared>,
    ) -> MoeLayer {
        let module = build.module(parent, "mlp");
        let router = build.module(module, "router");
        let gate = build.parameter(router, "weight", &[spec.number, shape.hidden_size]);
        let experts = build.module(module, "experts");
        let (hidden, mine) = (shape.hidden_size, spec.width / u64::from(shared.experts.etp));
        let both = (hidden, mine.saturating_mul(2), spec.width.saturating_mul(hidden).saturating_mul(2));
        let linear_fc1 = GroupedLinear::new(build, experts, "linear_fc1", both, shared);
        let down = (mine, hidden, spec.width.saturating_mul(hidden));
        let linear_fc2 = GroupedLinear::new(build, experts, "linear_fc2", down, shared);
        let shared_experts = spec
            .shared_width
            .map(|width| Mlp::unnormed(build, module, "shared_experts", (hidden, width), shared));
        MoeLayer {
            module,
            router,
            gate,
            linear_fc1,
            linear_fc2,
            experts,
            shared_experts,
            shared: shared.clone(),
            chosen: spec.chosen,
        }
    }

    pub(super) fn forward(&self, hidden_states: &Tensor) -> Tensor {
        let torch = hidden_states.torch();
        torch.inside(self.module, || {
            let shared_output = self.shared_experts.as_ref().map(|mlp| mlp.forward(hidden_states));
            let [length, batch, hidden] = [0, 1, 2].map(|dim| hidden_states.size(dim));
            let tokens = length.saturating_mul(batch);
            let flat = ops::reshape(hidden_states, &[tokens, hidden]);
            // the dispatcher's attributes keep these until the next layer runs
            let (probs, routing_map) = torch.inside(self.router, || self.route(hidden_states));
            let (rows, weights, indices) = permuted(&flat, &probs, &routing_map, self.chosen);
            let output = self.experts_of(rows, weights);
            let output = unpermuted(&output, &indices, [tokens, hidden]);
            let output = ops::reshape(&output, &[length, batch, hidden]);
            match shared_output {
                Some(shared_output) => ops::add(&output, &shared_output),
                None => output,
            }
        })
    }

    /// To the ranks of the experts, through them, and back.
    fn experts_of(&self, rows: Tensor, weights: Tensor) -> Tensor {
        let (shared, sorts) = (&self.shared, self.shared.experts_here() > 1);
        let sent = |x: Tensor| exchanged(&x, shared);
        let (mut rows, mut weights) = (sent(rows), sent(weights));
        if shared.experts.etp > 1 {
            (rows, weights) = (gathered(&rows, shared), gathered(&weights, shared));
        }
        if sorts {
            (rows, weights) = (rearranged("cat", &rows), rearranged("cat", &weights));
        }
        let mut output = rows.torch().clone().inside(self.experts, || {
            let intermediate = self.linear_fc1.forward(&rows);
            let intermediate = weighted_swiglu(&intermediate, &weights);
            self.linear_fc2.forward(&intermediate)
        });
        if sorts {
            output = rearranged("cat", &output);
        }
        if shared.experts.etp > 1 {
            output = scattered(&output, shared);
        }
        exchanged(&output, shared)
    }

    /// `TopKRouter`: of each token the weights of its experts and which they are, spread out over all experts.
    fn route(&self, hidden_states: &Tensor) -> (Tensor, Tensor) {
        let logits = gating(hidden_states, &self.gate);
        let tokens = logits.layout().numel() / logits.size(-1).max(1);
        let logits = ops::reshape(&logits, &[tokens, self.gate.size(0)]);
        let (scores, places) = ops::topk(&logits, self.chosen);
        let probs = ops::to(ops::softmax(&ops::to(&scores, Dtype::F32)), logits.dtype());
        let torch = logits.torch();
        let spread = |op, dtype| {
            torch.launch(op);
            torch.empty(logits.layout().packed(), dtype)
        };
        let zeros = spread("zeros_like", logits.dtype());
        let saved = places.save();
        let layout = probs.layout().packed();
        let routing_probs = record(spread("scatter.src", logits.dtype()), &[&probs], move |grad| {
            let _places = saved.unpack();
            grad.torch().launch("gather");
            smallvec![Some(grad.torch().empty(layout.clone(), grad.dtype()))]
        });
        drop(zeros);
        let zeros = spread("zeros_like", logits.dtype());
        let numbers = spread("_to_copy", Dtype::Int32);
        drop(zeros);
        let ones = spread("scatter.value", Dtype::Int32);
        drop(numbers);
        let routing_map = spread("_to_copy", Dtype::Bool);
        drop(ones);
        (routing_probs, routing_map)
    }
}

/// `RouterGatingLinearFunction` (`moe_utils.py`). Saves its input.
fn gating(x: &Tensor, weight: &Tensor) -> Tensor {
    let product = |op, first: &Tensor, sizes: &[u64], inner: u64| {
        let torch = first.torch();
        torch.launch(op);
        let layout = Layout::contiguous(sizes);
        torch.multiplies(product_flops(layout.numel(), inner), first.dtype());
        torch.reads(&[first]);
        torch.empty(layout, first.dtype())
    };
    let logits = product("general_gemm", x, &[x.size(0), x.size(1), weight.size(0)], weight.size(1));
    let (saved, weight) = (x.save(), weight.clone());
    record(logits, &[x, &weight.clone()], move |grad| {
        let x = saved.unpack();
        let rows = grad.layout().numel() / grad.size(-1).max(1);
        let for_x = product("general_gemm", grad, x.sizes(), weight.size(0));
        smallvec![Some(for_x), Some(product("general_gemm", grad, weight.sizes(), rows))]
    })
}

/// `permute`: rows expert by expert, their weights, and where they came from.
fn permuted(tokens: &Tensor, probs: &Tensor, map: &Tensor, chosen: u64) -> (Tensor, Tensor, Tensor) {
    let torch = tokens.torch();
    let rows = tokens.size(0).saturating_mul(chosen);
    let make = |op, sizes: &[u64], dtype| {
        torch.launch(op);
        torch.empty(Layout::contiguous(sizes), dtype)
    };
    let turned = make("clone", &[map.size(1), map.size(0)], Dtype::Bool);
    let positions = make("arange", &[tokens.size(0)], Dtype::Int64);
    let indices = make("masked_select", &[rows], Dtype::Int64);
    drop(positions);
    let (mask, sizes) = (turned.save(), probs.layout().packed());
    let turned_probs = make("clone", &[map.size(1), map.size(0)], probs.dtype());
    let weights = record(make("masked_select", &[rows], probs.dtype()), &[probs], move |grad| {
        let _mask = mask.unpack();
        grad.torch().launch("masked_scatter");
        smallvec![Some(grad.torch().empty(sizes.clone(), grad.dtype()))]
    });
    drop(turned_probs);
    let (saved, sizes) = (indices.save(), tokens.layout().packed());
    let picked = make("index_select", &[rows, tokens.size(1)], tokens.dtype());
    torch.reads(&[tokens]);
    let permuted = record(picked, &[tokens], move |grad| {
        let _indices = saved.unpack();
        grad.torch().launch("index_add");
        grad.torch().reads(&[grad]);
        smallvec![Some(grad.torch().empty(sizes.clone(), grad.dtype()))]
    });
    (permuted, weights, indices)
}

/// `unpermute`: each token the sum of its rows.
fn unpermuted(rows: &Tensor, indices: &Tensor, sizes: [u64; 2]) -> Tensor {
    let torch = rows.torch();
    torch.launch("zeros");
    let sums = torch.empty(Layout::contiguous(&sizes), rows.dtype());
    torch.launch("scatter_add_");
    torch.reads(&[rows]);
    let (saved, layout) = (indices.save(), rows.layout().packed());
    record(sums, &[rows], move |grad| {
        let _indices = saved.unpack();
        grad.torch().launch("gather");
        grad.torch().reads(&[grad]);
        smallvec![Some(grad.torch().empty(layout.clone(), grad.dtype()))]
    })
}

/// The same rows in another order.
fn rearranged(op: &'static str, x: &Tensor) -> Tensor {
    let copy = move |x: &Tensor| {
        x.torch().launch(op);
        x.torch().reads(&[x]);
        x.torch().empty(x.layout().packed(), x.dtype())
    };
    record(copy(x), &[x], move |grad| smallvec![Some(copy(grad))])
}

/// `_AllToAll` over the expert parallel group (`tensor_parallel/mappings.py`): nothing where it is one rank.
fn exchanged(x: &Tensor, shared: &Shared) -> Tensor {
    let ranks = shared.experts.ep;
    if ranks == 1 {
        return x.clone();
    }
    let exchange = move |x: &Tensor| {
        x.torch().launch("all_to_all_single");
        x.torch().communicates(Collective::AllToAll, x.bytes(), ranks);
        x.torch().empty(x.layout().packed(), x.dtype())
    };
    record(exchange(x), &[x], move |grad| smallvec![Some(exchange(&ops::contiguous(grad)))])
}

/// Gathered over the expert tensor parallel group; its gradient is scattered.
fn gathered(x: &Tensor, shared: &Shared) -> Tensor {
    let ranks = shared.experts.etp;
    record(resized(x, Collective::AllGather, ranks), &[x], move |grad| {
        smallvec![Some(resized(grad, Collective::ReduceScatter, ranks))]
    })
}

/// Scattered over it; its gradient is gathered.
fn scattered(x: &Tensor, shared: &Shared) -> Tensor {
    let ranks = shared.experts.etp;
    record(resized(x, Collective::ReduceScatter, ranks), &[x], move |grad| {
        smallvec![Some(resized(grad, Collective::AllGather, ranks))]
    })
}

fn resized(x: &Tensor, what: Collective, ranks: u32) -> Tensor {
    let torch = x.torch();
    let mut sizes = x.sizes().to_vec();
    let gathers = what == Collective::AllGather;
    torch.launch(if gathers { "all_gather_into_tensor" } else { "reduce_scatter_tensor" });
    if let Some(rows) = sizes.first_mut() {
        *rows = if gathers { rows.saturating_mul(ranks.into()) } else { *rows / u64::from(ranks) };
    }
    let output = torch.empty(Layout::contiguous(&sizes), x.dtype());
    torch.communicates(what, x.bytes().max(output.bytes()), ranks);
    output
}
