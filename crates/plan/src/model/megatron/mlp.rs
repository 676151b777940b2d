//! `MLP` (`megatron/core/transformer/mlp.py`): gate and up as one column parallel matrix, behind the norm but for shared experts,
//! down as a row parallel one.

use crate::nn::Builder;
use crate::nn::te::{LayerNormLinear, Linear, Mode, Shared, swiglu};
use crate::torch::{ModuleId, Tensor};
use std::rc::Rc;

/// A gated MLP.
pub(super) struct Mlp {
    module: ModuleId,
    linear_fc1: First,
    linear_fc2: Linear,
}

/// The matrix of gate and up, with the norm before it or without.
enum First {
    Normed(LayerNormLinear),
    Plain(Linear),
}

impl Mlp {
    /// With its norm.
    pub(super) fn new(
        build: &mut Builder,
        parent: ModuleId,
        (hidden, inner): (u64, u64),
        shared: &Rc<Shared>,
    ) -> Mlp {
        let module = build.module(parent, "mlp");
        let sizes = (hidden, inner.saturating_mul(2));
        let linear_fc1 = LayerNormLinear::new(build, module, "linear_fc1", sizes, false, shared);
        Mlp::with(build, module, First::Normed(linear_fc1), (inner, hidden), shared)
    }

    /// Without.
    pub(super) fn unnormed(
        build: &mut Builder,
        parent: ModuleId,
        name: &'static str,
        (hidden, inner): (u64, u64),
        shared: &Rc<Shared>,
    ) -> Mlp {
        let module = build.module(parent, name);
        let sizes = (hidden, inner.saturating_mul(2));
        let linear_fc1 = Linear::new(build, module, "linear_fc1", sizes, false, (Mode::Column, shared));
        Mlp::with(build, module, First::Plain(linear_fc1), (inner, hidden), shared)
    }

    fn with(
        build: &mut Builder,
        module: ModuleId,
        linear_fc1: First,
        sizes: (u64, u64),
        shared: &Rc<Shared>,
    ) -> Mlp {
        let linear_fc2 = Linear::new(build, module, "linear_fc2", sizes, false, (Mode::Row, shared));
        Mlp { module, linear_fc1, linear_fc2 }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        x.torch().inside(self.module, || {
            let mut intermediate = match &self.linear_fc1 {
                First::Normed(linear) => linear.forward(x),
                First::Plain(linear) => linear.forward(x),
            };
            intermediate = swiglu(&intermediate);
            self.linear_fc2.forward(&intermediate)
        })
    }
}
