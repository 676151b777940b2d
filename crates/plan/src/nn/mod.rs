//! Layers: what `torch.nn` has and the modules here are built of. Each knows its module's name, holds its parameters, and
//! runs its ops under that name.

mod conv1d;
mod embedding;
mod frozen;
mod linear;
mod linear4bit;
mod linear8bit;
mod lora;
mod norm;
mod rotary;
mod saved;
pub(crate) mod te;

pub(crate) use conv1d::Conv1d;
pub(crate) use embedding::Embedding;
pub(crate) use linear::Linear;
pub(crate) use linear4bit::Weight4bit;
pub(crate) use linear8bit::Weight8bit;
pub(crate) use lora::{Adapter, Base};
pub(crate) use norm::{Norm, NormKind};
pub(crate) use rotary::{
    Rejoin, RotaryEmbedding, apply_interleaved_rotary, apply_partial_rotary, apply_rotary, partial_width,
};

use crate::options::{Experts, Frozen, Lora, LoraTargets, Options, Quantize, refused};
use crate::parallel::Stack;
use crate::parallel::experts::ExpertParallel;
use crate::parallel::tensor::{Split, TensorParallel};
use crate::torch::autograd::{Edge, Leaf};
use crate::torch::ops::Group;
use crate::torch::tape::{ModuleName, ParameterName, Role};
use crate::torch::{Dtype, Layout, ModuleId, Tensor, Torch, ops};
use peakledger_core::{Category, Detail};
use peakledger_input::{Problem, near, quoted};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The output head: no adapter by `all-linear` (peft), and not packed (`get_keys_to_not_convert`, transformers).
pub(crate) const HEAD: &str = "lm_head";

/// A parameter of the model.
#[derive(Clone)]
pub(crate) struct Parameter {
    pub(crate) tensor: Tensor,
    /// Where its gradient goes, if it is trained.
    pub(crate) leaf: Option<Rc<Leaf>>,
    /// The type that it is kept in; its tensor has another where it is cast to be used (FSDP).
    pub(crate) kept: Dtype,
    pub(crate) module: ModuleId,
    /// Its place in [`Builder::parameters`] and in the tape's names.
    pub(crate) id: u32,
    /// How many numbers it stands for: more than it has elements where it is packed or shared out.
    elements: u64,
    /// Whether it is an expert's, whose copies lie on other ranks than those of the rest (Megatron).
    pub(crate) of_expert: bool,
    /// Which part of a pipeline stage it is in.
    pub(crate) part_of_stage: u32,
    /// Whether the first and the last stage have it both: an embedding that is tied to the head (Megatron).
    pub(crate) is_on_two_stages: bool,
    /// Among whom it is spread.
    pub(crate) spread: Spread,
    /// Whether it is a DTensor that every rank has whole.
    pub(crate) is_replicated: bool,
    /// Over whom its gradient is a sum that nobody has made: an op over it makes it first.
    pub(crate) parts_of_gradient: Option<Group>,
}

/// Among whom a parameter is spread as a DTensor. Those of one kind are stepped and clipped together
/// (`has_mixed_dtensor`, `transformers/trainer_optimizer.py`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Spread {
    /// It is a plain tensor.
    #[default]
    None,
    /// Among tensor parallel ranks.
    Tensor,
    /// Among expert parallel ranks.
    Experts,
}

impl Parameter {
    /// The part of it that is this rank's, which shares its gradient.
    pub(crate) fn shard(&self, layout: Layout) -> Parameter {
        Parameter { tensor: self.tensor.shard(layout, self.kept), ..self.clone() }
    }

    /// Whether this rank has all of it.
    pub(crate) fn is_whole(&self) -> bool {
        self.elements == self.tensor.layout().numel()
    }

    /// The same parameter as a copy that an optimizer steps in its place.
    pub(crate) fn stepped_as(&self, tensor: Tensor) -> Parameter {
        Parameter { kept: tensor.dtype(), tensor, leaf: Some(Leaf::new(None, false)), ..self.clone() }
    }

    /// The same without its gradient's place, for who waits there.
    pub(crate) fn without_leaf(&self) -> Parameter {
        Parameter { tensor: self.tensor.detach(), leaf: None, ..self.clone() }
    }

    /// The rank's part of it as a plain tensor.
    pub(crate) fn plain(self) -> Parameter {
        Parameter { spread: Spread::None, is_replicated: false, parts_of_gradient: None, ..self }
    }
}

/// How the weights of linear modules are packed.
#[derive(Clone, Copy)]
pub(crate) struct Packing {
    quantize: Quantize,
    /// The type that they are loaded in.
    loaded: Dtype,
    /// The type that they compute in.
    compute: Dtype,
}

/// How many numbers parameters stand for together.
pub(crate) fn count(parameters: &[Parameter]) -> u64 {
    parameters.iter().fold(0, |n: u64, p| n.saturating_add(p.elements))
}

/// Builds a model: names its modules and places its parameters on the device.
pub(crate) struct Builder {
    pub(crate) torch: Rc<Torch>,
    /// The part of a pipeline stage that is built.
    pub(crate) part_of_stage: u32,
    /// The type of the weights.
    pub(crate) dtype: Dtype,
    pub(crate) parameters: Vec<Parameter>,
    /// With adapters everything else is frozen.
    pub(crate) lora: Option<Lora>,
    /// How the weights of linear modules are packed, if they are.
    pub(crate) quantized: Option<Packing>,
    /// Parts that are not trained.
    frozen: Vec<Frozen>,
    /// The type in which gradients are summed, where it is not the parameter's.
    grad_dtype: Option<Dtype>,
    /// The type that parameters are gathered in, where it is another than they are kept in.
    gathered: Option<Dtype>,
    /// Whether all gradients are, of whatever type.
    all_buffered: bool,
    /// The type that weights are loaded in, where they are cast once they are there.
    loaded: Option<Dtype>,
    /// Weights as they were loaded, each with what it is cast to.
    to_cast: Vec<(Tensor, Tensor)>,
    /// How experts are run.
    pub(crate) experts: Experts,
    /// A weight that is planned only as it is.
    whole: Option<&'static str>,
    /// How modules are split among tensor parallel ranks, if they are.
    pub(crate) tensor: Option<TensorParallel>,
    /// How experts are spread over ranks, if they are.
    pub(crate) expert_parallel: Option<ExpertParallel>,
    /// A target of adapters that is split in a way that peft has no adapters for.
    not_adapted: Option<&'static str>,
    /// The names of the linear modules that an adapter may target.
    pub(crate) linear_names: BTreeSet<&'static str>,
    /// The names of the modules of which a copy may be trained.
    saved_names: BTreeSet<&'static str>,
}

impl Builder {
    pub(crate) fn new(torch: Rc<Torch>, options: &Options) -> Builder {
        Builder {
            torch,
            part_of_stage: 0,
            dtype: options.weights(),
            parameters: Vec::new(),
            lora: options.lora.clone().map(|lora| Lora {
                dtype: options.adapters(lora.dtype),
                save_dtype: lora.save_dtype.map(|dtype| options.adapters(dtype)),
                ..lora
            }),
            quantized: options.quantize.map(|quantize| Packing {
                quantize,
                loaded: options.loaded(),
                compute: options.compute(),
            }),
            frozen: options.freeze.clone(),
            grad_dtype: options.grad_dtype.filter(|_| !options.is_deepspeed()),
            gathered: options.gathered(),
            all_buffered: options.stack == Stack::Megatron,
            loaded: options.prepare_for_kbit.then(|| options.loaded()).filter(|dtype| dtype.is_half()),
            to_cast: Vec::new(),
            experts: options.experts,
            whole: None,
            tensor: None,
            expert_parallel: None,
            not_adapted: None,
            linear_names: BTreeSet::new(),
            saved_names: BTreeSet::new(),
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
        if let Some(target) = self.not_adapted {
            let cause = format!(
                "{target} is not split by its outputs alone (`colwise`), and peft 0.21 has no adapters that fit beside it"
            );
            let mend = "name the targets that are: targets=q_proj+k_proj+v_proj, or leave out --tp";
            return refused("--lora", cause, mend);
        }
        self.check_frozen()?;
        self.check_saved()?;
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
        refused("--lora", cause, mend)
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
        let tensor = self.parameter_of(module, name, sizes, self.dtype);
        if let Some(loaded) = self.loaded {
            self.to_cast.push((self.passing(module, sizes, loaded), tensor.clone()));
        }
        tensor
    }

    /// This rank's part, `sizes`, of a parameter of so many numbers.
    pub(crate) fn part(
        &mut self,
        (module, name): (ModuleId, &'static str),
        sizes: &[u64],
        elements: u64,
        spread: Spread,
    ) -> Tensor {
        let tensor = self.parameter(module, name, sizes);
        if let Some(parameter) = self.parameters.last_mut() {
            (parameter.elements, parameter.spread) = (elements, spread);
        }
        tensor
    }

    /// A DTensor that every rank has whole. Of its gradient each rank of `parts_of_gradient` has a part of the sum.
    pub(crate) fn replicated(
        &mut self,
        (module, name): (ModuleId, &'static str),
        width: u64,
        parts_of_gradient: Option<Group>,
    ) -> Tensor {
        let tensor = self.part((module, name), &[width], width, Spread::Tensor);
        if let Some(parameter) = self.parameters.last_mut() {
            (parameter.is_replicated, parameter.parts_of_gradient) = (true, parts_of_gradient);
        }
        tensor
    }

    /// Has the gradients of a module's parameters summed over a group.
    pub(crate) fn sum_gradients(&self, module: ModuleId, group: Group) {
        for parameter in self.parameters.iter().filter(|p| p.module == module) {
            if let Some(leaf) = &parameter.leaf {
                leaf.on_grad(move |leaf| {
                    if let Some(grad) = &*leaf.grad.borrow() {
                        ops::reduce_in_place(grad, group);
                    }
                });
            }
        }
    }

    /// How a module is split among tensor parallel ranks, if it is.
    pub(crate) fn split(&self, module: ModuleId) -> Option<Split> {
        self.tensor?.split(&self.torch.tape.borrow().path(module))
    }

    /// The last parameter is this rank's part of one of so many numbers.
    pub(crate) fn is_part_of(&mut self, elements: u64) {
        if let Some(parameter) = self.parameters.last_mut() {
            parameter.elements = elements;
        }
    }

    /// Another stage has the last parameter too.
    pub(crate) fn is_on_two_stages(&mut self) {
        if let Some(parameter) = self.parameters.last_mut() {
            parameter.is_on_two_stages = true;
        }
    }

    /// The last parameter is an expert's.
    pub(crate) fn is_an_experts(&mut self) {
        if let Some(parameter) = self.parameters.last_mut() {
            parameter.of_expert = true;
        }
    }

    /// The same, in a type of its own.
    pub(crate) fn parameter_of(
        &mut self,
        module: ModuleId,
        name: &'static str,
        sizes: &[u64],
        dtype: Dtype,
    ) -> Tensor {
        let trained = self.lora.is_none() && !self.is_frozen(module, name);
        let elements = sizes.iter().fold(1, |n: u64, size| n.saturating_mul(*size));
        self.place(module, name, (sizes, dtype), trained, elements)
    }

    /// A tensor that is there while the model is loaded.
    pub(crate) fn passing(&self, module: ModuleId, sizes: &[u64], dtype: Dtype) -> Tensor {
        let kind = (Category::Workspace, Some(Detail::Temporary));
        self.torch.place(Layout::contiguous(sizes), dtype, kind, module, Role::Output)
    }

    /// Casts what was loaded in another type, a weight after the other (`prepare_model_for_kbit_training`, peft).
    pub(crate) fn cast_loaded(&mut self) {
        for (loaded, weight) in self.to_cast.drain(..) {
            let next = self.torch.tape.borrow().next();
            weight.relabel(|stored| (stored.birth, stored.tracked) = (next, next));
            self.torch.launch("_to_copy");
            drop(loaded);
        }
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

    /// This rank's part, `sizes`, of a parameter of so many numbers that is trained, of a type of its own. It is spread
    /// where it is a part.
    pub(crate) fn trained_part(
        &mut self,
        (module, name): (ModuleId, &'static str),
        sizes: &[u64],
        dtype: Dtype,
        elements: u64,
    ) -> Tensor {
        let here = sizes.iter().fold(1, |n: u64, size| n.saturating_mul(*size));
        let tensor = self.place(module, name, (sizes, dtype), true, elements);
        if let Some(parameter) = self.parameters.last_mut().filter(|_| here != elements) {
            parameter.spread = Spread::Tensor;
        }
        tensor
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
        let used = self.gathered.filter(|_| dtype.is_float()).unwrap_or(dtype);
        let mut tensor = self.torch.place(Layout::contiguous(sizes), used, kind, module, role);
        let is_buffered = self.grad_dtype.is_some_and(|grads| grads != dtype || self.all_buffered);
        let leaf = trained.then(|| Leaf::new(Some(id), is_buffered));
        if let Some(leaf) = &leaf {
            tensor = tensor.with_edge(Some(Edge::leaf(leaf.clone(), module)));
        }
        let kept = dtype;
        self.parameters.push(Parameter {
            tensor: tensor.clone(),
            leaf,
            kept,
            module,
            id,
            elements,
            spread: Spread::None,
            is_replicated: false,
            parts_of_gradient: None,
            of_expert: false,
            is_on_two_stages: false,
            part_of_stage: self.part_of_stage,
        });
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
