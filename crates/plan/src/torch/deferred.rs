//! Gradients of weights that wait: a zero-bubble pipeline computes those of inputs first, and those of weights when there is
//! nothing else to do (`WeightGradStore` of sail-sg's zero-bubble-pipeline-parallelism and of deepseek-ai's DualPipe). Until then
//! each keeps the input and the gradient of the output that it is made of.

use super::autograd::{Leaf, accumulate};
use super::{Dtype, Tensor, Torch, ops};
use std::rc::Rc;

/// The gradient of a weight, to be computed later.
pub(crate) type Deferred = Box<dyn FnOnce(&Torch)>;

impl Torch {
    /// From now on the gradients of weights wait.
    pub(crate) fn defer(&self) {
        self.deferred.replace(Some(Vec::new()));
    }

    /// No gradients wait any more but these.
    pub(crate) fn deferred(&self) -> Vec<Deferred> {
        self.deferred.take().unwrap_or_default()
    }

    /// Computes what has waited.
    pub(crate) fn catch_up(&self, waiting: Vec<Deferred>) {
        self.without_grad(|| waiting.into_iter().for_each(|deferred| deferred(self)));
        self.comes_out();
    }

    /// The gradient of a weight that is a parameter or a copy of one, where it need not wait.
    pub(crate) fn weight_grad(
        &self,
        parameter: Option<&(Rc<Leaf>, Dtype)>,
        grad: impl FnOnce() -> Tensor + 'static,
    ) -> Option<Tensor> {
        let mut deferred = self.deferred.borrow_mut();
        let (Some(waiting), Some((leaf, dtype))) = (&mut *deferred, parameter) else {
            drop(deferred);
            return Some(grad());
        };
        let (leaf, dtype, module, part) = (leaf.clone(), *dtype, self.module.get(), self.part());
        waiting.push(Box::new(move |torch| {
            torch.comes_back_to(part);
            let grad = grad();
            torch.inside(module, || accumulate(&leaf, ops::to(&grad, dtype)));
        }));
        None
    }
}
