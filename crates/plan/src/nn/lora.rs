//! LoRA as `peft/tuners/lora/layer.py` runs it: the frozen matrix, and beside it two narrow ones over the input in their own
//! type.

use super::{Builder, HEAD};
use crate::options::{Lora, LoraTargets};
use crate::torch::tape::CopiedFor;
use crate::torch::{Dtype, ModuleId, Tensor, ops};

/// The two matrices of a module, `[r, in]` and `[out, r]`.
pub(crate) struct Adapter {
    module: ModuleId,
    dropout_module: ModuleId,
    modules: [ModuleId; 2],
    lora_a: Tensor,
    lora_b: Tensor,
    dropout: f64,
    dtype: Dtype,
}

/// How the weight of the module beside an adapter is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Plain,
    In4bit,
    In8bit,
}

impl Lora {
    /// Whether a module of that name gets an adapter; the output head does not by `all-linear`.
    fn targets(&self, name: &str) -> bool {
        match &self.targets {
            LoraTargets::AllLinear => name != HEAD,
            LoraTargets::Named(names) => names.iter().any(|target| target == name),
        }
    }
}

impl Adapter {
    /// The adapter of a linear module, where it is a target.
    pub(crate) fn of(
        build: &mut Builder,
        module: ModuleId,
        name: &'static str,
        (inputs, outputs): (u64, u64),
    ) -> Option<Adapter> {
        let lora = build.lora.clone()?;
        build.linear_names.insert(name);
        if !lora.targets(name) {
            return None;
        }
        let dropout_module = build.module(module, "lora_dropout");
        let modules = ["lora_A", "lora_B"].map(|name| build.module(module, name));
        let [a, b] = modules;
        let lora_a = build.trained(a, "weight", &[lora.rank, inputs], lora.dtype);
        let lora_b = build.trained(b, "weight", &[outputs, lora.rank], lora.dtype);
        let dtype = lora_a.dtype();
        Some(Adapter { module, dropout_module, modules, lora_a, lora_b, dropout: lora.dropout, dtype })
    }

    /// What the frozen module put out and the adapter's part, in the type of the former. Where the module's weight is
    /// packed peft leaves types to autocast where that runs, and of 4 bits copies first what it put out
    /// (`peft/tuners/lora/bnb.py`).
    pub(crate) fn add_to(&self, result: Tensor, x: &Tensor, base: Base) -> Tensor {
        let torch = result.torch().clone();
        torch.inside(self.module, || {
            let dtype = result.dtype();
            let is_packed = base != Base::Plain;
            let result = if base == Base::In4bit { ops::clone(result) } else { result };
            let casts = !is_packed || torch.autocast_dtype().is_none();
            let x = if casts && x.dtype() != self.dtype {
                let copy = ops::to_copy(x, self.dtype);
                copy.relabel(|stored| stored.copied_for = Some(CopiedFor::Adapter));
                copy
            } else {
                x.clone()
            };
            let [a, b] = self.modules;
            let dropped = torch.inside(self.dropout_module, || ops::dropout(&x, self.dropout));
            let narrow = torch.inside(a, move || ops::linear(dropped, &self.lora_a, None));
            let wide = torch.inside(b, move || ops::linear(narrow, &self.lora_b, None));
            let mut scaled = ops::mul_scalar(wide);
            if is_packed && casts {
                scaled = ops::to(scaled, dtype);
            }
            let result = ops::add(result, scaled);
            if is_packed { result } else { ops::to(&result, dtype) }
        })
    }
}
