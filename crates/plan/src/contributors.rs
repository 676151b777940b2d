//! Who stands at a moment, grouped the way a person thinks: "activations · layers 0–31 · mlp", "logits, fp32".

use crate::parallel::data::GATHERED;
use crate::plan::{At, Level, Plan, Step};
use crate::torch::Dtype;
use crate::torch::kv_cache::KV_CACHE;
use crate::torch::tape::{CopiedFor, ModuleName, Role, StorageId, Stored, Tape};
use peakledger_core::{Bytes, Category, Detail, Device, Moment};
use std::collections::BTreeMap;

/// Storages of one kind that stand at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contributor {
    /// What they are, in words.
    pub name: String,
    /// Their category.
    pub category: Category,
    /// The finer word.
    pub detail: Option<Detail>,
    /// Their bytes together.
    pub bytes: Bytes,
    /// How many there are.
    pub count: u32,
}

/// What is said of a storage, but for its layer; parts of the model by the word that people use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Parameters,
    /// Those that ranks share out, while they are whole.
    Gathered,
    /// A buffer that ranks talk through.
    Communication(&'static str),
    MasterWeights,
    Buffers,
    Gradients,
    State(&'static str),
    AutocastCopies(Dtype),
    AdapterCopies(Dtype),
    Batch,
    KvCache,
    Logits(Dtype),
    LogProbabilities(Dtype),
    LogitGradients(Dtype),
    Loss,
    Named(&'static str),
    Activations(&'static str),
    Temporaries(&'static str),
    OptimizerTemporaries(&'static str),
    CommunicationBuffers(&'static str),
}

struct Group {
    bytes: u64,
    count: u32,
    layers: Option<(u32, u32)>,
    category: Category,
    detail: Option<Detail>,
}

impl Group {
    fn empty(category: Category, detail: Option<Detail>) -> Group {
        Group { bytes: 0, count: 0, layers: None, category, detail }
    }

    fn add(&mut self, bytes: u64, count: u32, layers: Option<(u32, u32)>) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.count = self.count.saturating_add(count);
        if let Some((from, to)) = layers {
            let (first, last) = self.layers.unwrap_or((from, to));
            self.layers = Some((first.min(from), last.max(to)));
        }
    }
}

impl Plan {
    /// Who forms the op-level total at the plan's peak, largest first, then by name.
    pub fn contributors(&self) -> Vec<Contributor> {
        self.contributors_at(self.peak())
    }

    /// Who forms the op-level peak of a phase, largest first, then by name.
    pub fn contributors_at(&self, at: At<'_>) -> Vec<Contributor> {
        let step = at.step.step;
        let groups = match at.phase.run {
            Some(moment) => self.standing_as_run(step, moment),
            None => self.standing_groups(step, Some(at.phase.moment)),
        };
        groups.into_iter().map(|(_, contributor)| contributor).collect()
    }

    /// Who stands at a moment of a step as it was run, those that were not run among them.
    fn standing_as_run(&self, step: Step, moment: Moment) -> Vec<(GroupKey, Contributor)> {
        let folded = &self.folded;
        let mut groups = Groups::of(&folded.run, step, Some(moment));
        let numbered = (0..).map(StorageId).zip(&folded.run.stored).enumerate();
        for (_, (id, stored)) in numbered.filter(|(at, _)| !folded.stand_ins.contains(at)) {
            groups.add(stored, || folded.stored(id).unwrap_or(*stored), (1, 0));
        }
        for more in &folded.more {
            if let Some(like) = folded.stored(more.like) {
                groups.add(&more.together(&like), || like, (more.copies, more.layers));
            }
        }
        groups.list()
    }

    /// Who stands at a moment of the whole step, each with the key that its storages have; without a moment all that the step
    /// holds at any time.
    pub(crate) fn standing_groups(&self, step: Step, moment: Option<Moment>) -> Vec<(GroupKey, Contributor)> {
        let mut groups = Groups::of(self.tape(), step, moment);
        for stored in &self.tape().stored {
            groups.add(stored, || *stored, (1, 0));
        }
        groups.list()
    }
}

/// Those who stand at a moment, as they are found.
struct Groups<'a> {
    places: Places<'a>,
    step: Step,
    moment: Option<Moment>,
    groups: Vec<(GroupKey, Group)>,
    by_key: BTreeMap<GroupKey, usize>,
    /// Those of a kind mostly come in a row.
    last: usize,
}

impl Groups<'_> {
    fn of(tape: &Tape, step: Step, moment: Option<Moment>) -> Groups<'_> {
        let places = Places::of(tape);
        Groups { places, step, moment, groups: Vec::new(), by_key: BTreeMap::new(), last: 0 }
    }

    /// Adds what stands at the moment: so many copies of what they are like, the last of them so many layers later.
    fn add(&mut self, stored: &Stored, like: impl Fn() -> Stored, (copies, layers): (u32, u32)) {
        if stored.device == Device::Cpu {
            return;
        }
        let there = self.step.interval(self.places.tape, stored, Level::Op);
        let is_meant = |(from, to)| self.moment.is_none_or(|moment| from <= moment && moment <= to);
        if !there.is_some_and(is_meant) {
            return;
        }
        let (key, layer) = self.places.group_key(&like());
        if self.groups.get(self.last).is_none_or(|(known, _)| *known != key) {
            self.last = *self.by_key.entry(key).or_insert(self.groups.len());
        }
        if self.last == self.groups.len() {
            self.groups.push((key, Group::empty(stored.category, stored.detail)));
        }
        if let Some((_, group)) = self.groups.get_mut(self.last) {
            group.add(stored.bytes, copies, layer.map(|layer| (layer, layer.saturating_add(layers))));
        }
    }

    /// Largest first, then by name.
    fn list(self) -> Vec<(GroupKey, Contributor)> {
        let contributor = |(key, group): (GroupKey, Group)| {
            let contributor = Contributor {
                name: name(key, group.layers),
                category: group.category,
                detail: group.detail,
                bytes: Bytes::new(group.bytes),
                count: group.count,
            };
            (key, contributor)
        };
        let mut list: Vec<(GroupKey, Contributor)> = self.groups.into_iter().map(contributor).collect();
        list.sort_by(|(_, a), (_, b)| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        list
    }
}

/// What a group's name says but for the layers, so that no name is given twice: a kind, and whether it passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupKey {
    kind: Kind,
    passes: bool,
}

/// Where each module stands in the model.
pub(crate) struct Places<'a> {
    tape: &'a Tape,
    of_module: Vec<Place>,
}

/// In which layer a module is, and in which part of that or of the model.
#[derive(Clone, Copy, Default)]
struct Place {
    layer: Option<u32>,
    part: &'static str,
}

impl Places<'_> {
    pub(crate) fn of(tape: &Tape) -> Places<'_> {
        let mut of_module: Vec<Place> = Vec::with_capacity(tape.modules.len());
        for module in &tape.modules {
            let outer = module.parent.and_then(|parent| of_module.get(parent.0 as usize).copied());
            let outer = outer.unwrap_or_default();
            of_module.push(match module.name {
                ModuleName::Index(layer) => Place { layer: Some(layer), part: "" },
                ModuleName::Word("" | "model" | "gpt_neox" | "transformer" | "decoder") => outer,
                ModuleName::Word(word) if outer.part.is_empty() => Place { part: word, ..outer },
                ModuleName::Word(_) => outer,
            });
        }
        Places { tape, of_module }
    }

    /// The group that a storage belongs to, and the layer that it is in.
    pub(crate) fn group_key(&self, stored: &Stored) -> (GroupKey, Option<u32>) {
        let (kind, layer) = self.kind(stored);
        let passes = matches!(kind, Kind::Activations(_)) && stored.detail.is_none();
        (GroupKey { kind, passes }, layer)
    }

    fn kind(&self, stored: &Stored) -> (Kind, Option<u32>) {
        if let Some(CopiedFor::Offload(original)) = stored.copied_for
            && let Some(original) = self.tape.get(original)
        {
            return self.kind(original); // back on the device, it is what it was
        }
        let place = self.of_module.get(stored.module.0 as usize).copied().unwrap_or_default();
        let op = self.tape.ran.get(stored.birth.index()).map_or("", |ran| ran.op);
        let dtype = stored.dtype;
        let kind = match (stored.category, stored.role) {
            (Category::Parameter, _) if stored.detail == Some(Detail::Buffer) => Kind::Buffers,
            (Category::Parameter, Role::Of { state: GATHERED, .. }) => Kind::Gathered,
            (Category::Parameter, _) => Kind::Parameters,
            (Category::CommunicationBuffer, Role::Named { name }) => Kind::Communication(name),
            (Category::MasterWeight, _) => Kind::MasterWeights,
            (Category::Gradient, _) => Kind::Gradients,
            (Category::CommunicationBuffer, _) => Kind::CommunicationBuffers(collective_name(op)),
            (Category::OptimizerState, Role::Of { state, .. }) => Kind::State(state),
            (_, _) if stored.copied_for == Some(CopiedFor::Autocast) => Kind::AutocastCopies(dtype),
            (Category::Activation, _) if stored.copied_for == Some(CopiedFor::Adapter) => {
                Kind::AdapterCopies(dtype)
            }
            (Category::Workspace, Role::Named { name }) => Kind::Named(name),
            (_, _) if stored.detail == Some(Detail::Input) => Kind::Batch,
            (_, Role::Named { name: KV_CACHE }) => Kind::KvCache,
            (_, _) if stored.detail == Some(Detail::Output) => Kind::Logits(dtype),
            (Category::Workspace, _) if place.part == "loss_function" => Kind::LogitGradients(dtype),
            (Category::Workspace, _) if place.part == "optimizer" => {
                Kind::OptimizerTemporaries(optimizer_name(op))
            }
            (Category::Workspace, _) => Kind::Temporaries(part_name(place.part)),
            (_, _) if place.part == "loss_function" => match op {
                "_to_copy" => Kind::Logits(dtype),
                "_log_softmax" => Kind::LogProbabilities(dtype),
                _ => Kind::Loss,
            },
            _ if place.part.is_empty() && place.layer.is_none() => Kind::Activations("positions and masks"),
            _ => Kind::Activations(part_name(place.part)),
        };
        let in_layer = matches!(kind, Kind::Activations(_) | Kind::Temporaries(_));
        (kind, place.layer.filter(|_| in_layer))
    }
}

pub(crate) fn name(GroupKey { kind, passes }: GroupKey, layers: Option<(u32, u32)>) -> String {
    let layers = match layers {
        None => String::new(),
        Some((first, last)) if first == last => format!(" · layer {first}"),
        Some((first, last)) => format!(" · layers {first}–{last}"),
    };
    let with_type = |what: &str, dtype: Dtype| format!("{what}, {}", dtype.as_str());
    match kind {
        Kind::Parameters => "parameters".to_owned(),
        Kind::Gathered => "gathered parameters".to_owned(),
        Kind::Communication(name) => format!("communication · {name}"),
        Kind::MasterWeights => "master weights".to_owned(),
        Kind::Buffers => "buffers".to_owned(),
        Kind::Gradients => "gradients".to_owned(),
        Kind::State(state) => format!("optimizer state · {state}"),
        Kind::AutocastCopies(dtype) => with_type("autocast copies of the weights", dtype),
        Kind::AdapterCopies(dtype) => with_type("inputs copied for the adapters", dtype),
        Kind::Batch => "batch".to_owned(),
        Kind::KvCache => KV_CACHE.to_owned(),
        Kind::Logits(dtype) => with_type("logits", dtype),
        Kind::LogProbabilities(dtype) => with_type("log-probabilities", dtype),
        Kind::LogitGradients(dtype) => with_type("gradients of the logits", dtype),
        Kind::Loss => "loss".to_owned(),
        Kind::Named(name) => name.to_owned(),
        Kind::Activations(part) => {
            // what no backward waits for goes as soon as it is used
            let passing = if passes { " · passing" } else { "" };
            format!("activations{layers} · {part}{passing}")
        }
        Kind::Temporaries(part) => format!("backward temporaries{layers} · {part}"),
        Kind::CommunicationBuffers(what) => format!("communication buffers · {what}"),
        Kind::OptimizerTemporaries(FOREACH) => "foreach temporary".to_owned(),
        Kind::OptimizerTemporaries(op) => format!("optimizer temporary · {op}"),
    }
}

/// How the ops over lists of tensors begin, which share a name.
const FOREACH: &str = "_foreach_";

/// What ranks do together through a buffer that this op made.
fn collective_name(op: &'static str) -> &'static str {
    match op {
        "all_gather_into_tensor" | "_c10d_functional.all_gather_into_tensor" => "all-gather",
        "_c10d_functional.all_to_all_single" => "all-to-all",
        // parts in the order of the ranks, about to be summed
        "cat" => "reduce-scatter",
        other => other,
    }
}

fn optimizer_name(op: &'static str) -> &'static str {
    if op.starts_with(FOREACH) { FOREACH } else { op }
}

/// A module's name in a word that people use.
fn part_name(part: &'static str) -> &'static str {
    match part {
        "self_attn" | "attention" | "attn" | "self_attention" => "attention",
        "input_layernorm"
        | "post_attention_layernorm"
        | "pre_feedforward_layernorm"
        | "post_feedforward_layernorm"
        | "pre_mlp_layernorm"
        | "ln_1"
        | "ln_2" => "norms",
        "embed_tokens" | "embed_in" | "wte" => "embedding",
        "wpe" => "positions",
        "norm" | "final_layer_norm" | "ln_f" | "final_layernorm" => "final norm",
        "lm_head" | "score" | "output_layer" => "head",
        "log_probs" => "log-probabilities",
        "rotary_emb" | "rotary_pos_emb" => "rotary tables",
        "" => "residual stream",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use crate::catalogue::open_model;
    use crate::config::Architecture;
    use crate::options::{Options, Recompute};
    use crate::plan;
    use std::collections::BTreeSet;

    #[test]
    fn no_name_is_given_twice() {
        for model in ["qwen2.5-0.5b", "gemma-2-2b", "gpt2", "pythia-160m"] {
            let architecture = Architecture::read(&open_model(model).unwrap().config).unwrap();
            for recompute in [Recompute::None, Recompute::Full] {
                let options = Options { recompute, seq_len: Some(64), ..Options::default() };
                let plan = plan(architecture.clone(), options).unwrap();
                for step in [&plan.first, &plan.steady] {
                    for phase in &step.phases {
                        let standing = plan.contributors_at(crate::At { step, phase });
                        let names: BTreeSet<&str> = standing.iter().map(|c| c.name.as_str()).collect();
                        assert_eq!(names.len(), standing.len(), "{model}, {}: {standing:?}", phase.phase);
                        let total: u64 = standing.iter().map(|c| c.bytes.get()).sum();
                        assert_eq!(total, phase.peak.get());
                    }
                }
            }
        }
    }
}
