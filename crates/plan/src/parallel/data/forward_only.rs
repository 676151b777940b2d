//! A model that only runs forward while ranks share out its parameters: whole ones come before they are used and go
//! afterwards, and there is nothing that gradients or an optimizer would need.
//!
//! FSDP2 has the same hooks as in training. Under ZeRO 3 it is `DeepSpeedZeRoOffload` alone
//! (`deepspeed/runtime/zero/parameter_offload.py`, 0.19): a rank has a part of every parameter, each by itself.

use super::fetching::{Fetching, part};
use super::fsdp::Fsdp;
use super::tracing::{forward, trace};
use crate::nn::Parameter;
use crate::options::{Options, Recompute};
use crate::parallel::Sharding;
use crate::torch::hooks::ModuleHooks;
use crate::torch::tape::Role;
use crate::torch::{Layout, ModuleId, Tensor, Torch};
use peakledger_core::{Category, Device};
use peakledger_input::Problem;
use std::cell::RefCell;
use std::rc::Rc;

/// How such a model is shared out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Way {
    /// Whether it is trained too: what it keeps is the training step's, and ZeRO 3 goes by the trace of that.
    pub(crate) is_trained: bool,
    /// Whether it runs while its own training waits for backward: what that keeps whole is there already.
    pub(crate) within_training: bool,
    /// Whether FSDP2 gathers all of it together, not layer by layer.
    pub(crate) in_one_group: bool,
    /// Whether FSDP2 shares out again at the end what it gathers with the model itself, which training keeps to backward.
    pub(crate) reshards_root: bool,
}

/// What brings whole parameters.
pub(crate) enum ForwardOnly {
    Fsdp(Rc<Fsdp>),
    Zero3(Rc<ZeroOffload>),
}

impl ForwardOnly {
    /// Shares out a model, where its ranks share out parameters.
    ///
    /// # Errors
    /// Names what FSDP2 does not gather together.
    pub(crate) fn new(
        torch: &Rc<Torch>,
        options: &Options,
        parameters: Vec<Parameter>,
        way: Way,
    ) -> Result<Option<ForwardOnly>, Problem> {
        let sharding = options.parallel.sharding;
        Ok(match sharding {
            _ if sharding.is_fsdp() => {
                Some(ForwardOnly::Fsdp(Fsdp::forward_only(torch, options, parameters, way)?))
            }
            Sharding::Zero3 => {
                Some(ForwardOnly::Zero3(Rc::new(ZeroOffload::new(torch, options, parameters, way)?)))
            }
            _ => None,
        })
    }

    /// Its hooks.
    pub(crate) fn hooks(&self) -> Rc<dyn ModuleHooks> {
        match self {
            ForwardOnly::Fsdp(fsdp) => fsdp.clone(),
            ForwardOnly::Zero3(zero) => zero.clone(),
        }
    }

    /// All parameters whole at once, as long as they are held (`GatheredParameters`, `deepspeed/runtime/zero/partition_parameters.py`).
    /// FSDP2 has nothing like it.
    pub(crate) fn gathered(&self) -> Vec<Tensor> {
        match self {
            ForwardOnly::Fsdp(_) => Vec::new(),
            ForwardOnly::Zero3(zero) => zero.fetching.borrow().gathered(),
        }
    }

    /// What is still whole goes: when that is, is for who lays passes one behind the other to say.
    pub(crate) fn end(&self) {
        match self {
            ForwardOnly::Fsdp(fsdp) => fsdp.let_go(),
            ForwardOnly::Zero3(zero) => zero.fetching.borrow().reset(),
        }
    }
}

/// What fetches parameters of a model without an optimizer (`DeepSpeedZeRoOffload`).
pub(crate) struct ZeroOffload {
    torch: Rc<Torch>,
    fetching: RefCell<Fetching>,
    is_trained: bool,
    /// This rank's part of each parameter (`ds_tensor`).
    _parts: Vec<Tensor>,
}

impl ZeroOffload {
    fn new(
        torch: &Rc<Torch>,
        options: &Options,
        parameters: Vec<Parameter>,
        way: Way,
    ) -> Result<ZeroOffload, Problem> {
        let mesh = options.mesh()?;
        let part = |parameter: &Parameter| {
            let numbers = part(parameter.tensor.layout().numel(), mesh.replicas());
            let role = Role::Of { parameter: parameter.id, state: "part" };
            let kind = (Category::Parameter, None);
            torch.place(
                Layout::contiguous(&[numbers]),
                parameter.tensor.dtype(),
                kind,
                parameter.module,
                role,
            )
        };
        // of a model that is trained its step has them, side by side
        let parts = parameters.iter().filter(|_| !way.is_trained).map(part).collect();
        let zero = options.parallel.data.zero;
        let fetching = Fetching::new(torch, parameters, mesh.replica_peers(), zero, Device::Gpu);
        Ok(ZeroOffload {
            torch: torch.clone(),
            fetching: RefCell::new(fetching),
            is_trained: way.is_trained,
            _parts: parts,
        })
    }
}

impl ModuleHooks for ZeroOffload {
    fn asks_for_modules(&self) -> bool {
        true
    }

    /// A model that is trained too is fetched for by the trace of a whole micro-batch, of which this is the beginning.
    fn traced(&self, called: Vec<ModuleId>, returned: Vec<ModuleId>) {
        let mut fetching = self.fetching.borrow_mut();
        let has_parameters = |module| fetching.has_parameters(module);
        let trace = match self.is_trained {
            true => trace(&self.torch, Recompute::None, has_parameters, (called, returned)),
            false => forward(called),
        };
        fetching.follow(trace);
    }

    fn enter(&self) {
        self.fetching.borrow().fetch(ModuleId(0));
    }

    fn called(&self, module: ModuleId) {
        self.fetching.borrow().fetch(module);
    }

    fn returned(&self, module: ModuleId) {
        self.fetching.borrow().release(module);
    }

    fn whole(&self, weight: &Tensor) -> Option<Tensor> {
        self.fetching.borrow().reached_for(weight)
    }
}
