//! Why a storage is there, in a sentence, and where that was read.

use super::names::Layer;
use super::study::Study;
use crate::nn::te;
use crate::parallel::context;
use crate::parallel::data::{GATHERED, buffer_rule};
use crate::torch::facts::{CHECKPOINT, Keeper};
use crate::torch::kernel::{CUBLAS_RULE, rule};
use crate::torch::tape::{CopiedFor, Role, Stored};
use peakledger_core::{Category, Detail, Device};

/// What has a name of its own, in words, and where that was read.
fn of_name(name: &str) -> Option<(&'static str, &'static str)> {
    buffer_rule(name).or_else(|| context::rule(name)).or_else(|| te::rule(name))
}

impl Study<'_> {
    /// Why it is there: the first of these that is so.
    pub(super) fn why(&self, id: u32, stored: &Stored) -> (String, Option<&'static str>) {
        let op = self.tape.ran.get(stored.birth.index()).map_or("", |ran| ran.op);
        let keepers = self.keepers.get(&id).map(Vec::as_slice).unwrap_or_default();
        let plain = |text: &str| (text.to_owned(), None);
        let is_offloaded = matches!(stored.copied_for, Some(CopiedFor::Offload(_)));
        match (stored.category, stored.role, stored.detail) {
            (_, Role::Named { .. }, Some(Detail::Kernel)) => (CUBLAS_RULE.0.to_owned(), Some(CUBLAS_RULE.1)),
            (Category::CommunicationBuffer, Role::Named { name }, _) if of_name(name).is_none() => {
                match keepers.is_empty() {
                    true => plain("for what passes between ranks"),
                    false => (format!("for what passes between ranks; {}", self.kept_by(keepers)), None),
                }
            }
            (_, Role::Named { name }, _) => match of_name(name) {
                Some((what, source)) => (what.to_owned(), Some(source)),
                None => plain("the buffer in which gradients are summed, kept for good"),
            },
            (Category::Parameter, Role::Of { state: GATHERED, .. }, _) => {
                plain("a parameter that ranks share out, whole while it is used")
            }
            (_, _, Some(Detail::Kernel)) => match rule(op) {
                Some((what, source)) => (format!("inside the kernel: {what}"), Some(source)),
                None => plain("the kernel allocates it for itself"),
            },
            (Category::MasterWeight, _, _) => plain("what the optimizer steps in a parameter's place"),
            (Category::Parameter, Role::Of { .. }, _) if is_offloaded => {
                plain("a parameter from the host, there while its layer runs")
            }
            (_, _, _) if is_offloaded && stored.device == Device::Cpu => plain("waits on the host"),
            (Category::Activation, _, _) if is_offloaded => {
                plain("back from the host, for the backward of its layer")
            }
            (_, Role::Of { state: "", .. }, Some(Detail::Buffer)) => plain("a buffer of the model"),
            (_, Role::Of { state: "", .. }, _) => plain("a parameter of the model"),
            (Category::Gradient, _, _) => {
                plain("a gradient: backward adds to it until `zero_grad` lets it go")
            }
            (Category::OptimizerState, _, _) => {
                plain("made by the optimizer's first step, kept from then on")
            }
            (Category::CommunicationBuffer, _, _) => (
                "what ranks send to each other, in the order of the ranks".to_owned(),
                Some("torch/distributed/tensor/placement_types.py"),
            ),
            (_, Role::Input { .. }, _) => plain("the batch, on the device from the start of the step"),
            _ if stored.copied_for == Some(CopiedFor::Autocast) => {
                plain("autocast's copy of a parameter, kept until the region ends")
            }
            _ if !keepers.is_empty() => (self.kept_by(keepers), None),
            (_, _, Some(Detail::Output)) => plain("what the model put out, until nothing names it"),
            (Category::Workspace, _, _) => plain("made and used up here"),
            _ => plain("no backward needs it: it goes when its last user has run"),
        }
    }

    /// Which backward needs a storage.
    fn kept_by(&self, keepers: &[Keeper]) -> String {
        const MOST_SAID: usize = 3;
        let said = |keeper: &Keeper| match keeper.op {
            CHECKPOINT => "a checkpoint, to run its block again".to_owned(),
            op => match self.path(keeper.module, Layer::Any) {
                module if module.is_empty() => format!("the backward of `{op}`"),
                module => format!("the backward of `{op}` in {module}"),
            },
        };
        let mut all: Vec<String> = Vec::new();
        for keeper in keepers {
            let said = said(keeper);
            if !all.contains(&said) {
                all.push(said);
            }
        }
        let more = all.split_off(all.len().min(MOST_SAID));
        let mut text = format!("autograd keeps it for {}", all.join(", "));
        if !more.is_empty() {
            text += &format!(" and {} more", more.len());
        }
        text
    }
}
