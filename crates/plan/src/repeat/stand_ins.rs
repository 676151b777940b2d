//! The optimizer steps all parameters, and so it has to find the gradients of those layers too that are not run: tensors
//! stand for them from the last backward on, and what stands for a gradient is let go of when the gradient would be.

use super::layers::Repeat;
use crate::nn::Parameter;
use crate::torch::tape::Role;
use crate::torch::trail::Part;
use crate::torch::{Tensor, Torch};
use peakledger_core::Category;
use std::rc::Rc;

impl Repeat {
    /// Gives the trained parameters of layers that are not run what those have that these are written down from.
    pub(crate) fn stand_in(&self, torch: &Rc<Torch>, trained: &[Parameter]) {
        torch.comes_to(Part::StandIns);
        let of = |id: u32| trained.binary_search_by_key(&id, |p| p.id).ok().and_then(|at| trained.get(at));
        for parameter in trained {
            let Some(like) = self.written_from(parameter.id).and_then(of) else { continue };
            let (Some(leaf), Some(like)) = (&parameter.leaf, &like.leaf) else { continue };
            let stands_for = |grad: &Tensor| {
                let role = Role::Of { parameter: parameter.id, state: "grad" };
                let layout = grad.layout().clone();
                let place =
                    || torch.place(layout, grad.dtype(), (Category::Gradient, None), parameter.module, role);
                torch.on(grad.device(), place)
            };
            for (slot, like) in [(&leaf.grad, &like.grad), (&leaf.host_grad, &like.host_grad)] {
                *slot.borrow_mut() = like.borrow().as_ref().map(stands_for);
            }
        }
        torch.comes_to(Part::Between);
    }
}
