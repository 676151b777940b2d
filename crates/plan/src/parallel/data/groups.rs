//! Which parameters FSDP2 gathers and reduces together, and over which ranks.
//!
//! Every decoder layer is a group. What else is one depends on who wraps the model ([`FsdpWrap`]); what then is left is a group
//! of the model itself, its root. Where experts are spread it is transformers that shards
//! (`apply_fully_sharded_data_parallelism`, `transformers/distributed/fsdp.py`): the experts of a layer over the ranks that have
//! the same ones, the rest of the layer over all data parallel ranks, the embedding by itself, and the last norm with the head,
//! which stay whole from forward to backward.

use super::FsdpWrap;
use super::gathered::Sharded;
use crate::nn::{HEAD, Parameter, Spread};
use crate::optim::redistributed;
use crate::options::{Objective, Options, refused};
use crate::parallel::{Mesh, Parallel};
use crate::torch::network::Peers;
use crate::torch::tape::{Module, ModuleName, Tape};
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
    /// The last norm with the head, where they are a group of their own: with the embedding, if that is the head too.
    Tail,
    /// All else.
    Root,
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
pub(crate) struct Ranks {
    /// Those that have a shard each.
    pub(crate) shards: u32,
    /// Which of them this rank is.
    pub(crate) rank: u32,
    /// Such sets of ranks (HSDP).
    pub(super) replicas: u32,
    /// The ranks that have a shard each, as they are reached, and those that have the same one.
    pub(super) peers: [Peers; 2],
}

impl Ranks {
    /// Those that share out what a rank holds of that spread.
    pub(crate) fn of(parallel: &Parallel, mesh: &Mesh, rank: u32, spread: Spread) -> Ranks {
        let (place, dense) = (mesh.place(rank), mesh.shards(parallel));
        let rank = mesh.replica_of(rank) % dense;
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
    /// Whether its forward begins where the model's does: what the root and the embedding use comes first.
    pub(super) begins_with_model: bool,
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
    let outside = Outside::of(&torch.tape.borrow(), &parameters, options, mesh);
    let [dense, of_experts] = [Spread::None, Spread::Experts]
        .map(|spread| Ranks::of(&options.parallel, mesh, options.parallel.rank, spread));
    let mut groups: BTreeMap<Part, Group> = BTreeMap::new();
    let mut shards = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        let tape = torch.tape.borrow();
        let (module, spread) = (parameter.module, parameter.spread);
        let (part, of) = match tape.layer(module) {
            _ if in_one => (Part::Root, ModuleId(0)),
            Some(layer) if spread == Spread::Experts => {
                (Part::InLayer(layer as usize, Within::Experts), module)
            }
            Some(layer) => (Part::InLayer(layer as usize, Within::Layer), tape.layer_module(module)),
            None => match outside.part(&tape, module) {
                Part::Root => (Part::Root, tape.layer_module(module)),
                part => (part, module),
            },
        };
        let is_embedding = is_in(&tape, module, EMBEDDINGS);
        drop(tape);
        let ranks = if spread == Spread::Experts { of_experts } else { dense };
        let sharded = Sharded::new(parameter, ranks.shards, ranks.rank);
        if options.offload.parameters {
            sharded.tensor.relabel(|stored| stored.device = Device::Cpu);
        }
        shards.push(sharded.shard());
        let group = groups.entry(part).or_insert_with(|| Group::new(part, of, ranks));
        group.begins_with_model |= is_embedding;
        group.parameters.push(sharded);
    }
    let groups: Vec<Group> = groups.into_values().collect();
    groups.iter().try_for_each(Group::check)?;
    Ok((groups, shards))
}

/// What is made of the parameters that are in no decoder layer.
struct Outside {
    /// Whether the embedding is a group of its own.
    embedding: bool,
    /// Whether the head is.
    head: bool,
    /// Whether the last norm is in the head's.
    norm: bool,
    /// Whether the head has the embedding's weight.
    is_tied: bool,
}

/// The names of embeddings, and of last norms, in the families that there are.
const EMBEDDINGS: &[&str] = &["embed_tokens", "embed_in", "wte"];
const LAST_NORMS: &[&str] = &["norm", "ln_f", "final_layer_norm"];

impl Outside {
    fn of(tape: &Tape, parameters: &[Parameter], options: &Options, mesh: &Mesh) -> Outside {
        let is_head = |module: &Module| module.name == ModuleName::Word(HEAD);
        let head = tape.modules.iter().position(is_head);
        let has = |head: usize| parameters.iter().any(|parameter| parameter.module.0 as usize == head);
        // a model that gives values has no head of its own, whatever stands there in its place
        let is_tied = options.objective != Objective::Values && head.is_some_and(|head| !has(head));
        // accelerate looks for it among the children of the base model, and those of a `PeftModel`'s are the model and the head
        // (`_find_final_norm`, `accelerate/utils/fsdp_utils.py`)
        let finds_norm = options.lora.is_none();
        match options.parallel.data.wrap.unwrap_or_default() {
            // transformers' plan names each
            _ if mesh.ep > 1 => Outside { embedding: true, head: true, norm: true, is_tied: false },
            FsdpWrap::Accelerate => Outside { embedding: !is_tied, head: true, norm: finds_norm, is_tied },
            FsdpWrap::Verl => Outside { embedding: !is_tied, head: false, norm: false, is_tied },
            FsdpWrap::Accelerate113 | FsdpWrap::Layers => {
                Outside { embedding: false, head: false, norm: false, is_tied }
            }
        }
    }

    fn part(&self, tape: &Tape, module: ModuleId) -> Part {
        let is_in = |names| is_in(tape, module, names);
        match () {
            () if is_in(EMBEDDINGS) && self.embedding => Part::Embedding,
            () if is_in(EMBEDDINGS) && self.is_tied && self.head => Part::Tail,
            () if is_in(&[HEAD]) && self.head => Part::Tail,
            () if is_in(LAST_NORMS) && self.norm => Part::Tail,
            () => Part::Root,
        }
    }
}

/// Whether a module has one of these names, or is within one that has.
fn is_in(tape: &Tape, module: ModuleId, names: &[&str]) -> bool {
    let Some(Module { parent, name }) = tape.modules.get(module.0 as usize) else { return false };
    let is_so = matches!(name, ModuleName::Word(word) if names.contains(word));
    is_so || parent.is_some_and(|parent| is_in(tape, parent, names))
}

impl Group {
    fn new(part: Part, module: ModuleId, ranks: Ranks) -> Group {
        Group {
            part,
            module,
            begins_with_model: matches!(part, Part::Root | Part::Embedding),
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
