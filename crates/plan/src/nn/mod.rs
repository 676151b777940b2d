//! Layers: what `torch.nn` has and the modules here are built of. Each knows its module's name, holds its parameters, and
//! runs its ops under that name.

mod conv1d;
mod embedding;
mod linear;
mod linear4bit;
mod lora;
mod norm;
mod rotary;

pub(crate) use conv1d::Conv1d;
pub(crate) use embedding::Embedding;
pub(crate) use linear::Linear;
pub(crate) use linear4bit::Weight4bit;
pub(crate) use lora::Adapter;
pub(crate) use norm::{Norm, NormKind};
pub(crate) use rotary::{Rejoin, RotaryEmbedding, apply_partial_rotary, apply_rotary, partial_width};

use crate::options::{Lora, LoraTargets, Options, Quantize};
use crate::torch::autograd::{Edge, Leaf};
use crate::torch::tape::{ModuleName, ParameterName, Role};
use crate::torch::{Dtype, Layout, ModuleId, Tensor, Torch};
use peakledger_core::{Category, Detail};
use peakledger_input::{Problem, near, quoted};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// The output head: no adapter by `all-linear` (peft), and not packed (`get_keys_to_not_convert`, transformers).
const HEAD: &str = "lm_head";

/// A parameter of the model.
pub(crate) struct Parameter {
    pub(crate) tensor: Tensor,
    /// Where its gradient goes, if it is trained.
    pub(crate) leaf: Option<Rc<Leaf>>,
    pub(crate) module: ModuleId,
    /// Its place in [`Builder::parameters`] and in the tape's names.
    pub(crate) id: u32,
    /// How many numbers it stands for: more than it has elements where it is packed.
    elements: u64,
}

/// How many numbers parameters stand for together.
pub(crate) fn count(parameters: &[Parameter]) -> u64 {
    parameters.iter().fold(0, |n: u64, p| n.saturating_add(p.elements))
}

/// Builds a model: names its modules and places its parameters on the device.
pub(crate) struct Builder {
    pub(crate) torch: Rc<Torch>,
    /// The type of the weights.
    pub(crate) dtype: Dtype,
    pub(crate) parameters: Vec<Parameter>,
    /// With adapters everything else is frozen.
    pub(crate) lora: Option<Lora>,
    /// How the weights of linear modules are packed, and the type these compute in.
    pub(crate) quantized: Option<(Quantize, Dtype)>,
    /// A weight that is planned only as it is.
    whole: Option<&'static str>,
    /// The names of the linear modules that an adapter may target.
    pub(crate) linear_names: BTreeSet<&'static str>,
}

impl Builder {
    pub(crate) fn new(torch: Rc<Torch>, options: &Options) -> Builder {
        Builder {
            torch,
            dtype: options.weights(),
            parameters: Vec::new(),
            lora: options.lora.clone(),
            quantized: options.quantize.map(|quantize| (quantize, options.compute())),
            whole: None,
            linear_names: BTreeSet::new(),
        }
    }

    /// Says that a weight is planned only as it is.
    pub(crate) fn stays_whole(&mut self, what: &'static str) {
        self.whole = Some(what);
    }

    /// Refuses what this model cannot be built with.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        if let (Some(what), Some(_)) = (self.whole, self.quantized) {
            let problem = Problem::in_option("--quantize", format!("{what} is not planned quantized yet"));
            return Err(problem.mend("leave it out for this model"));
        }
        self.check_targets()
    }

    /// Refuses a target that no module of the model has the name of.
    fn check_targets(&self) -> Result<(), Problem> {
        let Some(Lora { targets: LoraTargets::Named(targets), .. }) = &self.lora else { return Ok(()) };
        let Some(unknown) = targets.iter().find(|target| !self.linear_names.contains(target.as_str())) else {
            return Ok(());
        };
        let names: Vec<&str> = self.linear_names.iter().copied().collect();
        let cause = format!("the model has no linear module named {}", quoted(unknown));
        let mend = match near(unknown, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`? It has {}", names.join(", ")),
            None => format!("it has {}", names.join(", ")),
        };
        Err(Problem::in_option("--lora", cause).mend(mend))
    }

    /// The model itself.
    pub(crate) fn root(&self) -> ModuleId {
        ModuleId(0)
    }

    /// A module inside another.
    pub(crate) fn module(&self, parent: ModuleId, name: &'static str) -> ModuleId {
        self.torch.module(parent, ModuleName::Word(name))
    }

    /// A module in a list of modules.
    pub(crate) fn indexed(&self, parent: ModuleId, index: u32) -> ModuleId {
        self.torch.module(parent, ModuleName::Index(index))
    }

    /// A parameter in the type of the weights: trained, unless adapters are.
    pub(crate) fn parameter(&mut self, module: ModuleId, name: &'static str, sizes: &[u64]) -> Tensor {
        let (dtype, trained) = (self.dtype, self.lora.is_none());
        let elements = sizes.iter().fold(1, |n: u64, size| n.saturating_mul(*size));
        self.place(module, name, (sizes, dtype), trained, elements)
    }

    /// A frozen parameter of that many bytes that stands for that many numbers.
    pub(crate) fn packed(
        &mut self,
        module: ModuleId,
        name: &'static str,
        bytes: u64,
        elements: u64,
    ) -> Tensor {
        self.place(module, name, (&[bytes, 1], Dtype::Byte), false, elements)
    }

    /// A parameter that is trained, of a type of its own.
    pub(crate) fn trained(
        &mut self,
        module: ModuleId,
        name: &'static str,
        sizes: &[u64],
        dtype: Dtype,
    ) -> Tensor {
        let elements = sizes.iter().fold(1, |n: u64, size| n.saturating_mul(*size));
        self.place(module, name, (sizes, dtype), true, elements)
    }

    fn place(
        &mut self,
        module: ModuleId,
        name: &'static str,
        (sizes, dtype): (&[u64], Dtype),
        trained: bool,
        elements: u64,
    ) -> Tensor {
        let id = self.name(module, name);
        let role = Role::Of { parameter: id, state: "" };
        let kind = (Category::Parameter, None);
        let mut tensor = self.torch.place(Layout::contiguous(sizes), dtype, kind, module, role);
        let leaf = trained.then(|| Rc::new(Leaf { parameter: Some(id), grad: RefCell::new(None) }));
        if let Some(leaf) = &leaf {
            tensor = tensor.with_edge(Some(Edge::leaf(leaf.clone(), module)));
        }
        self.parameters.push(Parameter { tensor: tensor.clone(), leaf, module, id, elements });
        tensor
    }

    /// A tensor of the model that is not trained.
    pub(crate) fn buffer(&self, module: ModuleId, name: &'static str, sizes: &[u64], dtype: Dtype) -> Tensor {
        let role = Role::Of { parameter: self.name(module, name), state: "" };
        let kind = (Category::Parameter, Some(Detail::Buffer));
        self.torch.place(Layout::contiguous(sizes), dtype, kind, module, role)
    }

    fn name(&self, module: ModuleId, name: &'static str) -> u32 {
        let mut tape = self.torch.tape.borrow_mut();
        let id = u32::try_from(tape.parameters.len()).unwrap_or(u32::MAX);
        tape.parameters.push(ParameterName { module, name });
        id
    }
}
