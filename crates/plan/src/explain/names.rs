//! What storages and modules are called, with the layer or whatever layer it is.

use super::study::Study;
use crate::torch::tape::{ModuleId, ModuleName, Role, Stored};
use peakledger_core::Detail;

/// Whether a name says the layer.
#[derive(Clone, Copy)]
pub(super) enum Layer {
    Said,
    Any,
}

impl Study<'_> {
    /// What a storage is called.
    pub(super) fn name(&self, stored: &Stored, layer: Layer) -> String {
        let op = || self.tape.ran.get(stored.birth.index()).map_or("", |ran| ran.op);
        let of_module = |what: &str| match self.path(stored.module, layer) {
            path if path.is_empty() => format!("step: {what}"),
            path => format!("{path}: {what}"),
        };
        match stored.role {
            Role::Input { name, micro_batch } => match layer {
                Layer::Said => format!("{name}.{micro_batch}"),
                Layer::Any => name.to_owned(),
            },
            Role::Named { name } => of_module(name),
            Role::Output if stored.detail == Some(Detail::Kernel) => of_module(&format!("{} (kernel)", op())),
            Role::Output => of_module(op()),
            Role::Of { parameter, state } => {
                let Some(parameter) = self.tape.parameters.get(parameter as usize) else {
                    return String::new();
                };
                let name = format!("{}.{}", self.path(parameter.module, layer), parameter.name);
                if state.is_empty() { name } else { format!("{name}.{state}") }
            }
        }
    }

    /// A module's full name.
    pub(super) fn path(&self, id: ModuleId, layer: Layer) -> String {
        match layer {
            Layer::Said => self.tape.path(id),
            Layer::Any => self.any_layer(id),
        }
    }

    /// The same with `*` for each layer.
    fn any_layer(&self, id: ModuleId) -> String {
        let Some(module) = self.tape.modules.get(id.0 as usize) else { return String::new() };
        let parent = module.parent.map(|parent| self.any_layer(parent)).unwrap_or_default();
        let name = match module.name {
            ModuleName::Word(word) => word,
            ModuleName::Index(_) => "*",
        };
        if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
    }
}
