//! How a number came about: the storages behind a name, each with its shape and type, the op that made it, why it is kept,
//! and from when to when. The step is run once more for it, with what a plan does not record.

use crate::contributors::{Contributor, GroupKey, Places};
use crate::nn::te;
use crate::parallel::context;
use crate::parallel::data::{GATHERED, buffer_rule};
use crate::plan::{Level, Plan, Step};
use crate::step;
use crate::torch::Dtype;
use crate::torch::facts::{CHECKPOINT, Facts, Keeper};
use crate::torch::kernel::{CUBLAS_RULE, rule};
use crate::torch::tape::{CopiedFor, ModuleId, ModuleName, Role, Stored, Tape};
use peakledger_core::{Bytes, Category, Detail, Device, Moment, Phase};
use peakledger_input::{Problem, near, quoted};
use std::collections::BTreeMap;

/// What has a name of its own, in words, and where that was read.
fn of_name(name: &str) -> Option<(&'static str, &'static str)> {
    buffer_rule(name).or_else(|| context::rule(name)).or_else(|| te::rule(name))
}

/// The storages behind a name, those that are alike together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The step that they are looked for in.
    pub step: Step,
    /// Whether they are those at the op-level peak, or all of the step.
    pub at_peak: bool,
    /// What they are, largest together first, then by name.
    pub parts: Vec<Explained>,
    /// Their bytes together; of storages that never meet, too.
    pub bytes: Bytes,
}

/// Storages that differ in nothing but their layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// What each is called, with `*` for the layer where there are several: `model.layers.*.mlp.act_fn: silu`.
    pub name: String,
    /// Their category.
    pub category: Category,
    /// The finer word.
    pub detail: Option<Detail>,
    /// The sizes of each.
    pub shape: Vec<u64>,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Bytes that each asks for: its sizes times the width of an element.
    pub requested: Bytes,
    /// Bytes of each, rounded up to blocks of 512.
    pub each: Bytes,
    /// How many there are.
    pub count: u64,
    /// Their bytes together.
    pub bytes: Bytes,
    /// The op that made it; nothing for what was there before.
    pub op: Option<&'static str>,
    /// Why it is there, in a sentence.
    pub why: String,
    /// The file that says so, for memory inside kernels.
    pub source: Option<&'static str>,
    /// When it comes; nothing where it is there before the step.
    pub from: Option<When>,
    /// When it goes; nothing where it stays.
    pub until: Option<When>,
}

/// A moment of a step, of any micro-batch and any layer: the op that runs, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct When {
    /// The phase.
    pub phase: Phase,
    /// The module, with `*` for the layer.
    pub module: String,
    /// The op, by torch's name.
    pub op: &'static str,
}

impl Plan {
    /// Explains a contributor, a category, or the states of a name or pattern (`*` and `?`): a name may be cut short.
    ///
    /// # Errors
    /// Says that nothing has the name, and which one is near.
    pub fn explain(&self, asked: &str, step: Option<Step>) -> Result<Explanation, Problem> {
        let steps = self.options.gradient_accumulation_steps;
        let (outcome, facts) = step::run_recording(
            &self.architecture,
            &self.options,
            self.seq_len,
            steps,
            Some(Facts::default()),
        )?;
        let at = self.peak_in(step);
        let asked = Pattern::of(asked);
        let study = Study::new(&outcome.folded.run, facts.unwrap_or_default(), at.step.step);
        let at_peak = self.standing_groups(at.step.step, Some(at.phase.moment));
        let in_step = self.standing_groups(at.step.step, None);
        let wanted = |groups: &[(GroupKey, Contributor)]| -> Vec<GroupKey> {
            // a name that is said whole means that alone
            let is = |c: &Contributor| asked.is(&c.name) || asked.is(c.category.as_str());
            let fits = |c: &Contributor| asked.fits(&c.name) || asked.fits(c.category.as_str());
            let whole = groups.iter().any(|(_, contributor)| is(contributor));
            let meant = groups.iter().filter(|(_, c)| if whole { is(c) } else { fits(c) });
            meant.map(|(key, _)| *key).collect()
        };
        let places = Places::of(&outcome.folded.run);
        let is_of = |keys: &[GroupKey], stored: &Stored| keys.contains(&places.group_key(stored).0);
        // what forms the peak first, then what is named so at another time, then states by their own names
        let explanation = match (wanted(&at_peak), wanted(&in_step)) {
            (keys, _) if !keys.is_empty() => {
                study.of(Some(at.phase.moment), |stored, _| is_of(&keys, stored))
            }
            (_, keys) if !keys.is_empty() => study.of(None, |stored, _| is_of(&keys, stored)),
            _ => study.of(None, |stored, name| {
                asked.fits(name) || stored.detail.is_some_and(|detail| asked.fits(detail.as_str()))
            }),
        };
        if explanation.parts.is_empty() {
            let names: Vec<&str> = in_step.iter().map(|(_, c)| c.name.as_str()).collect();
            return Err(unknown(&asked.text, &names));
        }
        Ok(explanation)
    }
}

fn unknown(asked: &str, names: &[&str]) -> Problem {
    let categories = Category::ALL.map(Category::as_str);
    let known = || names.iter().copied().chain(categories);
    let lower: Vec<String> = known().map(str::to_lowercase).collect();
    let near = near(asked, lower.iter().map(String::as_str));
    let near = near.and_then(|near| known().find(|name| name.to_lowercase() == near));
    let problem = Problem::in_option("--explain", format!("nothing of this step is named {}", quoted(asked)));
    problem.mend(match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => "name a contributor of the plan, a category, or a module such as `model.layers.0.mlp`; `*` stands for any letters".to_owned(),
    })
}

/// What was asked for, in lower case.
struct Pattern {
    text: String,
}

impl Pattern {
    fn of(text: &str) -> Pattern {
        Pattern { text: text.trim().to_lowercase() }
    }

    /// Whether a name is this.
    fn is(&self, name: &str) -> bool {
        name.to_lowercase() == self.text
    }

    /// Whether a name is this, begins with it, or is of this pattern.
    fn fits(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        match self.text.contains(['*', '?']) {
            true => is_of(&self.text, &name),
            false => !self.text.is_empty() && name.starts_with(&self.text),
        }
    }
}

/// Whether a text is of a pattern: `*` stands for any letters, `?` for one. Takes back the last `*` where it took too little.
fn is_of(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut here, mut star) = (0, 0, None);
    while let Some(letter) = text.get(here) {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, here));
                at += 1;
            }
            Some(wanted) if *wanted == '?' || wanted == letter => (at, here) = (at + 1, here + 1),
            _ => match star {
                Some((star_at, taken)) => {
                    star = Some((star_at, taken + 1));
                    (at, here) = (star_at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(at).all(|rest| *rest == '*')
}

/// A step that was run with its facts.
struct Study<'a> {
    tape: &'a Tape,
    facts: Facts,
    step: Step,
    keepers: BTreeMap<u32, Vec<Keeper>>,
}

/// What storages that are explained together have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Alike {
    name: String,
    category: Category,
    detail: Option<Detail>,
    shape: Vec<u64>,
    dtype: Dtype,
    each: u64,
    op: Option<&'static str>,
    why: String,
    source: Option<&'static str>,
    from: Option<When>,
    until: Option<When>,
}

impl<'a> Study<'a> {
    fn new(tape: &'a Tape, facts: Facts, step: Step) -> Study<'a> {
        let mut keepers: BTreeMap<u32, Vec<Keeper>> = BTreeMap::new();
        for keeper in &facts.keepers {
            let of_storage = keepers.entry(keeper.storage.0).or_default();
            if !of_storage.contains(keeper) {
                of_storage.push(*keeper);
            }
        }
        Study { tape, facts, step, keepers }
    }

    /// The storages that are wanted: those at a moment of the step, or all of it.
    fn of(&self, moment: Option<Moment>, wanted: impl Fn(&Stored, &str) -> bool) -> Explanation {
        let level_of = |stored: &Stored, level| self.step.interval(self.tape, stored, level);
        let mut alike: BTreeMap<Alike, (u64, String)> = BTreeMap::new();
        for (id, stored) in (0_u32..).zip(&self.tape.stored) {
            let intervals = match moment {
                Some(_) => [level_of(stored, Level::Op), None],
                None => [Level::Op, Level::Untracked].map(|level| level_of(stored, level)),
            };
            let there = |(from, to): (Moment, Moment)| moment.is_none_or(|m| from <= m && m <= to);
            if moment.is_some() && stored.device == Device::Cpu {
                continue; // no part of the peak
            }
            if !intervals.into_iter().flatten().any(there) {
                continue;
            }
            let name = self.name(stored, Layer::Said);
            if wanted(stored, &name) {
                alike.entry(self.alike(id, stored)).or_insert((0, name)).0 += 1;
            }
        }
        // one alone has its layer in its name
        let part = |(alike, (count, name)): (Alike, (u64, String))| match count {
            1 => Alike { name, ..alike }.times(1),
            count => alike.times(count),
        };
        let mut parts: Vec<Explained> = alike.into_iter().map(part).collect();
        parts.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        let bytes = parts.iter().fold(0, |n: u64, part| n.saturating_add(part.bytes.get()));
        Explanation { step: self.step, at_peak: moment.is_some(), parts, bytes: Bytes::new(bytes) }
    }

    fn alike(&self, id: u32, stored: &Stored) -> Alike {
        let (why, source) = self.why(id, stored);
        let shape = self.facts.layouts.get(id as usize).map(|layout| layout.sizes().to_vec());
        let placed =
            matches!(stored.role, Role::Input { .. } | Role::Named { .. } | Role::Of { state: "", .. });
        let made = !placed && stored.category != Category::MasterWeight;
        let persists = stored.outlives_the_step();
        let began_before = persists && (self.step == Step::Steady || !made);
        Alike {
            name: self.name(stored, Layer::Any),
            category: stored.category,
            detail: stored.detail,
            shape: shape.unwrap_or_default(),
            dtype: stored.dtype,
            each: stored.bytes,
            op: self.tape.ran.get(stored.birth.index()).filter(|_| made).map(|ran| ran.op),
            why,
            source,
            from: if began_before { None } else { self.when(stored.birth) },
            until: if persists { None } else { self.when(stored.death) },
        }
    }

    /// The moment of the tape, in words.
    fn when(&self, moment: Moment) -> Option<When> {
        let ran = self.tape.ran.get(moment.index())?;
        let mark = self.tape.marks.iter().rev().find(|mark| mark.first <= moment)?;
        Some(When { phase: mark.phase.clone(), module: self.path(ran.module, Layer::Any), op: ran.op })
    }

    fn why(&self, id: u32, stored: &Stored) -> (String, Option<&'static str>) {
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

    fn name(&self, stored: &Stored, layer: Layer) -> String {
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
    fn path(&self, id: ModuleId, layer: Layer) -> String {
        match layer {
            Layer::Said => self.tape.path(id),
            Layer::Any => self.any_layer(id),
        }
    }

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

/// Whether a name says the layer.
#[derive(Clone, Copy)]
enum Layer {
    Said,
    Any,
}

impl Alike {
    fn times(self, count: u64) -> Explained {
        let Alike { name, category, detail, shape, dtype, each, op, why, source, from, until } = self;
        let (bytes, each) = (Bytes::new(each.saturating_mul(count)), Bytes::new(each));
        let elements = shape.iter().fold(1, |n: u64, size| n.saturating_mul(*size));
        let requested = Bytes::new(elements.saturating_mul(dtype.width()));
        Explained {
            name,
            category,
            detail,
            shape,
            dtype,
            requested,
            each,
            count,
            bytes,
            op,
            why,
            source,
            from,
            until,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::open_model;
    use crate::config::Architecture;
    use crate::options::{Attention, Lora, Offload, Options, Quantize, Recompute};
    use crate::plan;
    use crate::torch::tape::rounded;

    fn planned(model: &str, options: Options) -> Plan {
        let architecture = Architecture::read(&open_model(model).unwrap().config).unwrap();
        plan(architecture, Options { seq_len: Some(64), ..options }).unwrap()
    }

    /// What is said of each contributor adds up to it, and sizes times width is what is stored.
    #[test]
    fn every_number_of_the_peak_is_explained() {
        let everything = Offload { activations: true, optimizer: true, parameters: true };
        let lora = Lora { rank: 4, dropout: 0.1, ..Lora::default() };
        for (model, options) in [
            ("qwen2.5-0.5b", Options::default()),
            ("qwen2.5-0.5b", Options { recompute: Recompute::Full, ..Options::default() }),
            ("qwen2.5-0.5b", Options { offload: everything, ..Options::default() }),
            (
                "gpt2",
                Options { attention: Attention::Eager, gradient_accumulation_steps: 3, ..Options::default() },
            ),
            (
                "gemma-2-2b",
                Options { lora: Some(lora), quantize: Some(Quantize::Nf4Double), ..Options::default() },
            ),
        ] {
            let plan = planned(model, options);
            for step in [Step::First, Step::Steady] {
                for contributor in plan.contributors_at(plan.step(step).peak()) {
                    let explained = plan.explain(&contributor.name, Some(step)).unwrap();
                    assert!(explained.at_peak);
                    assert_eq!(explained.bytes, contributor.bytes, "{contributor:?}");
                    for part in &explained.parts {
                        assert_eq!(part.each.get(), rounded(part.requested.get()), "{part:?}");
                        assert!(!part.why.is_empty() && part.each.get() * part.count == part.bytes.get());
                    }
                }
            }
        }
    }

    /// Every tensor that is kept for backward has a backward that needs it.
    #[test]
    fn what_autograd_keeps_is_needed_by_some_backward() {
        for recompute in [Recompute::None, Recompute::Full] {
            let plan = planned("qwen2.5-0.5b", Options { recompute, ..Options::default() });
            let saved = plan.explain("saved_tensor", None).unwrap();
            let unneeded = saved.parts.iter().filter(|part| !part.why.starts_with("autograd"));
            let unneeded: Vec<String> = unneeded.map(|part| format!("{} {}", part.name, part.why)).collect();
            assert!(unneeded.iter().all(|text| text.contains("autocast's copy")), "{unneeded:#?}");
            let silu = saved.parts.iter().find(|part| part.name.ends_with("act_fn: silu")).unwrap();
            assert!(silu.why.contains("the backward of `mul.Tensor` in model.layers.*.mlp"), "{}", silu.why);
            let checkpoints = saved.parts.iter().any(|part| part.why.contains("a checkpoint"));
            assert_eq!(checkpoints, recompute == Recompute::Full);
        }
    }

    #[test]
    fn kernels_name_their_source() {
        let plan = planned("gpt2", Options { attention: Attention::Eager, ..Options::default() });
        let kernels = plan.explain("kernel", None).unwrap();
        assert!(!kernels.at_peak && kernels.parts.iter().all(|part| part.source.is_some()));
        assert!(kernels.parts.iter().any(|part| part.source.unwrap().ends_with("SoftMax.cu")));
    }

    #[test]
    fn names_are_found_by_beginning_and_pattern() {
        let plan = planned("qwen2.5-0.5b", Options::default());
        for asked in
            ["model.layers.3.mlp.down_proj.weight.exp_avg_sq", "model.layers.3.*down_proj*exp_avg_s?"]
        {
            let one = plan.explain(asked, None).unwrap();
            assert_eq!((one.parts.len(), one.parts[0].count), (1, 1), "{asked}");
            assert_eq!(one.parts[0].name, "model.layers.3.mlp.down_proj.weight.exp_avg_sq");
        }
        let said = |asked: &str| plan.explain(asked, None).unwrap_err().to_string();
        assert!(said("parametres").contains("did you mean `parameters`?"), "{}", said("parametres"));
        assert!(said("").contains("name a contributor") && said("zzz").contains("name a contributor"));
        for (pattern, text, fits) in [
            ("a*c", "abc", true),
            ("*", "", true),
            ("a*b*c", "aXbXbYc", true),
            ("a?c", "ac", false),
            ("*x", "xy", false),
        ] {
            assert_eq!(is_of(pattern, text), fits, "{pattern} {text}");
        }
    }
}
