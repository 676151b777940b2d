//! What a plan takes for granted and what it leaves out, in words: every figure stands on these.

mod kept;
mod model;
mod step;

use crate::options::{Offload, Quantize};
use crate::parallel::{Stack, megatron};
use crate::plan::Plan;

/// One thing that is taken for granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumption {
    /// What it is about.
    pub topic: &'static str,
    /// What is assumed.
    pub value: String,
}

impl Plan {
    /// Everything that is assumed, said or left to its default.
    pub fn assumptions(&self) -> Vec<Assumption> {
        let mut list =
            if self.options.stack == Stack::Megatron { megatron::assumptions(self) } else { self.usual() };
        list.extend(self.parallel_assumptions());
        if let Some(ranks) = self.data_parallel().filter(|_| self.options.stack == Stack::Transformers) {
            list.push(("ranks", ranks));
        }
        if self.options.offload != Offload::default() {
            list.push(("offload", self.offload()));
        }
        if self.options.stack == Stack::Transformers && self.architecture.shape.num_experts > 0 {
            list.push(("experts", self.experts()));
        }
        if let Some(parallel) = self.model_parallel().filter(|_| self.options.stack == Stack::Transformers) {
            list.push(("parallel", parallel));
        }
        list.extend(self.context_parallel().map(|shared| ("context", shared)));
        let config = [
            ("left out, so the family's default", &self.architecture.defaults),
            ("not planned", &self.architecture.not_planned),
        ];
        let config = config.iter().filter(|(_, fields)| !fields.is_empty());
        let config: Vec<String> =
            config.map(|(what, fields)| format!("{what}: {}", fields.join(", "))).collect();
        if !config.is_empty() {
            list.push(("config", config.join("; ")));
        }
        list.into_iter().map(|(topic, value)| Assumption { topic, value }).collect()
    }

    /// What is assumed of transformers' modules and torch's loop.
    fn usual(&self) -> Vec<(&'static str, String)> {
        vec![
            ("model", self.model()),
            ("batch", self.batch()),
            ("precision", self.precision()),
            ("attention", self.attention()),
            ("optimizer", self.optimizer()),
            ("recompute", self.recompute()),
            ("loop", self.training_loop()),
            ("kernels", self.kernels()),
        ]
    }

    /// What the figures leave out; what the caching allocator adds is no part of a plan, and is left out unless a replay of
    /// its traffic is told beside it.
    pub fn not_counted(&self, replayed: bool) -> Vec<&'static str> {
        let mut list =
            vec!["the little that other kernels allocate inside themselves (sorting, reductions, cuBLASLt)"];
        if self.options.stack == Stack::Megatron {
            list.extend(megatron::NOT_COUNTED);
        }
        if !replayed {
            list.push(
                "what the caching allocator adds to a request (it leaves up to 1 MiB of a large block unsplit) and what it \
                 reserves beyond that (fragmentation, whole segments)",
            );
        }
        if self.options.lora.is_some() && !self.options.loss_in_model {
            list.push(
                "the last hidden states while the loss is computed, which a model that is passed the labels still holds \
                 (--loss-in-model)",
            );
        }
        if self.options.quantize == Some(Quantize::Int8) {
            list.push(
                "columns of activations with outliers: int8 modules keep them in their own type and make those of the weight \
                 whole",
            );
        }
        if self.options.offload != Offload::default() {
            list.push(
                "what pinning adds to copies on the host (torch rounds each up to a power of two), and the process itself there",
            );
        }
        list
    }
}
