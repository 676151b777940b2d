//! `torch.amp.GradScaler` (`torch/amp/grad_scaler.py`): scalars of a block each, and a loss multiplied by one of them.

use super::passes;
use crate::nn::Parameter;
use crate::torch::{Dtype, Layout, Tensor, Torch, ops};
use std::cell::OnceCell;
use std::rc::Rc;

/// The scaler, which makes its two scalars when it first scales a loss.
pub(crate) struct GradScaler {
    torch: Rc<Torch>,
    /// The scale and the growth tracker.
    scalars: OnceCell<[Tensor; 2]>,
}

impl GradScaler {
    pub(crate) fn new(torch: &Rc<Torch>) -> GradScaler {
        GradScaler { torch: torch.clone(), scalars: OnceCell::new() }
    }

    fn scalar(&self, op: &'static str) -> Tensor {
        self.torch.launch(op);
        self.torch.empty(Layout::contiguous(&[]), Dtype::F32)
    }

    /// `scaler.scale(loss)`.
    pub(crate) fn scale(&self, loss: &Tensor) -> Tensor {
        let [scale, _growth] = self.scalars.get_or_init(|| [self.scalar("full"), self.scalar("full")]);
        ops::mul(loss, scale)
    }

    /// `scaler.unscale_(optimizer)`: what it leaves stays until the scaler is updated.
    pub(crate) fn unscale(&self, parameters: &[Parameter]) -> Tensor {
        // in double and back, both a block
        let double = self.scalar("_to_copy");
        let inverse = self.scalar("reciprocal");
        drop(double);
        let _inverse = self.scalar("_to_copy");
        drop(inverse);
        let found_inf = self.scalar("full");
        self.torch.launch("_amp_foreach_non_finite_check_and_unscale_");
        passes(&self.torch, parameters, 2);
        found_inf
    }
}
