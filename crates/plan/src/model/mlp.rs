//! The gated MLP that most families share (`LlamaMLP` and its copies).

use super::attention::gathers;
use crate::config::Activation;
use crate::nn::{Builder, Linear};
use crate::parallel::tensor::Split;
use crate::torch::{ModuleId, Tensor, ops};

/// `down(act(gate(x)) * up(x))`.
pub(crate) struct GatedMlp {
    module: ModuleId,
    act_fn: ModuleId,
    activation: Activation,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    gathers: Option<Split>,
}

impl GatedMlp {
    pub(crate) fn new(
        build: &mut Builder,
        parent: ModuleId,
        (hidden, inner): (u64, u64),
        activation: Activation,
        bias: bool,
    ) -> GatedMlp {
        GatedMlp::named(build, parent, "mlp", (hidden, inner), activation, bias)
    }

    /// The same under another name.
    pub(crate) fn named(
        build: &mut Builder,
        parent: ModuleId,
        name: &'static str,
        (hidden, inner): (u64, u64),
        activation: Activation,
        bias: bool,
    ) -> GatedMlp {
        let module = build.module(parent, name);
        GatedMlp {
            module,
            act_fn: build.module(module, "act_fn"),
            activation,
            gate_proj: Linear::new(build, module, "gate_proj", (hidden, inner), bias),
            up_proj: Linear::new(build, module, "up_proj", (hidden, inner), bias),
            down_proj: Linear::new(build, module, "down_proj", (inner, hidden), bias),
            gathers: gathers(build, module),
        }
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        let torch = x.torch();
        torch.inside(self.module, || {
            let x = &self.gathers.map_or_else(|| x.clone(), |split| split.gathered(x));
            let gate = self.gate_proj.forward(x);
            let gate = torch.inside(self.act_fn, move || activate(self.activation, gate));
            let up = self.up_proj.forward(x);
            self.down_proj.forward(ops::mul(gate, up))
        })
    }
}

/// The activation of `x`, by its ops.
pub(crate) fn activate(activation: Activation, x: Tensor) -> Tensor {
    match activation {
        Activation::Silu => ops::silu(x),
        Activation::Gelu => ops::gelu(x),
        Activation::GeluNew => ops::gelu_new(x),
        Activation::GeluFast => ops::gelu_fast(x),
        Activation::Relu => ops::relu(x),
    }
}
