//! Configs that people already have, as options of a plan: `--from FILE`.
//!
//! A file becomes a list of the plan's own options, each with its place in the file ([`reading`], a file for each kind);
//! several files become one list ([`combine`]); the list goes through the parser of the command line, whose own options win.

mod accelerate;
mod axolotl;
mod batch;
mod combine;
mod command;
mod deepspeed;
mod found;
mod fsdp;
mod llama_factory;
mod megatron;
mod open;
pub(crate) mod optimizer;
mod peft;
mod post_training;
mod reading;
mod resolved;
#[cfg(test)]
mod tests;
mod torchtitan;
mod training_arguments;
mod trl;

pub(crate) use command::in_shell;
pub(crate) use resolved::Resolved;

use crate::args::{Model, input};
use crate::step_args::{StepArgs, options_said};
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use combine::Combined;
use found::{Ask, Found};
use peakledger_input::{FIELDS_LIMIT, Fields, Input, Problem, Source, Syntax, quoted};
use reading::Reading;
use std::path::Path;

/// Configs to begin with.
#[derive(Args)]
pub(crate) struct FromArgs {
    /// Take the options of a training config: DeepSpeed, TrainingArguments, accelerate, Axolotl, LLaMA-Factory, torchtitan,
    /// Megatron, peft's adapters. May be repeated: later files win, and the command line wins over all
    #[arg(long = "from", value_name = "FILE", value_parser = input())]
    files: Vec<Input>,
    /// Whose config it is, whatever its keys tell; of several files, of those whose keys do not tell
    #[arg(long, value_enum, value_name = "KIND", requires = "files")]
    from_kind: Option<Kind>,
    /// Print the command line that plans the same without the files of --from, and do nothing else
    #[arg(long, requires = "files")]
    pub(crate) print_options: bool,
}

/// Whose config a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Deepspeed,
    TrainingArguments,
    Accelerate,
    Axolotl,
    LlamaFactory,
    Torchtitan,
    Megatron,
    Peft,
}

impl Kind {
    /// Those with the most telling keys first: others' keys are in them too.
    const ALL: [Kind; 8] = [
        Kind::Peft,
        Kind::Megatron,
        Kind::Torchtitan,
        Kind::LlamaFactory,
        Kind::Axolotl,
        Kind::Accelerate,
        Kind::Deepspeed,
        Kind::TrainingArguments,
    ];

    /// What people call it.
    const fn title(self) -> &'static str {
        match self {
            Kind::Deepspeed => "DeepSpeed",
            Kind::TrainingArguments => "TrainingArguments",
            Kind::Accelerate => "accelerate",
            Kind::Axolotl => "Axolotl",
            Kind::LlamaFactory => "LLaMA-Factory",
            Kind::Torchtitan => "torchtitan",
            Kind::Megatron => "Megatron",
            Kind::Peft => "peft",
        }
    }

    /// Keys, one of which tells it.
    const fn signs(self) -> &'static [&'static str] {
        match self {
            Kind::Deepspeed => deepspeed::SIGNS,
            Kind::TrainingArguments => training_arguments::SIGNS,
            Kind::Accelerate => accelerate::SIGNS,
            Kind::Axolotl => axolotl::SIGNS,
            Kind::LlamaFactory => llama_factory::SIGNS,
            Kind::Torchtitan => torchtitan::SIGNS,
            Kind::Megatron => megatron::SIGNS,
            Kind::Peft => peft::SIGNS,
        }
    }

    fn read(self, fields: &Fields, writing: Writing) -> Result<Found, Problem> {
        let mut reading = Reading::of(fields, writing == Writing::Arguments);
        match self {
            Kind::Deepspeed => deepspeed::read(&mut reading)?,
            Kind::TrainingArguments => training_arguments::read(&mut reading)?,
            Kind::Accelerate => accelerate::read(&mut reading)?,
            Kind::Axolotl => axolotl::read(&mut reading)?,
            Kind::LlamaFactory => llama_factory::read(&mut reading)?,
            Kind::Torchtitan => torchtitan::read(&mut reading)?,
            Kind::Megatron => megatron::read(&mut reading)?,
            Kind::Peft => peft::read(&mut reading)?,
        }
        Ok(reading.finish())
    }

    /// Whose config the keys are; those of arguments and of TOML are one kind's alone.
    fn of(fields: &Fields, writing: Writing) -> Option<Kind> {
        let can_be = |kind: &Kind| match writing {
            Writing::Arguments => *kind == Kind::Megatron,
            Writing::Keys(Syntax::Toml) => *kind == Kind::Torchtitan,
            Writing::Keys(_) => !matches!(kind, Kind::Megatron | Kind::Torchtitan),
        };
        let has = |sign: &&str| fields.get(&format!("/{sign}")).is_some();
        Kind::ALL.into_iter().filter(can_be).find(|kind| kind.signs().iter().any(has))
    }
}

/// How a file is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writing {
    Keys(Syntax),
    /// `--key value`
    Arguments,
}

impl Writing {
    fn of(text: &str, kind: Option<Kind>) -> Writing {
        let is_table =
            |line: &str| line.starts_with('[') && line.trim_end().ends_with(']') && !line.contains(',');
        match kind {
            Some(Kind::Megatron) => Writing::Arguments,
            Some(Kind::Torchtitan) => Writing::Keys(Syntax::Toml),
            _ if text.trim_start().starts_with('{') => Writing::Keys(Syntax::Json),
            // words of a comment or within a value are no arguments where the whole is keys with values
            None if megatron::is_arguments(text) && !has_keys(text) => Writing::Arguments,
            None if text.lines().any(is_table) => Writing::Keys(Syntax::Toml),
            _ => Writing::Keys(Syntax::Yaml),
        }
    }
}

/// Whether a text that is no script is keys with values.
fn has_keys(text: &str) -> bool {
    let is_of = |syntax| Fields::read(Source::from_text("", text), syntax).is_ok();
    !text.starts_with("#!") && (is_of(Syntax::Yaml) || is_of(Syntax::Toml))
}

/// Where a config has Megatron's options by the names that they have in Python, at its root or in a section of it.
fn python_names_of_megatron(fields: &Fields) -> Option<String> {
    let name = "tensor_model_parallel_size";
    let sections = fields.root().iter().filter(|(_, value)| value.get(name).is_some());
    let within = sections.map(|(section, _)| format!("/{section}/{name}"));
    let root = fields.root().contains_key(name).then(|| format!("/{name}"));
    root.into_iter().chain(within).find(|pointer| fields.get(pointer).is_some())
}

/// Reads a file. Its kind is what its keys tell, or else what is said; `said` alone where it decides.
fn read(source: Source, said: Option<Kind>, decides: bool) -> Result<(Kind, Found), Problem> {
    let decided = said.filter(|_| decides);
    let writing = Writing::of(source.text(), decided);
    let fields = match writing {
        Writing::Keys(syntax) => Fields::read(source, syntax)?,
        Writing::Arguments => megatron::fields(source),
    };
    let python = python_names_of_megatron(&fields).filter(|_| matches!(writing, Writing::Keys(_)));
    if let Some(pointer) = python {
        let problem = fields.problem_at(&pointer, "Megatron's options, but not as its command line has them");
        return Err(problem.mend("write them as arguments: `--tensor-model-parallel-size 4 …`"));
    }
    let Some(kind) = decided.or_else(|| Kind::of(&fields, writing)).or(said) else {
        return Err(unknown(&fields));
    };
    Ok((kind, kind.read(&fields, writing)?))
}

/// What is wrong with a file that is named as the model and is the config of a training run.
pub(crate) fn not_a_model(source: &Source) -> Option<Problem> {
    let writing = Writing::of(source.text(), None);
    let fields = match writing {
        Writing::Keys(syntax) => Fields::read(source.clone(), syntax).ok()?,
        Writing::Arguments => megatron::fields(source.clone()),
    };
    if ["/model_type", "/architectures", "/hidden_size"].iter().any(|key| fields.get(key).is_some()) {
        return None;
    }
    let kind = Kind::of(&fields, writing)?;
    let problem = fields.problem(format!("a training config ({}), not that of a model", kind.title()));
    let file = in_shell(source.name());
    Some(problem.mend(match kind.read(&fields, writing) {
        Ok(found) if found.model.is_some() => {
            format!("it names the model itself: `peakledger plan --from {file}`")
        }
        _ => format!("give it to `--from` and name a model: `peakledger plan MODEL --from {file}`"),
    }))
}

/// Whether both are one file, however they are written.
fn is_same(one: Option<&Path>, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    one.and_then(real).is_some_and(|one| real(other).as_ref() == Some(&one))
}

fn unknown(fields: &Fields) -> Problem {
    if fields.get("/model_type").is_some() && fields.get("/hidden_size").is_some() {
        let problem = fields.problem("a model's config, not that of a training run");
        return problem.mend("name it as the MODEL, without --from");
    }
    let kinds = Kind::ALL.map(Kind::title);
    let names: Vec<String> = Kind::value_variants()
        .iter()
        .filter_map(|kind| Some(format!("`{}`", kind.to_possible_value()?.get_name())))
        .collect();
    let problem = fields.problem("its keys are of no training config that is known");
    let mend =
        format!("known are {}; `--from-kind` says which it is: {}", kinds.join(", "), names.join(", "));
    problem.mend(mend)
}

/// The options of a step as the command line has them, and which of them it has.
#[derive(Clone)]
pub(crate) struct Given {
    pub(crate) step: StepArgs,
    matches: ArgMatches,
}

impl Given {
    /// The options that the command line says.
    pub(crate) fn options(&self) -> Vec<String> {
        options_said(&self.matches)
    }
}

impl Args for Given {
    fn group_id() -> Option<clap::Id> {
        StepArgs::group_id()
    }

    fn augment_args(command: Command) -> Command {
        StepArgs::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        StepArgs::augment_args_for_update(command)
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Given, clap::Error> {
        Given::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Given, clap::Error> {
        let all = matches.clone();
        Ok(Given { step: StepArgs::from_arg_matches_mut(matches)?, matches: all })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.step.update_from_arg_matches(matches)
    }
}

impl FromArgs {
    /// Whether there are files to begin with.
    pub(crate) fn is_given(&self) -> bool {
        !self.files.is_empty()
    }

    /// Reads the files and puts them together with the command line of a verb.
    pub(crate) fn resolve(
        &self,
        verb: &'static str,
        model: Option<&Model>,
        given: &Given,
        command: impl FnOnce() -> Command,
    ) -> Result<Resolved, Problem> {
        if self.files.is_empty() {
            let model = model.cloned().ok_or_else(|| {
                let problem = Problem::anywhere(format!("`peakledger {verb}` needs `MODEL`"));
                problem.mend(format!("it is written `peakledger {verb} MODEL`"))
            })?;
            return Ok(Resolved::of_command_line(model, given.step.clone()));
        }
        let on_input = self.files.iter().filter(|file| **file == Input::Stdin).count();
        if on_input + usize::from(model.is_some_and(|model| model.name() == "-")) > 1 {
            let problem = Problem::in_option("-", "standard input can only be read once");
            return Err(problem.mend("name a file for all but one of the inputs"));
        }
        let mut combined = Combined::default();
        for file in &self.files {
            let source = Source::read(file, FIELDS_LIMIT)?;
            self.take(&mut combined, source, file, self.from_kind)?;
        }
        combined.resolve(verb, model, given, &command())
    }

    /// Takes a file, and before it those that it names by their paths: what it says itself is nearer.
    fn take(
        &self,
        combined: &mut Combined,
        source: Source,
        file: &Input,
        kind: Option<Kind>,
    ) -> Result<(), Problem> {
        let name = source.name().to_owned();
        let (kind, mut found) = read(source, kind, self.files.len() == 1)?;
        for (path, origin) in std::mem::take(&mut found.further) {
            let beside = file.path().and_then(Path::parent).map(|folder| folder.join(&path));
            let paths = [Some(Path::new(&path).to_owned()), beside];
            let there = paths.into_iter().flatten().find(|path| path.is_file());
            match there {
                // it is given itself: it is read where it stands
                Some(there) if self.files.iter().any(|file| is_same(file.path(), &there)) => {}
                Some(there) if combined.has(&there) => {}
                Some(there) => {
                    let source = Source::open(&there, FIELDS_LIMIT)?;
                    let file = Input::File(there);
                    let name = source.name().to_owned();
                    let (kind, found) = read(source, Some(Kind::Deepspeed), true)?;
                    combined.take(name, kind, file, found)?;
                }
                None => found.asks.push(Ask {
                    option: "--zero",
                    origin,
                    cause: format!("there is no file {}", quoted(&path)),
                    of_you: false,
                }),
            }
        }
        combined.take(name, kind, file.clone(), found)
    }
}
