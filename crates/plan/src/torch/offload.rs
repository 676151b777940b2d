//! Offloading: memory that waits on the host while the device does not need it.
//!
//! What decoder layers save for backward leaves by a pair of hooks on saved tensors, as `torch.autograd.graph.save_on_cpu`
//! has them; the parameters of a layer are there only while it runs, as FSDP2's `CPUOffloadPolicy` has it. Copies run beside
//! the computation, so many layers ahead of it as [`Options::offload_prefetch`](crate::options::Options) says.

use super::autograd::{Leaf, Packed, SavedTensorHooks, on_gradient};
use super::hooks::{Inner, ModuleHooks};
use super::tape::{CopiedFor, Role, StorageId};
use super::{ACTIVATION, Dtype, Layout, ModuleId, Saved, Stream, Tensor, Torch};
use peakledger_core::{Category, Detail, Device};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::{Rc, Weak};

/// Tensors of fewer bytes stay: a copy costs more than it frees (`min_offload_size`, trl's `activation_offloading.py`).
const SMALLEST: u64 = 1024;

/// The layers of a forward pass whose saved tensors go to the host.
pub(crate) struct ActivationOffload {
    ahead: usize,
    /// What each layer saved, while its backward is still to come.
    layers: RefCell<Vec<Vec<Weak<Offloaded>>>>,
}

impl ActivationOffload {
    pub(crate) fn new(ahead: usize) -> Rc<ActivationOffload> {
        Rc::new(ActivationOffload { ahead, layers: RefCell::new(Vec::new()) })
    }

    /// Runs the next layer; whether what it saves goes is the caller's word. That has left the device when `ahead` more layers
    /// have run, and is back when backward is still `ahead` layers behind it; with none ahead, when the first op asks for it.
    pub(crate) fn around(
        self: &Rc<Self>,
        hidden_states: &Tensor,
        goes: bool,
        layer: impl FnOnce(&Tensor) -> Tensor,
    ) -> Tensor {
        let index = self.layers.borrow().len();
        self.layers.borrow_mut().push(Vec::new());
        let output = match goes {
            true => hidden_states.torch().with_hooks(self.clone(), || layer(hidden_states)),
            false => layer(hidden_states),
        };
        if self.ahead == 0 {
            return output;
        }
        if let Some(left) = index.checked_sub(self.ahead) {
            self.saved_by(left..left + 1).iter().for_each(|saved| saved.leave());
        }
        let this = self.clone();
        on_gradient(output, move || {
            let first = index.saturating_sub(this.ahead);
            this.saved_by(first..index + 1).iter().rev().for_each(|saved| drop(saved.on_device()));
        })
    }

    fn saved_by(&self, layers: Range<usize>) -> Vec<Rc<Offloaded>> {
        let all = self.layers.borrow();
        all.get(layers).unwrap_or_default().iter().flatten().filter_map(Weak::upgrade).collect()
    }
}

impl SavedTensorHooks for ActivationOffload {
    fn pack(&self, tensor: &Tensor) -> Saved {
        if tensor.is_a(Category::Parameter) || tensor.bytes() < SMALLEST {
            return Saved::Plain(tensor.kept());
        }
        let mut layers = self.layers.borrow_mut();
        let Some(layer) = layers.last_mut() else { return Saved::Plain(tensor.kept()) };
        // what several ops save is copied once
        let same = layer.iter().filter_map(Weak::upgrade).find(|saved| saved.is(tensor));
        let saved = same.unwrap_or_else(|| {
            let saved = Rc::new(Offloaded::new(tensor, self.ahead > 0));
            layer.push(Rc::downgrade(&saved));
            saved
        });
        Saved::Packed(Box::new(Waiting(saved)))
    }
}

/// A saved tensor on the host, and on the device before and after it waits.
struct Offloaded {
    source: (StorageId, Layout),
    module: ModuleId,
    host: Tensor,
    device: RefCell<Option<Tensor>>,
    comes_back_on: Stream,
}

impl Offloaded {
    /// Copies the tensor. A copy that may take its time runs `beside` the computation, on a stream of its own, and the tensor
    /// stays so long.
    fn new(tensor: &Tensor, beside: bool) -> Offloaded {
        let torch = tensor.torch();
        let module = torch.module.get();
        torch.launch("copy_");
        let source = tensor.storage_id();
        let host = torch.on(Device::Cpu, || torch.copy_of(source, tensor.layout(), tensor.dtype(), module));
        torch.sends_to_host(tensor.bytes());
        let kept = tensor.kept();
        let device = RefCell::new(beside.then_some(kept));
        let comes_back_on = if beside { Stream::Copy } else { Stream::Compute };
        Offloaded { source: (source, tensor.layout().clone()), module, host, device, comes_back_on }
    }

    fn is(&self, tensor: &Tensor) -> bool {
        self.source.0 == tensor.storage_id() && self.source.1 == *tensor.layout()
    }

    /// It need not be on the device any more.
    fn leave(&self) {
        self.device.borrow_mut().take();
    }

    /// The tensor on the device, where it is copied back first if it has left.
    fn on_device(&self) -> Tensor {
        let mut device = self.device.borrow_mut();
        let tensor = device.get_or_insert_with(|| {
            let (torch, host) = (self.host.torch(), &self.host);
            torch.launch("_to_copy");
            torch.fetches_from_host(host.bytes());
            let copy = || torch.copy_of(self.source.0, host.layout(), host.dtype(), self.module);
            torch.on_stream(self.comes_back_on, copy)
        });
        tensor.clone()
    }
}

struct Waiting(Rc<Offloaded>);

impl Packed for Waiting {
    fn unpack(&self) -> Tensor {
        self.0.on_device()
    }
}

impl Torch {
    /// A packed copy of an activation.
    fn copy_of(
        self: &Rc<Self>,
        source: StorageId,
        layout: &Layout,
        dtype: Dtype,
        module: ModuleId,
    ) -> Tensor {
        let copy = self.empty(layout.packed(), dtype);
        copy.relabel(|stored| {
            (stored.category, stored.detail) = (ACTIVATION.0, Some(Detail::SavedTensor));
            stored.module = module;
            stored.copied_for = Some(CopiedFor::Offload(source));
        });
        copy
    }
}

/// A parameter that lies on the host.
pub(crate) struct HostParameter {
    /// In which decoder layer, if in one.
    pub(crate) layer: Option<usize>,
    pub(crate) tensor: Tensor,
    pub(crate) leaf: Option<Rc<Leaf>>,
    pub(crate) module: ModuleId,
    pub(crate) id: u32,
}

/// Parameters on the host: those of a decoder layer are copied to the device for its forward and again for its backward,
/// all others for the whole of both, as FSDP2 keeps its root. Gradients leave when the layer's backward has ended.
pub(crate) struct ParameterOffload {
    torch: Rc<Torch>,
    ahead: usize,
    parameters: Vec<HostParameter>,
    /// The copies on the device, by layer; those outside the layers are the last.
    copies: RefCell<Vec<Vec<Tensor>>>,
    layers: usize,
}

impl ParameterOffload {
    pub(crate) fn new(
        torch: Rc<Torch>,
        ahead: usize,
        parameters: Vec<HostParameter>,
    ) -> Rc<ParameterOffload> {
        for parameter in &parameters {
            parameter.tensor.relabel(|stored| stored.device = Device::Cpu);
        }
        let all = parameters.iter().filter_map(|p| p.layer).max().map_or(0, |last| last + 1);
        let layers = all - torch.left_out().len();
        let copies = RefCell::new(std::iter::repeat_with(Vec::new).take(layers + 1).collect());
        Rc::new(ParameterOffload { torch, ahead, parameters, copies, layers })
    }

    /// Those of a layer that is run, or those outside.
    fn of(&self, layer: usize) -> impl Iterator<Item = &HostParameter> {
        let of = if layer == self.layers { None } else { Some(self.torch.in_model(layer)) };
        self.parameters.iter().filter(move |parameter| parameter.layer == of)
    }

    fn fetch(&self, layers: Range<usize>) {
        // what is prefetched are layers; the others are asked for alone
        let end = if layers.start == self.layers { layers.end } else { layers.end.min(self.layers) };
        for layer in layers.start..end {
            let mut copies = self.copies.borrow_mut();
            let Some(copies) = copies.get_mut(layer).filter(|copies| copies.is_empty()) else { continue };
            self.torch.launch("_to_copy");
            copies.extend(self.of(layer).map(|parameter| self.copy(parameter)));
        }
    }

    fn copy(&self, parameter: &HostParameter) -> Tensor {
        let host = &parameter.tensor;
        let copy = self.torch.empty(host.layout().clone(), host.dtype());
        copy.relabel(|stored| {
            (stored.category, stored.detail) = (Category::Parameter, None);
            stored.module = parameter.module;
            stored.role = Role::Of { parameter: parameter.id, state: "" };
            stored.copied_for = Some(CopiedFor::Offload(host.storage_id()));
        });
        self.torch.fetches_from_host(host.bytes());
        copy
    }

    fn release(&self, layers: Range<usize>) {
        let mut copies = self.copies.borrow_mut();
        copies.get_mut(layers).into_iter().flatten().for_each(Vec::clear);
    }

    /// The layers' backward has ended: their parameters go, and their gradients with them.
    fn send_back(&self, layers: Range<usize>) {
        self.release(layers.clone());
        for parameter in layers.flat_map(|layer| self.of(layer)) {
            let Some(leaf) = &parameter.leaf else { continue };
            let Some(grad) = leaf.grad.borrow_mut().take() else { continue };
            self.torch.sends_to_host(grad.bytes());
            let mut host = leaf.host_grad.borrow_mut();
            match &*host {
                Some(_) => self.torch.launch("add_.Tensor"),
                None => {
                    let copy = host_gradient(&self.torch, &grad, (parameter.id, "grad"), parameter.module);
                    copy.relabel(|stored| stored.copied_for = Some(CopiedFor::Offload(grad.storage_id())));
                    *host = Some(copy);
                }
            }
        }
    }
}

impl ModuleHooks for ParameterOffload {
    /// What lies outside the layers comes for a forward pass.
    fn enter(&self) {
        self.fetch(self.layers..self.layers + 1);
    }

    fn around(self: Rc<Self>, layers: Range<usize>, hidden_states: &Tensor, run: Inner<'_>) -> Tensor {
        let width = layers.len();
        let (this, here) = (self.clone(), layers.clone());
        let input = on_gradient(hidden_states.clone(), move || this.send_back(here.clone()));
        self.fetch(layers.start..layers.end + width * self.ahead);
        let output = run(&input);
        self.release(layers.clone());
        on_gradient(output, move || {
            self.fetch(layers.clone()); // the layer itself first, then what comes after it in backward
            self.fetch(layers.start.saturating_sub(width * self.ahead)..layers.start);
        })
    }

    /// Everything goes when backward has ended.
    fn end(&self) {
        self.send_back(0..self.layers + 1);
    }
}

/// A gradient's place on the host.
pub(crate) fn host_gradient(
    torch: &Rc<Torch>,
    like: &Tensor,
    (parameter, state): (u32, &'static str),
    module: ModuleId,
) -> Tensor {
    torch.launch("_to_copy");
    let host = torch.on(Device::Cpu, || torch.empty(like.layout().packed(), like.dtype()));
    host.relabel(|stored| {
        (stored.category, stored.detail) = (Category::Gradient, None);
        stored.module = module;
        stored.role = Role::Of { parameter, state };
    });
    host
}
