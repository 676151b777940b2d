//! Which parameters FSDP2 gathers and reduces together, and over which ranks.
//!
//! Every decoder layer is a group and all around them another, as accelerate has it up to 1.13. Since 1.14 it shards the embedding by
//! itself and the last norm with the head too, as torchtitan does (`apply_fsdp`), unless the head is the embedding: here these
//! are one group, whole from forward to backward. Where experts are spread it is transformers that shards
//! (`apply_fully_sharded_data_parallelism`, `transformers/distributed/fsdp.py`): the experts of a layer over the ranks that have
//! the same ones, the rest of the layer over all data parallel ranks, the embedding by itself, and the last norm with the head,
//! which stay whole from forward to backward.

use super::gathered::Sharded;
use crate::nn::{Parameter, Spread};
use crate::optim::redistributed;
use crate::options::{Options, refused};
use crate::parallel::Mesh;
use crate::torch::network::Peers;
use crate::torch::{Dtype, ModuleId, Tensor, Torch};
use peakledger_core::Device;
use peakledger_input::Problem;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

/// What a group is of, in the order in which their forward passes end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// The embedding, where it is a group of its own.
    Embedding,
    /// A decoder layer, or its experts, which end first.
    InLayer(usize, Within),
    /// All else.
    Rest,
}

/// What of a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Within {
    /// Experts that are spread over ranks.
    Experts,
    /// The rest of it.
    Layer,
}

/// The ranks that share out a parameter.
#[derive(Clone, Copy)]
pub(super) struct Ranks {
    /// Those that have a shard each.
    pub(super) shards: u32,
    /// Which of them this rank is.
    pub(super) rank: u32,
    /// Such sets of ranks (HSDP).
    pub(super) replicas: u32,
    /// The ranks that have a shard each, as they are reached, and those that have the same one.
    pub(super) peers: [Peers; 2],
}

impl Ranks {
    fn of(options: &Options, mesh: &Mesh, spread: Spread) -> Ranks {
        let (parallel, place) = (&options.parallel, mesh.place(options.parallel.rank));
        let dense = mesh.shards(parallel);
        let rank = mesh.replica_of(parallel.rank) % dense;
        let replicas = mesh.replicas() / dense;
        match spread {
            // pp × dp_replicate × efsdp × ep are the same ranks as pp × dp_replicate × fsdp × tp (`TransformersDeviceMesh`)
            Spread::Experts => Ranks {
                shards: mesh.shards_of_experts(parallel),
                rank: (rank * mesh.tp + place.tp) / mesh.ep,
                replicas,
                peers: mesh.expert_shard_peers(parallel),
            },
            Spread::None | Spread::Tensor => {
                Ranks { shards: dense, rank, replicas, peers: mesh.shard_peers(parallel) }
            }
        }
    }
}

/// Parameters that come and go together (`FSDPParamGroup`).
pub(super) struct Group {
    pub(super) part: Part,
    pub(super) module: ModuleId,
    pub(super) parameters: Vec<Sharded>,
    pub(super) ranks: Ranks,
    pub(super) state: RefCell<State>,
    /// Whether its backward has ended.
    pub(super) done: Cell<bool>,
    /// Gradients of this rank's shards.
    pub(super) grads: RefCell<Vec<Tensor>>,
    /// What replicas summed among them, kept until backward has ended (`AllReduceState`).
    pub(super) all_reduced: RefCell<Option<Tensor>>,
}

/// How much of a group's parameters is here.
pub(super) enum State {
    /// This rank's shards.
    Sharded,
    /// They are on their way, into that where there are other ranks.
    Gathering(Option<Tensor>),
    /// All of them.
    Unsharded { _parameters: Vec<Tensor> },
}

/// The groups of a model, and what the optimizer steps.
pub(super) fn grouped(
    torch: &Torch,
    options: &Options,
    mesh: &Mesh,
    parameters: Vec<Parameter>,
    in_one: bool,
) -> Result<(Vec<Group>, Vec<Parameter>), Problem> {
    let by_transformers = mesh.ep > 1;
    let [dense, of_experts] = [Spread::None, Spread::Experts].map(|spread| Ranks::of(options, mesh, spread));
    let mut groups: BTreeMap<Part, Group> = BTreeMap::new();
    let mut shards = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        let tape = torch.tape.borrow();
        let (module, spread) = (parameter.module, parameter.spread);
        let (part, of) = match tape.layer(module) {
            _ if in_one => (Part::Rest, ModuleId(0)),
            Some(layer) if spread == Spread::Experts => {
                (Part::InLayer(layer as usize, Within::Experts), module)
            }
            Some(layer) => (Part::InLayer(layer as usize, Within::Layer), tape.layer_module(module)),
            None if by_transformers && tape.path(module).ends_with("embed_tokens") => {
                (Part::Embedding, module)
            }
            None => (Part::Rest, tape.layer_module(module)),
        };
        drop(tape);
        let ranks = if spread == Spread::Experts { of_experts } else { dense };
        let sharded = Sharded::new(parameter, ranks.shards, ranks.rank);
        if options.offload.parameters {
            sharded.tensor.relabel(|stored| stored.device = Device::Cpu);
        }
        shards.push(sharded.shard());
        groups.entry(part).or_insert_with(|| Group::new(part, of, ranks)).parameters.push(sharded);
    }
    let groups: Vec<Group> = groups.into_values().collect();
    groups.iter().try_for_each(Group::check)?;
    Ok((groups, shards))
}

impl Group {
    fn new(part: Part, module: ModuleId, ranks: Ranks) -> Group {
        Group {
            part,
            module,
            parameters: Vec::new(),
            ranks,
            state: RefCell::new(State::Sharded),
            done: Cell::new(false),
            grads: RefCell::new(Vec::new()),
            all_reduced: RefCell::new(None),
        }
    }

    /// Refuses what FSDP does: parameters of several types that are trained in one group (`_init_mp_dtypes`).
    fn check(&self) -> Result<(), Problem> {
        let mut trained = self.parameters.iter().filter(|parameter| parameter.leaf.is_some());
        let Some(first) = trained.next() else { return Ok(()) };
        match trained.find(|other| other.kept != first.kept) {
            None => Ok(()),
            Some(other) => {
                let (one, other) = (first.kept.as_str(), other.kept.as_str());
                let cause = format!(
                    "FSDP2 gathers a layer's trained parameters in one type, and these are in {one} and {other}"
                );
                refused("--fsdp", cause, "use --precision bf16-mixed or fp32, which keep all in fp32")
            }
        }
    }

    /// Whether it is of one of these layers.
    pub(super) fn is_of(&self, layers: &Range<usize>) -> bool {
        matches!(self.part, Part::InLayer(layer, _) if layers.contains(&layer))
    }

    fn is_unsharded(&self) -> bool {
        matches!(*self.state.borrow(), State::Unsharded { .. })
    }

    pub(super) fn reshard(&self) {
        if self.is_unsharded() {
            *self.state.borrow_mut() = State::Sharded;
        }
    }

    /// Whether gradients are divided by other ranks than those that are reduced over: what experts of all batches make is
    /// summed over the ranks that have the same ones (`set_gradient_divide_factor`).
    pub(super) fn divides(&self) -> bool {
        matches!(self.part, Part::InLayer(_, Within::Experts))
    }

    /// The gradients that autograd has left at the parameters, as those of the rank's tensor parallel parts
    /// (`_get_grad_inner_tensor`).
    pub(super) fn take_grads(&self) -> Vec<(&Sharded, Tensor)> {
        let grad = |parameter: &'_ Sharded| {
            let of_the_part = redistributed([&**parameter]).pop();
            let grad = parameter.leaf.as_ref()?.grad.borrow_mut().take();
            of_the_part.or(grad)
        };
        self.parameters.iter().filter_map(|parameter| Some((parameter, grad(parameter)?))).collect()
    }

    /// The type of all its parameters as they are gathered; bytes where they differ.
    pub(super) fn one_dtype(&self) -> Dtype {
        let mut dtypes = self.parameters.iter().map(Sharded::used);
        let first = dtypes.next().unwrap_or(Dtype::Byte);
        if dtypes.all(|dtype| dtype == first) { first } else { Dtype::Byte }
    }
}
