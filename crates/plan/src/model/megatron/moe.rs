//! `MoELayer` (`megatron/core/transformer/moe/moe_layer.py`) with the all-to-all dispatcher (`token_dispatcher.py`) and
//! `TEGroupedMLP` (`experts.py`): tokens are copied together expert by expert, sent to the ranks of their experts, sorted by
//! expert there, and the same way back.
//!
//! Routers spread the tokens evenly, so that as many rows come back as went. Tokens are permuted by plain ops
//! (`moe_permute_fusion` off).

use super::mlp::Mlp;
use super::router::{Score, TopKRouter};
use crate::config::Shape;
use crate::nn::Builder;
use crate::nn::te::{GroupedLinear, Shared, weighted_swiglu};
use crate::torch::autograd::record;
use crate::torch::network::{Collective, Peers};
use crate::torch::{Dtype, Layout, ModuleId, Tensor, ops};
use smallvec::smallvec;
use std::cell::RefCell;
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
    /// How the router scores them.
    pub(crate) score: Score,
    /// Which layers have them.
    pub(crate) layers: Vec<bool>,
}

/// A router, the experts of this rank, and those that every token goes to.
pub(super) struct MoeLayer {
    module: ModuleId,
    router: TopKRouter,
    linear_fc1: GroupedLinear,
    linear_fc2: GroupedLinear,
    experts: ModuleId,
    shared_experts: Option<Mlp>,
    shared: Rc<Shared>,
    chosen: u64,
    /// What the layer's dispatcher keeps until it dispatches again (`self.probs`, `self.routing_map`,
    /// `self.reversed_local_input_permutation_mapping`).
    dispatched: RefCell<[Option<Tensor>; 3]>,
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
        let router = TopKRouter::new(build, module, shape, (spec.number, spec.chosen, spec.score));
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
            linear_fc1,
            linear_fc2,
            experts,
            shared_experts,
            shared: shared.clone(),
            chosen: spec.chosen,
            dispatched: RefCell::default(),
        }
    }

    pub(super) fn forward(&self, hidden_states: &Tensor) -> Tensor {
        let torch = hidden_states.torch();
        torch.inside(self.module, || {
            let shared_output = self.shared_experts.as_ref().map(|mlp| mlp.forward(hidden_states));
            let [length, batch, hidden] = [0, 1, 2].map(|dim| hidden_states.size(dim));
            let tokens = length.saturating_mul(batch);
            let flat = ops::reshape(hidden_states, &[tokens, hidden]);
            let (probs, routing_map) = self.router.forward(hidden_states);
            self.keeps([Some(&probs), Some(&routing_map), None]);
            let (rows, weights, indices) = permuted(&flat, &probs, &routing_map, self.chosen);
            self.keeps([None, None, Some(&indices)]);
            let output = self.experts_of(rows, weights);
            let output = unpermuted(&output, &indices, [tokens, hidden]);
            let output = ops::reshape(&output, &[length, batch, hidden]);
            match shared_output {
                Some(shared_output) => ops::add(&output, &shared_output),
                None => output,
            }
        })
    }

    /// Attributes of the dispatcher are bound to these.
    fn keeps(&self, bound: [Option<&Tensor>; 3]) {
        for (attribute, tensor) in self.dispatched.borrow_mut().iter_mut().zip(bound) {
            if let Some(tensor) = tensor {
                *attribute = Some(tensor.detach());
            }
        }
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
    let turned_probs = make("clone", &[map.size(1), map.size(0)], probs.dtype());
    let (saved, sizes) = ([turned.save(), turned_probs.save()], probs.layout().packed());
    drop(turned_probs);
    let weights = record(make("masked_select", &[rows], probs.dtype()), &[probs], move |grad| {
        let [_mask, _turned_probs] = saved.each_ref().map(|saved| saved.unpack());
        let torch = grad.torch();
        torch.launch("zeros_like");
        let for_probs = torch.empty(sizes.clone(), grad.dtype());
        torch.launch("masked_scatter_");
        smallvec![Some(for_probs)]
    });
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
    let peers = shared.experts.peers;
    if peers.ranks == 1 {
        return x.clone();
    }
    let exchange = move |x: &Tensor| {
        x.torch().launch("all_to_all_single");
        x.torch().communicates(Collective::AllToAll, x.bytes(), peers);
        x.torch().empty(x.layout().packed(), x.dtype())
    };
    record(exchange(x), &[x], move |grad| smallvec![Some(exchange(&ops::contiguous(grad)))])
}

/// Gathered over the expert tensor parallel group; its gradient is scattered.
fn gathered(x: &Tensor, shared: &Shared) -> Tensor {
    let peers = shared.experts.tensor_peers;
    record(resized(x, Collective::AllGather, peers), &[x], move |grad| {
        smallvec![Some(resized(grad, Collective::ReduceScatter, peers))]
    })
}

/// Scattered over it; its gradient is gathered.
fn scattered(x: &Tensor, shared: &Shared) -> Tensor {
    let peers = shared.experts.tensor_peers;
    record(resized(x, Collective::ReduceScatter, peers), &[x], move |grad| {
        smallvec![Some(resized(grad, Collective::AllGather, peers))]
    })
}

fn resized(x: &Tensor, what: Collective, peers: Peers) -> Tensor {
    let torch = x.torch();
    let mut sizes = x.sizes().to_vec();
    let gathers = what == Collective::AllGather;
    torch.launch(if gathers { "all_gather_into_tensor" } else { "reduce_scatter_tensor" });
    if let Some(rows) = sizes.first_mut() {
        *rows =
            if gathers { rows.saturating_mul(peers.ranks.into()) } else { *rows / u64::from(peers.ranks) };
    }
    let output = torch.empty(Layout::contiguous(&sizes), x.dtype());
    torch.communicates(what, x.bytes().max(output.bytes()), peers);
    output
}
