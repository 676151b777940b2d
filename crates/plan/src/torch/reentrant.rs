//! Activation checkpointing as Megatron-LM does it (`CheckpointFunction`, `megatron/core/tensor_parallel/random.py`): the block
//! runs without a graph and its inputs are saved; backward runs it again, whole, with a graph of its own, and walks that
//! graph before it returns.

use super::autograd::{Edge, Leaf, backward_within, record, recorded};
use super::{ACTIVATION, Tensor};
use std::rc::Rc;

/// Runs `block` over `inputs` as such a checkpoint.
pub(crate) fn reentrant_checkpoint(
    inputs: &[&Tensor],
    block: impl Fn(&[Tensor]) -> Tensor + 'static,
) -> Tensor {
    let Some(torch) = inputs.first().map(|input| input.torch().clone()) else { unreachable!("has inputs") };
    let detached: Vec<Tensor> = inputs.iter().map(|input| input.detach()).collect();
    inputs.iter().for_each(|input| torch.note_checkpoint(input));
    let output = torch.without_grad(|| block(&detached));
    drop(detached);
    if !recorded(&torch, inputs) {
        return output;
    }
    let saved: Vec<_> = inputs.iter().map(|input| input.save()).collect();
    record(output, inputs, move |grad| {
        let torch = grad.torch().clone();
        let module = torch.module.get();
        let leaves: Vec<Rc<Leaf>> = saved.iter().map(|_| Leaf::new(None, false)).collect();
        let as_leaf = |(saved, leaf): (&super::Saved, &Rc<Leaf>)| {
            saved.unpack().with_edge(Some(Edge::leaf(leaf.clone(), module)))
        };
        let inputs: Vec<Tensor> = saved.iter().zip(&leaves).map(as_leaf).collect();
        let purpose = torch.purpose.replace(ACTIVATION);
        let grad_enabled = torch.grad_enabled.replace(true);
        let again = torch.recomputing(true);
        let output = block(&inputs);
        torch.recomputing(again);
        torch.grad_enabled.set(grad_enabled);
        torch.purpose.set(purpose);
        if let Some(root) = output.edge() {
            backward_within(root, grad.clone());
        }
        let taken = |leaf: &Rc<Leaf>| {
            let grad = leaf.grad.borrow_mut().take();
            grad.inspect(|grad| grad.relabel(|stored| (stored.category, stored.detail) = purpose))
        };
        leaves.iter().map(taken).collect()
    })
}
