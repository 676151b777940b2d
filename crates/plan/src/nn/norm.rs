//! Norms over the last dimension, each as its modeling file writes it: where it casts decides what is saved.

use super::Builder;
use crate::parallel::tensor::Style;
use crate::torch::{Dtype, ModuleId, Tensor, ops};

/// How a norm is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NormKind {
    /// `LlamaRMSNorm` and most others: in fp32, scaled after the cast back.
    Rms,
    /// `Olmo2RMSNorm`: scaled before the cast back.
    RmsScaledInFp32,
    /// `Gemma2RMSNorm`, `Gemma3RMSNorm`: scaled by `1 + weight` in fp32.
    Gemma,
    /// `nn.LayerNorm`: one kernel, with a bias.
    Layer,
}

/// A norm.
pub(crate) struct Norm {
    module: ModuleId,
    kind: NormKind,
    weight: Tensor,
    bias: Option<Tensor>,
    /// Whether it runs over this rank's part of the sequence, as over a DTensor.
    over_part: bool,
}

impl Norm {
    pub(crate) fn new(
        build: &mut Builder,
        parent: ModuleId,
        name: &'static str,
        kind: NormKind,
        width: u64,
    ) -> Norm {
        let module = build.module(parent, name);
        let split = build.split(module);
        if let (Some(split), NormKind::Rms) = (split.filter(|split| split.style == Style::SequenceNorm), kind)
        {
            let weight = build.replicated((module, "weight"), width, Some(split.group));
            return Norm { module, kind, weight, bias: None, over_part: true };
        }
        let weight = build.parameter(module, "weight", &[width]);
        let bias = (kind == NormKind::Layer).then(|| build.parameter(module, "bias", &[width]));
        if let Some(split) = split.filter(|split| split.style == Style::GradientReduced) {
            build.sum_gradients(module, split.group);
        }
        Norm { module, kind, weight, bias, over_part: false }
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        let weight = &self.weight;
        let x = &if self.over_part { ops::from_local(x) } else { x.clone() };
        weight.torch().inside(self.module, || match self.kind {
            NormKind::Rms => {
                let (normalised, _variance) = normalised(x);
                ops::mul(weight, ops::to(&normalised, x.dtype()))
            }
            NormKind::RmsScaledInFp32 => {
                let (normalised, _variance) = normalised(x);
                ops::to(ops::mul(weight, &normalised), x.dtype())
            }
            NormKind::Gemma => gemma(x, weight),
            NormKind::Layer => ops::layer_norm(x, weight, self.bias.as_ref()),
        })
    }
}

/// `x / rms(x)` in fp32, and the variance, which stays until the norm returns.
fn normalised(x: &Tensor) -> (Tensor, Tensor) {
    let hidden = ops::to(x, Dtype::F32);
    let variance = ops::mean_last(ops::pow2(&hidden));
    (ops::mul(&hidden, ops::rsqrt(ops::add_scalar(&variance))), variance)
}

fn gemma(x: &Tensor, weight: &Tensor) -> Tensor {
    let mut output = {
        let x = ops::to(x, Dtype::F32);
        ops::mul(&x, ops::rsqrt(ops::add_scalar(ops::mean_last(ops::pow2(&x)))))
    };
    output = ops::mul(&output, ops::add_scalar(ops::to(weight, Dtype::F32)));
    ops::to(&output, x.dtype())
}
