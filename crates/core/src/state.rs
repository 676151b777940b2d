//! A state: a named piece of training memory, its kind, its size, and where it sits at which moments.

use crate::{Bytes, Moment};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which of the seven kinds of training memory a state is (the seed's `VALID_CATEGORIES`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the field's own words
pub enum Category {
    Parameter,
    MasterWeight,
    Gradient,
    OptimizerState,
    Activation,
    Workspace,
    CommunicationBuffer,
}

impl Category {
    /// All of them, in the order in which tables list them: what persists first.
    pub const ALL: [Category; 7] = [
        Category::Parameter,
        Category::MasterWeight,
        Category::Gradient,
        Category::OptimizerState,
        Category::Activation,
        Category::Workspace,
        Category::CommunicationBuffer,
    ];

    /// The name in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Category::Parameter => "parameter",
            Category::MasterWeight => "master_weight",
            Category::Gradient => "gradient",
            Category::OptimizerState => "optimizer_state",
            Category::Activation => "activation",
            Category::Workspace => "workspace",
            Category::CommunicationBuffer => "communication_buffer",
        }
    }

    /// The category of that name.
    pub fn named(name: &str) -> Option<Category> {
        Some(match name {
            "parameter" => Category::Parameter,
            "master_weight" => Category::MasterWeight,
            "gradient" => Category::Gradient,
            "optimizer_state" => Category::OptimizerState,
            "activation" => Category::Activation,
            "workspace" => Category::Workspace,
            "communication_buffer" => Category::CommunicationBuffer,
            _ => return None,
        })
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A finer word than the category, where one is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Detail {
    /// A parameter that is not trained: a rotary table, running statistics.
    Buffer,
    /// The batch: ids, labels, masks.
    Input,
    /// An activation that autograd keeps for backward.
    SavedTensor,
    /// What the model returned: logits.
    Output,
    /// Workspace that an op allocates and the next ones consume.
    Temporary,
    /// Workspace inside a kernel, which the dispatcher does not see.
    Kernel,
}

impl Detail {
    /// All of them.
    pub const ALL: [Detail; 6] = [
        Detail::Buffer,
        Detail::Input,
        Detail::SavedTensor,
        Detail::Output,
        Detail::Temporary,
        Detail::Kernel,
    ];

    /// The name in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Detail::Buffer => "buffer",
            Detail::Input => "input",
            Detail::SavedTensor => "saved_tensor",
            Detail::Output => "output",
            Detail::Temporary => "temporary",
            Detail::Kernel => "kernel",
        }
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Where bytes sit. Only `gpu` bytes form the peak; `cpu` bytes are summed apart from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Device {
    Gpu,
    Cpu,
}

impl Device {
    /// The name in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Device::Gpu => "gpu",
            Device::Cpu => "cpu",
        }
    }

    /// The device of that name.
    pub fn named(name: &str) -> Option<Device> {
        match name {
            "gpu" => Some(Device::Gpu),
            "cpu" => Some(Device::Cpu),
            _ => None,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One closed interval of moments on one device: both ends count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Where.
    pub device: Device,
    /// The first moment there.
    pub start: Moment,
    /// The last moment there.
    pub end: Moment,
}

impl Residency {
    /// Whether the state is there at that moment.
    pub fn covers(&self, moment: Moment) -> bool {
        self.start <= moment && moment <= self.end
    }
}

/// A named piece of memory of one category.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Its name, unique in the ledger.
    pub name: Box<str>,
    /// Its kind.
    pub category: Category,
    /// The finer word.
    pub detail: Option<Detail>,
    /// Its size.
    pub bytes: Bytes,
    /// Whether it lives from step to step.
    pub persistent: bool,
    /// Where it sits, one or more; on one device they do not overlap.
    pub residencies: Residencies,
}

/// The residencies of a state. Nearly always one, so one needs no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Residencies {
    /// The usual case.
    One(Residency),
    /// An offloaded state: gpu, cpu, gpu again.
    Many(Vec<Residency>),
}

impl Residencies {
    /// As a slice.
    pub fn as_slice(&self) -> &[Residency] {
        match self {
            Residencies::One(one) => std::slice::from_ref(one),
            Residencies::Many(many) => many,
        }
    }
}

impl State {
    /// Whether it sits on that device at that moment.
    pub fn resident(&self, device: Device, moment: Moment) -> bool {
        self.residencies.as_slice().iter().any(|r| r.device == device && r.covers(moment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for category in Category::ALL {
            assert_eq!(Category::named(category.as_str()), Some(category));
        }
        for device in [Device::Gpu, Device::Cpu] {
            assert_eq!(Device::named(device.as_str()), Some(device));
        }
        assert_eq!((Category::named("weights"), Device::named("tpu")), (None, None));
    }
}
