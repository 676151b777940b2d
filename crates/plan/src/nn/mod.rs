//! Layers: what `torch.nn` has and the modules here are built of. Each knows its module's name, holds its parameters, and
//! runs its ops under that name.

mod conv1d;
mod embedding;
mod linear;
mod norm;
mod rotary;

pub(crate) use conv1d::Conv1d;
pub(crate) use embedding::Embedding;
pub(crate) use linear::Linear;
pub(crate) use norm::{Norm, NormKind};
pub(crate) use rotary::{Rejoin, RotaryEmbedding, apply_partial_rotary, apply_rotary, partial_width};

use crate::torch::autograd::{Edge, Leaf};
use crate::torch::tape::{ModuleName, ParameterName, Role};
use crate::torch::{Dtype, Layout, ModuleId, Tensor, Torch};
use peakledger_core::{Category, Detail};
use std::cell::RefCell;
use std::rc::Rc;

/// A parameter of the model.
pub(crate) struct Parameter {
    pub(crate) tensor: Tensor,
    pub(crate) leaf: Rc<Leaf>,
    pub(crate) module: ModuleId,
    /// Its place in [`Builder::parameters`] and in the tape's names.
    pub(crate) id: u32,
}

/// Builds a model: names its modules and places its parameters on the device.
pub(crate) struct Builder {
    pub(crate) torch: Rc<Torch>,
    /// The type of the weights.
    pub(crate) dtype: Dtype,
    pub(crate) parameters: Vec<Parameter>,
}

impl Builder {
    pub(crate) fn new(torch: Rc<Torch>, dtype: Dtype) -> Builder {
        Builder { torch, dtype, parameters: Vec::new() }
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

    /// A trained parameter.
    pub(crate) fn parameter(&mut self, module: ModuleId, name: &'static str, sizes: &[u64]) -> Tensor {
        let id = self.name(module, name);
        let role = Role::Of { parameter: id, state: "" };
        let kind = (Category::Parameter, None);
        let tensor = self.torch.place(Layout::contiguous(sizes), self.dtype, kind, module, role);
        let leaf = Rc::new(Leaf { parameter: id, grad: RefCell::new(None) });
        let tensor = tensor.with_edge(Some(Edge::leaf(leaf.clone(), module)));
        self.parameters.push(Parameter { tensor: tensor.clone(), leaf, module, id });
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
