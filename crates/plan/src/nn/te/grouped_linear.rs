//! `GroupedLinear` (`module/grouped_linear.py`): the matrices of all experts of a rank, each a parameter of its own, over rows that
//! lie expert by expert. Saves its input.

use super::Shared;
use crate::nn::Builder;
use crate::torch::autograd::{Grads, record, recorded};
use crate::torch::cost::product_flops;
use crate::torch::{Dtype, Layout, ModuleId, Tensor, ops};
use peakledger_core::Category;
use std::cell::RefCell;
use std::rc::Rc;

/// How many streams the products of a group are spread over, each with a workspace (`nvte_get_num_compute_streams`,
/// `common/util/multi_stream.cpp`).
const STREAMS: u64 = 4;

pub(super) const WORKSPACES: &str = "Transformer Engine's cuBLAS workspaces for experts";

/// `y = x @ weight.T`, each row by the matrix of its expert.
pub(crate) struct GroupedLinear {
    module: ModuleId,
    shared: Rc<Shared>,
    weights: Vec<Tensor>,
}

impl GroupedLinear {
    /// The matrices of this rank's experts, `[outputs, inputs]` each, which are parts of such of `whole` numbers.
    pub(crate) fn new(
        build: &mut Builder,
        parent: ModuleId,
        name: &'static str,
        (inputs, outputs, whole): (u64, u64, u64),
        shared: &Rc<Shared>,
    ) -> GroupedLinear {
        let module = build.module(parent, name);
        let (mine, all) = (shared.experts_here(), shared.experts.all);
        let weights = (0..mine).map(|expert| {
            let weight = build.parameter(module, "weight", &[outputs, inputs]);
            // those of other ranks are counted with the first here
            let others = if expert == 0 { all - mine } else { 0 };
            build.is_part_of(whole.saturating_mul(1 + others));
            build.is_an_experts();
            weight
        });
        GroupedLinear { module, shared: shared.clone(), weights: weights.collect() }
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        self.shared.torch().inside(self.module, || self.run(x))
    }

    fn run(&self, x: &Tensor) -> Tensor {
        let Some(first) = self.weights.first() else { return x.clone() };
        let (inputs, outputs) = (first.size(1), first.size(0));
        let product = product(x, &self.shared, [x.size(0), outputs], inputs);
        let all: Vec<&Tensor> = std::iter::once(x).chain(&self.weights).collect();
        if !recorded(self.shared.torch(), &all) {
            return product;
        }
        let saved = RefCell::new(Some(x.save()));
        let (shared, weights) = (self.shared.clone(), self.weights.clone());
        record(product, &all, move |grad| {
            let Some(x) = saved.take().map(|saved| saved.unpack()) else { return Grads::new() };
            let grad = ops::contiguous(grad);
            let for_x = super::grouped_linear::product(&grad, &shared, [grad.size(0), inputs], outputs);
            let torch = shared.torch();
            torch.launch("general_grouped_gemm");
            torch.multiplies(product_flops(grad.layout().numel(), inputs), x.dtype());
            torch.reads(&[&x, &grad]);
            for weight in &weights {
                torch.moves(weight.layout().numel().saturating_mul(2 * Dtype::F32.width()));
            }
            drop(x); // `clear_tensor_data`
            weights.iter().for_each(|weight| shared.dummy_gradient(weight));
            let mut grads: Grads = weights.iter().map(|_| None).collect();
            grads.insert(0, Some(for_x));
            grads
        })
    }
}

fn product(x: &Tensor, shared: &Shared, sizes: [u64; 2], inner: u64) -> Tensor {
    let torch = shared.torch();
    torch.launch("general_grouped_gemm");
    let layout = Layout::contiguous(&sizes);
    torch.multiplies(product_flops(layout.numel(), inner), x.dtype());
    torch.reads(&[x]);
    let product = torch.empty(layout, x.dtype());
    let mut workspaces = shared.grouped_workspaces.borrow_mut();
    if workspaces.is_empty() {
        let make = |_| {
            let bytes = shared.workspace_bytes();
            let workspace = torch.unwritten(Layout::contiguous(&[bytes]), Dtype::Byte);
            workspace.rename(Category::Workspace, WORKSPACES);
            workspace
        };
        *workspaces = (0..STREAMS).map(make).collect();
    }
    product
}
