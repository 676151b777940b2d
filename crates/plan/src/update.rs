//! The update of a step: gradients brought to what the optimizer steps, clipping, the optimizer itself, and what it steps
//! brought back to the model.
//!
//! What is stepped are the parameters themselves; copies of them in another type (master weights, as Megatron's
//! `Float16OptimizerWithFloat16Params` keeps them); or copies on the host (torchao's `CPUOffloadOptimizer`).

use crate::nn::Parameter;
use crate::optim::{GradScaler, Optimizer, by_mesh, clip_grad_norm, shared_out};
use crate::options::{OptimizerImpl, OptimizerKind, Options};
use crate::parallel::megatron::{finalize_model_grads, gather_parameters, groups};
use crate::parallel::{Sharding, Stack};
use crate::torch::offload::host_gradient;
use crate::torch::tape::Role;
use crate::torch::{Dtype, Layout, Tensor, Torch};
use peakledger_core::{Category, Device};
use std::rc::Rc;

/// Smaller parameters stay with an optimizer on the device (`minimal_size`, torchao's `optim/cpu_offload.py`).
const SMALLEST_ON_HOST: u64 = 4096;

/// What is trained, and the optimizers that step it.
pub(crate) struct Update<'a> {
    torch: Rc<Torch>,
    options: &'a Options,
    /// The parameters of the model that are trained.
    trained: Vec<Parameter>,
    /// For each of them what is stepped in its place.
    stepped: Vec<Stepped>,
    /// Gradients on the host, where only the optimizer is there.
    _host_grads: Vec<Tensor>,
    /// The buffers in which gradients are summed, and those of parameters that lie side by side.
    _buffers: Vec<Tensor>,
}

/// What an optimizer steps in a parameter's place.
enum Stepped {
    /// The parameter.
    Itself,
    /// A copy of it, or of a part.
    Copy(Parameter),
    /// Nothing: other ranks step it.
    Elsewhere,
}

impl Stepped {
    fn copy(&self) -> Option<&Parameter> {
        match self {
            Stepped::Copy(copy) => Some(copy),
            Stepped::Itself | Stepped::Elsewhere => None,
        }
    }
}

impl<'a> Update<'a> {
    /// Places the copies that are stepped, which is part of loading.
    pub(crate) fn new(torch: &Rc<Torch>, options: &'a Options, trained: Vec<Parameter>) -> Update<'a> {
        if options.stack == Stack::Megatron && options.parallel.sharding == Sharding::Zero1 {
            return Update::distributed(torch, options, trained);
        }
        let mut host_grads = Vec::new();
        let stepped = trained.iter().map(|parameter| {
            if let Some(dtype) = options.master_weights.filter(|dtype| *dtype != parameter.tensor.dtype()) {
                return Stepped::Copy(copy_of(torch, parameter, dtype, Device::Gpu));
            }
            if !copies_on_host(options) || is_small(parameter) {
                return Stepped::Itself;
            }
            host_grads.push(host_gradient(
                torch,
                &parameter.tensor,
                (parameter.id, "host.grad"),
                parameter.module,
            ));
            Stepped::Copy(copy_of(torch, parameter, parameter.tensor.dtype(), Device::Cpu))
        });
        let stepped = stepped.collect();
        let buffered = options.grad_dtype.filter(|_| !options.is_deepspeed());
        let main_grad = buffered.and_then(|dtype| main_grad(torch, &trained, dtype));
        Update {
            torch: torch.clone(),
            options,
            trained,
            stepped,
            _host_grads: host_grads,
            _buffers: main_grad.into_iter().collect(),
        }
    }

    /// Megatron's distributed optimizer: parameters and gradients side by side in buffers, of which this rank steps a part
    /// (`DistributedOptimizer`, `megatron/core/optimizer/distrib_optimizer.py`).
    fn distributed(torch: &Rc<Torch>, options: &'a Options, trained: Vec<Parameter>) -> Update<'a> {
        let dtype = trained.first().map_or(Dtype::Bf16, |parameter| parameter.tensor.dtype());
        let mut buffers = Vec::new();
        let mut parts = vec![0; trained.len()];
        for group in groups(options, &trained) {
            let members = || trained.iter().zip(0..).filter(|(parameter, _)| group.has(parameter));
            let buffer = group.buffer(options, &trained);
            torch.once(|| {
                buffers.push(torch.place_named(buffer.numel, dtype, Category::Parameter, "param_data"));
                buffers.push(torch.place_named(buffer.numel, Dtype::F32, Category::Gradient, "main_grad"));
                torch.launch("copy_");
                members().for_each(|(parameter, _)| parameter.tensor.moves_into_a_buffer());
            });
            for ((_, index), part) in members().zip(buffer.part_of(group.rank)) {
                if let Some(slot) = parts.get_mut(index) {
                    *slot = part;
                }
            }
        }
        let step = |(parameter, part): (&Parameter, &u64)| match *part {
            0 => Stepped::Elsewhere,
            part => Stepped::Copy(part_of(torch, parameter, part)),
        };
        let stepped = trained.iter().zip(&parts).map(step).collect();
        Update { torch: torch.clone(), options, trained, stepped, _host_grads: Vec::new(), _buffers: buffers }
    }

    /// A backward pass has ended: gradients are copied to an optimizer on the host as they are made.
    pub(crate) fn backward_ended(&self) {
        self.torch.sends_to_host(self.bytes_on_host());
    }

    fn bytes_on_host(&self) -> u64 {
        let add = |sum: u64, copy: &Parameter| sum.saturating_add(copy.tensor.bytes());
        match copies_on_host(self.options) {
            true => self.stepped.iter().filter_map(Stepped::copy).fold(0, add),
            false => 0,
        }
    }

    /// The update phase, or that of one parameter alone where such are stepped one after the other. The optimizers are left
    /// with the state that they made.
    pub(crate) fn run(
        &self,
        alone: Option<usize>,
        scaler: Option<&GradScaler>,
        optimizers: &mut Vec<Optimizer>,
    ) {
        let is_megatron = self.options.stack == Stack::Megatron;
        if is_megatron {
            finalize_model_grads(&self.torch, self.options, &self.trained);
        }
        let shared_out = |parameters: Vec<Parameter>| shared_out(self.options.optimizer, parameters);
        let unscale = |scaler: &GradScaler| -> Vec<Tensor> {
            shared_out(self.trained.clone())
                .iter()
                .map(|(_, parameters)| scaler.unscale(parameters))
                .collect()
        };
        let _found_inf = scaler.map(unscale);
        let with_masters = self.options.master_weights.is_some();
        if with_masters {
            self.copy_gradients();
        }
        for (device, parameters) in self.by_device(alone) {
            self.torch.on(device, || {
                let groups = by_mesh(parameters);
                if self.options.clip_grad_norm && !self.options.is_deepspeed() {
                    clip_grad_norm(&groups, |spread| self.options.shards(spread));
                }
                for (kind, parameters) in groups.into_iter().flat_map(shared_out) {
                    let mut optimizer = self.optimizer(device, kind);
                    self.torch.once(|| optimizer.make_state(&parameters));
                    optimizer.step(&parameters);
                    optimizers.push(optimizer);
                }
            });
        }
        if with_masters {
            self.torch.launch("copy_");
        }
        if is_megatron {
            gather_parameters(&self.torch, self.options, &self.trained);
        }
        self.torch.fetches_from_host(self.bytes_on_host());
    }

    /// `zero_grad()` with gradients set to None.
    pub(crate) fn zero_grad(&self) {
        self.torch.launch("zero_grad");
        for leaf in self
            .trained
            .iter()
            .chain(self.stepped.iter().filter_map(Stepped::copy))
            .filter_map(|p| p.leaf.as_ref())
        {
            leaf.grad.borrow_mut().take();
            leaf.host_grad.borrow_mut().take();
        }
    }

    /// Gradients of the type that the masters have; the model's own go one by one (`_copy_model_grads_to_main_grads`).
    fn copy_gradients(&self) {
        for (parameter, master) in self.trained.iter().zip(&self.stepped) {
            let (Some(leaf), Some(master)) = (&parameter.leaf, master.copy()) else { continue };
            if leaf.is_buffered {
                continue; // a view of the buffer, in that type already
            }
            self.torch.launch("_to_copy");
            let grad = self.torch.empty(master.tensor.layout().clone(), master.tensor.dtype());
            label(&grad, Category::Gradient, parameter, "main_grad");
            if let Some(main) = &master.leaf {
                *main.grad.borrow_mut() = Some(grad);
            }
            leaf.grad.borrow_mut().take();
        }
    }

    /// What is stepped on each device, in the order in which it is.
    fn by_device(&self, alone: Option<usize>) -> Vec<(Device, Vec<Parameter>)> {
        let all_on_host =
            self.options.offload.parameters || self.options.is_deepspeed() && self.options.offload.optimizer;
        let place = |stepped: &Stepped| match stepped {
            _ if all_on_host => Device::Cpu,
            Stepped::Copy(_) if self.options.offload.optimizer => Device::Cpu,
            _ => Device::Gpu,
        };
        [Device::Gpu, Device::Cpu]
            .into_iter()
            .map(|device| {
                let here = self.trained.iter().zip(&self.stepped).enumerate();
                let here =
                    here.filter(|(i, (_, s))| place(s) == device && alone.is_none_or(|alone| alone == *i));
                let stepped = here.filter_map(|(_, (parameter, stepped))| match stepped {
                    Stepped::Itself => Some(parameter.clone()),
                    Stepped::Copy(copy) => Some(copy.clone()),
                    Stepped::Elsewhere => None,
                });
                (device, stepped.collect::<Vec<_>>())
            })
            .filter(|(_, parameters)| !parameters.is_empty())
            .collect()
    }

    fn optimizer(&self, device: Device, kind: OptimizerKind) -> Optimizer {
        let is_zero = self.options.is_deepspeed();
        let usual = match (device, kind) {
            _ if self.options.stack == Stack::Megatron => OptimizerImpl::MultiTensor,
            (Device::Gpu, _) => OptimizerImpl::Foreach,
            // torchao asks for the fused AdamW, and DeepSpeed has one of its own; torch picks no list kernels for tensors on
            // the host
            (Device::Cpu, OptimizerKind::AdamW) if !self.options.offload.parameters || is_zero => {
                OptimizerImpl::Fused
            }
            (Device::Cpu, _) => OptimizerImpl::ForLoop,
        };
        Optimizer::new(kind, self.options.optimizer_impl.unwrap_or(usual), self.options.momentum)
    }
}

/// Whether copies are stepped on the host, and not what is there already.
fn copies_on_host(options: &Options) -> bool {
    options.offload.optimizer && !options.offload.parameters && !options.is_deepspeed()
}

fn is_small(parameter: &Parameter) -> bool {
    parameter.tensor.layout().numel() < SMALLEST_ON_HOST
}

fn label(tensor: &Tensor, category: Category, parameter: &Parameter, state: &'static str) {
    tensor.relabel(|stored| {
        (stored.category, stored.detail) = (category, None);
        stored.module = parameter.module;
        stored.role = Role::Of { parameter: parameter.id, state };
    });
}

/// A copy that is stepped in a parameter's place.
fn copy_of(torch: &Rc<Torch>, parameter: &Parameter, dtype: Dtype, device: Device) -> Parameter {
    let state = if device == Device::Cpu { "host" } else { "master" };
    let role = Role::Of { parameter: parameter.id, state };
    let kind = (Category::MasterWeight, None);
    let layout = parameter.tensor.layout().clone();
    let tensor = torch.on(device, || torch.place(layout, dtype, kind, parameter.module, role));
    parameter.stepped_as(tensor)
}

/// A copy of so many numbers of a parameter, those that this rank steps.
fn part_of(torch: &Rc<Torch>, parameter: &Parameter, numbers: u64) -> Parameter {
    let role = Role::Of { parameter: parameter.id, state: "master" };
    let kind = (Category::MasterWeight, None);
    let layout = Layout::contiguous(&[numbers]);
    parameter.stepped_as(torch.place(layout, Dtype::F32, kind, parameter.module, role))
}

/// One buffer for the gradients of all parameters of another type (`main_grad`, Megatron-LM's
/// `core/distributed/param_and_grad_buffer.py`).
fn main_grad(torch: &Rc<Torch>, trained: &[Parameter], dtype: Dtype) -> Option<Tensor> {
    let buffered = trained.iter().filter(|p| p.leaf.as_ref().is_some_and(|leaf| leaf.is_buffered));
    let numbers = buffered.fold(0u64, |sum, p| sum.saturating_add(p.tensor.layout().numel()));
    (numbers > 0).then(|| torch.place_named(numbers, dtype, Category::Gradient, "main_grad"))
}
