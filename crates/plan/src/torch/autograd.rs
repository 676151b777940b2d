//! Autograd: what an op leaves for backward, and the engine that walks the graph in torch's order.
//!
//! A backward formula is a closure; what it captures is what autograd saves. The engine runs the ready node that was
//! made last (`torch/csrc/autograd/engine.cpp`, CompareNodeTaskTime), holds a node's incoming gradients until its
//! outputs were brought to the shape and type of the inputs (validate_outputs), and only then drops what it saved.

use super::tape::ModuleId;
use super::{Dtype, Layout, Saved, Tensor, Torch, ops};
use peakledger_core::Category;
use smallvec::{SmallVec, smallvec};
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// Gradients of a node's inputs, one each.
pub(crate) type Grads = SmallVec<[Option<Tensor>; 2]>;

/// A tensor as a hook keeps it.
pub(crate) trait Packed {
    /// The tensor again.
    fn unpack(&self) -> Tensor;
}

/// Hooks on what autograd saves (`torch.autograd.graph.saved_tensors_hooks`).
pub(crate) trait SavedTensorHooks {
    /// What to keep instead of the tensor.
    fn pack(&self, tensor: &Tensor) -> Saved;
}

/// A node of the graph, with what it does.
struct Node<W: ?Sized = dyn Work> {
    /// Later nodes run first; leaves, which are [`LEAF`], before all others.
    sequence: u32,
    module: ModuleId,
    waiting_for: Cell<u32>,
    /// Emptied when the node has run, so that a deep graph comes apart as backward walks it.
    next: RefCell<Targets>,
    arrived: RefCell<Arrived>,
    work: W,
}

/// The gradients of a node's outputs, as far as they have arrived; mostly there is one.
type Arrived = SmallVec<[Option<Tensor>; 1]>;

/// The number of nodes that no op made.
const LEAF: u32 = u32::MAX;

/// What a node does.
trait Work {
    /// The gradients of the outputs in, those of the inputs out.
    fn run(&self, arrived: &mut [Option<Tensor>]) -> Grads;

    /// It has run, and lets go of what it saved.
    fn done(&self) {}

    /// The leaf whose gradient it adds into, if it does.
    fn leaf(&self) -> Option<&Rc<Leaf>> {
        None
    }
}

/// Runs a backward formula, once.
struct Formula<F>(RefCell<Option<F>>);

impl<F: Fn(&Tensor) -> Grads> Work for Formula<F> {
    fn run(&self, arrived: &mut [Option<Tensor>]) -> Grads {
        match (&*self.0.borrow(), arrived) {
            (Some(formula), [Some(grad)]) => formula(grad),
            _ => Grads::new(),
        }
    }

    fn done(&self) {
        self.0.take();
    }
}

/// The same for an op with several outputs.
struct Join<F>(RefCell<Option<F>>);

impl<F: Fn(&[Option<Tensor>]) -> Grads> Work for Join<F> {
    fn run(&self, arrived: &mut [Option<Tensor>]) -> Grads {
        self.0.borrow().as_ref().map(|formula| formula(arrived)).unwrap_or_default()
    }

    fn done(&self) {
        self.0.take();
    }
}

/// Adds into a leaf's gradient.
struct Accumulate(Rc<Leaf>);

impl Work for Accumulate {
    fn run(&self, arrived: &mut [Option<Tensor>]) -> Grads {
        let Accumulate(leaf) = self;
        if let Some(grad) = arrived.first_mut().and_then(Option::take) {
            accumulate(leaf, grad);
            let hook = leaf.on_grad.borrow().clone();
            if let Some(hook) = hook {
                hook(leaf);
            }
        }
        Grads::new()
    }

    fn leaf(&self) -> Option<&Rc<Leaf>> {
        Some(&self.0)
    }
}

/// A way back into the graph: the node whose output the tensor is, and which one.
#[derive(Clone)]
pub(crate) struct Edge {
    node: Rc<Node>,
    output: u8,
}

/// An edge with the shape and type that a gradient along it must have.
struct Target {
    edge: Edge,
    layout: Layout,
    dtype: Dtype,
}

/// Where the gradients of an op's inputs go, one an input; nowhere for those that need none.
type Targets = SmallVec<[Option<Target>; 2]>;

/// A parameter as autograd sees it, or another tensor that asks for its gradient.
pub(crate) struct Leaf {
    /// Which parameter of the model, for the name of its gradient.
    pub(crate) parameter: Option<u32>,
    pub(crate) grad: RefCell<Option<Tensor>>,
    /// What of it has gone to the host.
    pub(crate) host_grad: RefCell<Option<Tensor>>,
    /// Whether it is added to a buffer for all gradients and goes (Megatron's `main_grad`).
    pub(crate) is_buffered: bool,
    /// Another type that the first gradient is cast to (`Tensor.grad_dtype`).
    pub(crate) summed_in: Cell<Option<Dtype>>,
    /// What is done when a gradient is there (`Tensor.register_post_accumulate_grad_hook`).
    on_grad: RefCell<Option<OnGrad>>,
}

/// A hook on a leaf's gradient.
type OnGrad = Rc<dyn Fn(&Leaf)>;

impl Leaf {
    /// A leaf without a gradient yet.
    pub(crate) fn new(parameter: Option<u32>, is_buffered: bool) -> Rc<Leaf> {
        let (grad, host_grad) = (RefCell::new(None), RefCell::new(None));
        let (summed_in, on_grad) = (Cell::new(None), RefCell::new(None));
        Rc::new(Leaf { parameter, grad, host_grad, is_buffered, summed_in, on_grad })
    }
}

impl Leaf {
    /// Does that whenever a gradient is there.
    pub(crate) fn on_grad(&self, act: impl Fn(&Leaf) + 'static) {
        *self.on_grad.borrow_mut() = Some(Rc::new(act));
    }
}

impl Edge {
    /// The edge to a parameter.
    pub(crate) fn leaf(leaf: Rc<Leaf>, module: ModuleId) -> Edge {
        Edge { node: Rc::new(Node::new(LEAF, module, Targets::new(), 1, Accumulate(leaf))), output: 0 }
    }

    /// The parameter that it leads to, where nothing but casts and views are between, and the type that its gradient has.
    pub(crate) fn parameter(&self, dtype: Dtype) -> Option<(Rc<Leaf>, Dtype)> {
        if let Some(leaf) = self.node.work.leaf() {
            return leaf.parameter.is_some().then(|| (leaf.clone(), dtype));
        }
        match self.node.next.borrow().as_slice() {
            [Some(target)] => target.edge.parameter(target.dtype),
            _ => None,
        }
    }

    /// Whether it leads to a parameter.
    pub(crate) fn is_leaf(&self) -> bool {
        self.node.is_leaf()
    }
}

impl<W> Node<W> {
    fn new(sequence: u32, module: ModuleId, next: Targets, outputs: usize, work: W) -> Node<W> {
        let mut arrived = Arrived::new();
        arrived.resize_with(outputs, || None);
        let (next, arrived) = (RefCell::new(next), RefCell::new(arrived));
        Node { sequence, module, waiting_for: Cell::new(0), next, arrived, work }
    }
}

impl Node {
    fn is_leaf(&self) -> bool {
        self.sequence == LEAF
    }
}

/// Whether an op over these inputs becomes part of the graph.
pub(crate) fn recorded(torch: &Torch, inputs: &[&Tensor]) -> bool {
    torch.grad_enabled.get() && !torch.halted.get() && inputs.iter().any(|input| input.requires_grad())
}

/// Makes `output` the differentiable output of an op over `inputs` with that backward formula, where the op becomes part
/// of the graph.
pub(crate) fn record(
    output: Tensor,
    inputs: &[&Tensor],
    formula: impl Fn(&Tensor) -> Grads + 'static,
) -> Tensor {
    if !recorded(output.torch(), inputs) {
        return output;
    }
    let node = node(output.torch(), inputs, 1, Formula(RefCell::new(Some(formula))));
    output.with_edge(Some(Edge { node, output: 0 }))
}

/// The same for an op with several outputs.
pub(crate) fn record_all(
    outputs: Vec<Tensor>,
    inputs: &[&Tensor],
    formula: impl Fn(&[Option<Tensor>]) -> Grads + 'static,
) -> Vec<Tensor> {
    let Some(torch) = outputs.first().map(|output| output.torch().clone()) else { return outputs };
    if !recorded(&torch, inputs) {
        return outputs;
    }
    let node = node(&torch, inputs, outputs.len(), Join(RefCell::new(Some(formula))));
    let numbered = (0u8..).zip(outputs);
    numbered.map(|(output, tensor)| tensor.with_edge(Some(Edge { node: node.clone(), output }))).collect()
}

/// The tensor, with something to do when its gradient is there (`Tensor.register_hook`).
pub(crate) fn on_gradient(tensor: Tensor, act: impl Fn() + 'static) -> Tensor {
    record(tensor.detach(), &[&tensor], move |grad| {
        act();
        smallvec![Some(grad.clone())]
    })
}

/// The tensors that go into a module, with something to do when the gradients of all that ask for one are there.
pub(crate) fn on_gradients<const N: usize>(tensors: [Tensor; N], act: impl Fn() + 'static) -> [Tensor; N] {
    let asking: Vec<&Tensor> = tensors.iter().filter(|tensor| tensor.requires_grad()).collect();
    let passed = asking.iter().map(|tensor| tensor.detach()).collect();
    let mut passed = record_all(passed, &asking, move |grads| {
        act();
        grads.iter().cloned().collect()
    })
    .into_iter();
    tensors.map(|tensor| match tensor.requires_grad() {
        true => passed.next().unwrap_or(tensor),
        false => tensor,
    })
}

fn node(torch: &Torch, inputs: &[&Tensor], outputs: usize, work: impl Work + 'static) -> Rc<Node> {
    let target = |input: &&Tensor| {
        let edge = input.edge()?.clone();
        Some(Target { edge, layout: input.layout().clone(), dtype: input.dtype() })
    };
    let next = inputs.iter().map(target).collect();
    torch.note_node();
    Rc::new(Node::new(torch.next_sequence(), torch.module.get(), next, outputs, work))
}

/// `loss.backward()`.
pub(crate) fn backward(loss: &Tensor) {
    let Some(root) = loss.edge() else { return };
    walk(loss.torch(), root, || ops::ones_like(loss));
}

/// `torch.autograd.backward(edge, grad)`: from a node whose output may be gone.
pub(crate) fn backward_from(root: &Edge, grad: &Tensor) {
    walk(grad.torch(), root, || grad.clone());
}

/// Walks the graph from a node, with the gradient of its output.
fn walk(torch: &Rc<Torch>, root: &Edge, grad: impl FnOnce() -> Tensor) {
    torch.in_backward.set(true);
    torch.without_grad(|| {
        let first = grad(); // held by the caller until backward returns
        walk_from(root, first.clone(), |node| torch.comes_back_to_node(node));
    });
    torch.comes_out();
    torch.in_backward.set(false);
}

/// The same from within a backward formula, whose part of the run it stays in.
pub(crate) fn backward_within(root: &Edge, grad: Tensor) {
    walk_from(root, grad, |_| ());
}

fn walk_from(root: &Edge, grad: Tensor, comes_to: impl Fn(u32)) {
    let torch = grad.torch().clone();
    count_dependencies(&root.node);
    let mut ready = BinaryHeap::new();
    deliver(root, grad);
    ready.push(Ready(root.node.clone()));
    while let Some(Ready(node)) = ready.pop() {
        if !node.is_leaf() {
            comes_to(node.sequence);
            torch.goes_back_to(node.module);
        }
        torch.said_of(node.module, || {
            torch.note_running(node.sequence);
            run(&node, &mut ready);
        });
    }
}

/// A node that may run; later nodes are greater.
struct Ready(Rc<Node>);

impl Ord for Ready {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.sequence.cmp(&other.0.sequence)
    }
}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ready {
    fn eq(&self, other: &Self) -> bool {
        self.0.sequence == other.0.sequence
    }
}

impl Eq for Ready {}

/// Counts how many gradients each node waits for.
fn count_dependencies(root: &Rc<Node>) {
    let mut stack = vec![root.clone()];
    while let Some(node) = stack.pop() {
        for target in node.next.borrow().iter().flatten() {
            let next = &target.edge.node;
            let waiting_for = next.waiting_for.get();
            if waiting_for == 0 {
                stack.push(next.clone());
            }
            next.waiting_for.set(waiting_for + 1);
        }
    }
}

/// Hands a gradient to the node it belongs to. Where one is there already the two are added out of place: torch adds in
/// place only for plain tensors, and what its tracker follows is not plain.
fn deliver(edge: &Edge, grad: Tensor) {
    let mut arrived = edge.node.arrived.borrow_mut();
    let Some(slot) = arrived.get_mut(usize::from(edge.output)) else { return };
    *slot = Some(match slot.take() {
        None => grad,
        // of DTensors one of which is a part of the whole (a tied embedding) the other is made one too
        Some(there) if there.sizes() != grad.sizes() => ops::add(&there, ops::part_like(&grad, &there)),
        Some(there) => ops::add(there, grad),
    });
}

fn run(node: &Node, ready: &mut BinaryHeap<Ready>) {
    let next = node.next.take();
    let mut grads = {
        let mut arrived = node.arrived.borrow_mut();
        let mut grads = node.work.run(&mut arrived);
        grads.iter_mut().zip(&next).for_each(|(grad, target)| fit(grad, target.as_ref()));
        grads.truncate(next.len());
        arrived.iter_mut().for_each(|grad| *grad = None);
        grads
    };
    node.work.done();
    let mut grads = grads.drain(..);
    for target in next.iter() {
        let grad = grads.next().flatten();
        let Some(Target { edge, .. }) = target else { continue };
        if let Some(grad) = grad {
            deliver(edge, grad);
        }
        let next = &edge.node;
        next.waiting_for.set(next.waiting_for.get().saturating_sub(1));
        if next.waiting_for.get() == 0 {
            ready.push(Ready(next.clone()));
        }
    }
}

/// Sums a gradient down to the shape of what it belongs to and casts it to its type; one that belongs to nothing goes.
fn fit(grad: &mut Option<Tensor>, target: Option<&Target>) {
    let Some(target) = target else { return *grad = None };
    if let Some(wide) = grad.take_if(|grad| !grad.layout().has_sizes_of(&target.layout)) {
        *grad = Some(ops::sum_to(wide, target.layout.sizes()));
    }
    if let Some(other) = grad.take_if(|grad| grad.dtype() != target.dtype) {
        *grad = Some(ops::to_copy(other, target.dtype));
    }
}

/// A leaf takes the first gradient as it is and adds later ones into it
/// (`torch/csrc/autograd/functions/accumulate_grad.h`).
pub(crate) fn accumulate(leaf: &Rc<Leaf>, grad: Tensor) {
    if leaf.is_buffered {
        grad.torch().launch("add_.Tensor");
        return;
    }
    let mut held = leaf.grad.borrow_mut();
    match &*held {
        Some(held) => {
            held.torch().launch("add_.Tensor");
            held.torch().reads(&[held, &grad, held]); // and writes what it holds
        }
        None => {
            let grad = match leaf.summed_in.get() {
                Some(dtype) if dtype != grad.dtype() => ops::to_copy(grad, dtype),
                _ => grad,
            };
            grad.relabel(|stored| {
                stored.category = Category::Gradient;
                stored.detail = None;
                if let Some(parameter) = leaf.parameter {
                    stored.role = super::tape::Role::Of { parameter, state: "grad" };
                }
            });
            *held = Some(grad);
        }
    }
}
