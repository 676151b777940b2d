//! LoRA as `peft/tuners/lora/layer.py` runs it: the frozen matrix, and beside it two narrow ones over the input in their own
//! type.

use super::{Builder, HEAD};
use crate::options::{Lora, LoraTargets};
use crate::parallel::tensor::{Split, Style};
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
    /// How the module beside it is split among tensor parallel ranks, if it is.
    split: Option<Split>,
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
        sizes: (u64, u64),
    ) -> Option<Adapter> {
        Adapter::new(build, module, name, sizes, None)
    }

    /// The adapter of a linear module that is split among tensor parallel ranks. Beside a colwise one `lora_B` is split as
    /// it is (`add_lora_tp_hooks_dtensor`, `peft/tuners/lora/model.py`); beside any other peft 0.21 makes adapters of the
    /// width of a rank's part, which then meet tensors of the whole width.
    pub(crate) fn split(
        build: &mut Builder,
        module: ModuleId,
        name: &'static str,
        sizes: (u64, u64),
        split: Split,
    ) -> Option<Adapter> {
        let adapter = Adapter::new(build, module, name, sizes, Some(split))?;
        if split.style != Style::Colwise {
            build.not_adapted = Some(name);
        }
        Some(adapter)
    }

    fn new(
        build: &mut Builder,
        module: ModuleId,
        name: &'static str,
        (inputs, outputs): (u64, u64),
        split: Option<Split>,
    ) -> Option<Adapter> {
        let lora = build.lora.clone()?;
        build.linear_names.insert(name);
        if !lora.targets(name) {
            return None;
        }
        let dropout_module = build.module(module, "lora_dropout");
        let modules = ["lora_A", "lora_B"].map(|name| build.module(module, name));
        let [a, b] = modules;
        let part = split.map_or((inputs, outputs), |split| split.sizes((inputs, outputs)));
        let whole = [lora.rank.saturating_mul(inputs), outputs.saturating_mul(lora.rank)];
        let lora_a = build.trained_part((a, "weight"), &[lora.rank, part.0], lora.dtype, whole[0]);
        let lora_b = build.trained_part((b, "weight"), &[part.1, lora.rank], lora.dtype, whole[1]);
        let dtype = lora_a.dtype();
        Some(Adapter { module, dropout_module, modules, lora_a, lora_b, dropout: lora.dropout, dtype, split })
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
            let wide = torch.inside(b, move || match self.split {
                None => ops::linear(narrow, &self.lora_b, None),
                Some(split) => {
                    ops::linear(ops::all_reduced_gradient(&narrow, split.group), &self.lora_b, None)
                }
            });
            let mut scaled = ops::mul_scalar(wide);
            if is_packed && casts {
                scaled = ops::to(scaled, dtype);
            }
            let result = ops::add(result, scaled);
            if is_packed { result } else { ops::to(&result, dtype) }
        })
    }
}
