//! Several configs and the command line as one list of options: who wins, what follows from several, what is still asked.

use super::found::{Ask, Found, LeftOut, ModelAsked, Origin, Setting, Unread};
use super::{Given, Kind, Resolved, command, is_same};
use crate::args::{self, Model};
use crate::parsers::is_without;
use crate::step_args::StepArgs;
use clap::{Command, FromArgMatches};
use peakledger_input::{Input, Problem};
use peakledger_report::{NotPlanned, NotRead, OriginFile, OriginKey, OriginOption, Origins};
use std::path::Path;

/// The options of the command line, each with its value if it has one.
pub(super) type Said = [(String, Option<String>)];

/// What the files said, the later ones over the earlier.
#[derive(Default)]
pub(super) struct Combined {
    pub(super) files: Vec<(String, Kind, Input)>,
    pub(super) settings: Vec<Setting>,
    pub(super) asks: Vec<Ask>,
    pub(super) refused: Vec<Problem>,
    not_read: Vec<Unread>,
    not_planned: Vec<LeftOut>,
    model: Option<(ModelAsked, Origin)>,
    pub(super) samples: Option<(u64, Origin)>,
    is_deepspeed: bool,
    autocasts: bool,
    reduces_as_computed: bool,
    shards_as_loaded: bool,
}

/// What no longer holds where another file or the command line says an option.
fn displaced(option: &str) -> &[&str] {
    match option {
        "--optimizer" => &["--optimizer-impl", "--momentum"],
        "--precision" => &["--weights-dtype", "--master-weights", "--grad-dtype"],
        "--quantize" => &["--prepare-for-kbit"],
        "--gradient-checkpointing" => &["--recompute"],
        "--fsdp" => &[
            "--reduce-dtype",
            "--fsdp-wrap",
            "--zero",
            "--zero-reduce-bucket-size",
            "--zero-overlap-comm",
            "--zero-prefetch-bucket-size",
            "--zero-param-persistence-threshold",
            "--zero-max-live-parameters",
            "--zero-sub-group-size",
        ],
        "--zero" => &[
            "--fsdp",
            "--reduce-dtype",
            "--fsdp-wrap",
            "--zero-prefetch-bucket-size",
            "--zero-param-persistence-threshold",
            "--zero-max-live-parameters",
            "--zero-sub-group-size",
        ],
        _ => &[],
    }
}

impl Combined {
    /// Takes what one more file says.
    pub(super) fn take(
        &mut self,
        name: String,
        kind: Kind,
        file: Input,
        found: Found,
    ) -> Result<(), Problem> {
        for setting in found.settings.iter().filter(|setting| !setting.implied) {
            for other in [("--zero", "--fsdp"), ("--fsdp", "--zero")] {
                let clash =
                    |known: &&Setting| setting.option == other.0 && known.option == other.1 && !known.implied;
                if let Some(known) = self.settings.iter().find(clash) {
                    let cause = format!(
                        "it asks for `{}`, and {} for `{}`",
                        setting.written(),
                        known.origin.file,
                        known.written()
                    );
                    let mut problem = Problem::in_file(&setting.origin.file, cause);
                    problem.place = setting.origin.place.clone();
                    return Err(problem.mend("a run is sharded by one of the two: leave one file out"));
                }
            }
            let goes = |known: &Setting| {
                known.option == setting.option || displaced(setting.option).contains(&known.option)
            };
            self.settings.retain(|known| !goes(known));
            self.not_planned.retain(|left_out| left_out.option != Some(setting.option));
        }
        for setting in found.settings {
            let is_led =
                |known: &Setting| !known.implied && displaced(known.option).contains(&setting.option);
            let is_said = |known: &Setting| !known.implied && known.option == setting.option;
            // what a trainer does by itself is nearer than what accelerate launches it with
            let is_nearer = |known: &Setting| kind == Kind::Accelerate && known.option == setting.option;
            if setting.implied
                && self.settings.iter().any(|known| {
                    known.origin.file != setting.origin.file
                        && (is_led(known) || is_said(known) || is_nearer(known))
                })
            {
                continue;
            }
            self.settings.retain(|known| known.option != setting.option);
            self.settings.push(setting);
        }
        self.asks.extend(found.asks);
        self.refused.extend(found.refused);
        self.not_read.extend(found.not_read);
        self.not_planned.extend(found.not_planned);
        self.model = found.model.or(self.model.take());
        self.samples = found.samples.or(self.samples.take());
        self.is_deepspeed |= found.is_deepspeed;
        self.autocasts |= found.autocasts;
        self.reduces_as_computed |= found.reduces_as_computed;
        self.shards_as_loaded |= found.shards_as_loaded;
        self.files.push((name, kind, file));
        Ok(())
    }

    /// Whether that file was taken already.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.files.iter().any(|(_, _, file)| is_same(file.path(), path))
    }

    /// The whole, with the command line, whose options win.
    pub(super) fn resolve(
        mut self,
        verb: &'static str,
        model: Option<&Model>,
        given: &Given,
        command: &Command,
    ) -> Result<Resolved, Problem> {
        let said = command::given(&given.matches, command);
        self.answer_refused(&said)?;
        let is_said = |option: &str| said.iter().any(|(known, _)| known == option);
        if self.is_deepspeed && !self.autocasts && !is_said("--precision") {
            self.without_autocast();
        }
        for (option, _) in &said {
            let more: &[&str] = match option.as_str() {
                "--gpus" => &["--dp"],
                "--dp" => &["--gpus"],
                option => displaced(option),
            };
            self.settings.retain(|known| known.option != option && !more.contains(&known.option));
            self.not_planned.retain(|left_out| left_out.option != Some(option));
        }
        self.whole_batch(&said)?;
        self.drop_what_goes_with_nothing(&said);
        let model = self.model_of(verb, model)?;
        self.answer_asks(&said, model.is_some())?;
        let mut model = model.ok_or_else(|| self.no_model(verb))?;
        self.answer_by_model(&mut model)?;

        let mut step = StepArgs::default();
        for setting in &self.settings {
            let words = [format!("{}={}", setting.option, setting.value)];
            step.change(words).map_err(|problem| setting.located(problem))?;
        }
        // what the command line says was read once already
        step.update_from_arg_matches(&given.matches).map_err(|error| Problem::anywhere(error.to_string()))?;

        let command = command::line(verb, &model, &self.settings, &said);
        let origins = self.origins(command);
        let inputs = self.files.into_iter().map(|(_, _, file)| file).collect();
        Ok(Resolved { model, step, origins: Some(origins), inputs, settings: self.settings })
    }

    /// Under DeepSpeed there is no autocast but the one that its config asks for: weights are in the half type, and copies of them in fp32 are stepped.
    fn without_autocast(&mut self) {
        let half = |value: &str| match value {
            "bf16-mixed" => Some("bf16"),
            "fp16-mixed" => Some("fp16"),
            _ => None,
        };
        let Some(setting) = self.settings.iter_mut().find(|setting| setting.option == "--precision") else {
            return;
        };
        if let Some(half) = half(&setting.value) {
            half.clone_into(&mut setting.value);
            let origin = Origin {
                key: "DeepSpeed's optimizer steps fp32 copies".to_owned(),
                place: None,
                ..setting.origin.clone()
            };
            self.settings.retain(|setting| {
                setting.option != "--weights-dtype" && setting.option != "--master-weights"
            });
            let value = "fp32".to_owned();
            let option = "--master-weights";
            self.settings.push(Setting { option, value, origin, implied: true, by_model: None });
        }
    }

    /// ZeRO's partitions are the copies: a plan of it has them in fp32 where the precision is mixed.
    fn copies_of_zero(&mut self, said: &Said) {
        let are_fp32 = |it: &Setting| it.implied && it.option == "--master-weights" && it.value == "fp32";
        if !self.settings.iter().any(are_fp32) || said.iter().any(|(option, _)| option == "--precision") {
            return;
        }
        let precision = self.settings.iter_mut().find(|setting| setting.option == "--precision");
        if let Some(half) = precision.filter(|setting| matches!(setting.value.as_str(), "bf16" | "fp16")) {
            half.value.push_str("-mixed");
        }
    }

    /// accelerate makes what is trained fp32 before it shards, whatever type it was loaded in (`fsdp2_prepare_model`; for FSDP1
    /// `prepare_model`).
    fn raise_what_is_trained(&mut self) {
        self.settings.retain(|setting| !(setting.implied && setting.option == "--weights-dtype"));
        let loaded = self.settings.iter_mut().find(|setting| setting.option == "--weights-dtype");
        if let Some(loaded) = loaded.filter(|loaded| loaded.value != "fp32") {
            let key = format!("{}: accelerate makes it fp32 before it shards", loaded.origin.key);
            (loaded.value, loaded.by_model) = ("fp32".to_owned(), None);
            loaded.origin.key = key;
        }
    }

    /// accelerate reduces gradients in the type that is computed in (`set_mixed_precision` of `FullyShardedDataParallelPlugin`),
    /// torch by itself in that of the shards.
    fn reduce_as_computed(&mut self, said: &Said) {
        let option = "--reduce-dtype";
        if !self.reduces_as_computed || self.value(option, said).is_some() {
            return;
        }
        let precision =
            self.value("--precision", said).and_then(|precision| precision.strip_suffix("-mixed"));
        let Some(half) = precision.map(str::to_owned) else { return };
        let sharding = self.settings.iter().find(|setting| setting.option == "--fsdp");
        let file = sharding.map(|setting| setting.origin.file.clone());
        let file = file.or_else(|| self.files.first().map(|(name, ..)| name.clone())).unwrap_or_default();
        let key = "accelerate reduces gradients in the type of the precision".to_owned();
        let origin = Origin { file, place: None, key };
        self.settings.push(Setting { option, value: half, origin, implied: true, by_model: None });
    }

    /// Adapters, and an optimizer on the host, are stepped without copies on the card; ZeRO has copies by itself. Megatron's Adam
    /// has one implementation.
    fn drop_what_goes_with_nothing(&mut self, said: &Said) {
        let lora = self.is_on("--lora", said);
        let on_host = self
            .value("--offload", said)
            .is_some_and(|parts| parts.contains("optimizer") || parts.contains("parameters"));
        let is_megatron = self.value("--stack", said) == Some("megatron");
        let is_zero = self.is_on("--zero", said) && !is_megatron;
        if is_megatron {
            self.settings.retain(|setting| !(setting.implied && setting.option == "--optimizer-impl"));
            // Megatron turns it off where nothing is split (`validate_args`)
            let splits = self.number("--tp", said).is_some_and(|ranks| ranks > 1);
            self.settings.retain(|setting| setting.option != "--sp" || splits);
        }
        if is_zero {
            self.copies_of_zero(said);
        }
        // one rank reduces nothing, and ZeRO and Megatron reduce their own way
        let is_ddp = !is_zero && !is_megatron && self.data_parallel(said).is_some_and(|ranks| ranks > 1);
        if !is_ddp && !self.is_on("--fsdp", said) {
            self.settings.retain(|setting| setting.option != "--sync-each-batch");
        }
        let is_mixed = self.value("--precision", said).is_some_and(|precision| precision.ends_with("-mixed"));
        if self.is_on("--fsdp", said) && is_mixed {
            if !lora && !self.shards_as_loaded {
                self.raise_what_is_trained();
            }
            self.reduce_as_computed(said);
        }
        // DeepSpeed casts the whole model
        if self.is_deepspeed && !self.autocasts {
            self.settings.retain(|setting| !(setting.implied && setting.option == "--weights-dtype"));
        }
        // transformers and accelerate put DeepSpeedCPUAdam in the place of what was asked for (`deepspeed_optim_sched`,
        // `map_pytorch_optim_to_deepspeed`), and DeepSpeed itself takes it for Adam (`_configure_basic_optimizer`)
        if on_host && is_zero {
            self.settings.retain(|setting| setting.option != "--optimizer-impl" || !setting.implied);
        }
        if lora || on_host || is_zero {
            let copies = |setting: &Setting| {
                setting.implied && matches!(setting.option, "--master-weights" | "--grad-dtype")
            };
            self.settings.retain(|setting| !copies(setting));
        }
    }

    /// Fills in what follows from the model; an option that this model has no value for is left to its default.
    fn answer_by_model(&mut self, model: &mut Model) -> Result<(), Problem> {
        if self.settings.iter().all(|setting| setting.by_model.is_none()) {
            return Ok(());
        }
        let passes_once = model.passes_once();
        let (file, _) = model.open()?;
        let architecture = args::architecture(&file.config)?;
        if passes_once {
            model.give(file.config);
        }
        self.settings.retain_mut(|setting| match setting.by_model.map(|value| value(&architecture)) {
            Some(None) => false,
            Some(Some(value)) => {
                setting.value = value;
                true
            }
            None => true,
        });
        Ok(())
    }

    /// What an option is, on the command line or else in a file.
    pub(super) fn value<'a>(&'a self, option: &str, said: &'a Said) -> Option<&'a str> {
        let on_line = said
            .iter()
            .find(|(known, _)| known == option)
            .map(|(_, value)| value.as_deref().unwrap_or("true"));
        let in_file = self
            .settings
            .iter()
            .find(|setting| setting.option == option)
            .map(|setting| setting.value.as_str());
        on_line.or(in_file)
    }

    /// Whether an option is there that is not one to go without.
    fn is_on(&self, option: &str, said: &Said) -> bool {
        self.value(option, said).is_some_and(|value| !is_without(value) && value != "0")
    }

    pub(super) fn number(&self, option: &str, said: &Said) -> Option<u64> {
        self.value(option, said).and_then(|value| value.parse().ok())
    }

    fn model_of(&mut self, verb: &str, model: Option<&Model>) -> Result<Option<Model>, Problem> {
        if let Some(model) = model {
            return Ok(Some(model.clone()));
        }
        Ok(match self.model.take() {
            None => None,
            Some((ModelAsked::Named(name), origin)) => {
                let model = Model::named(&name);
                if name == "-" || name.is_empty() {
                    let problem = origin.problem("no name of a model");
                    return Err(problem.mend(format!("name it: `peakledger {verb} MODEL --from FILE`")));
                }
                // so that who does not find it hears which file asks for it
                let found = model.open().map_err(|problem| {
                    let mend = problem.mend.map(|mend| format!("{mend}; ")).unwrap_or_default();
                    let named = format!("`peakledger {verb} MODEL --from FILE` takes another model");
                    origin.problem(problem.cause).mend(mend + &named)
                });
                found.map(|_| Some(model))?
            }
            Some((ModelAsked::Config(config), origin)) => {
                let mut model = Model::named(&origin.file);
                model.give(config);
                Some(model)
            }
        })
    }

    fn no_model(&self, verb: &str) -> Problem {
        let files: Vec<&str> = self.files.iter().map(|(name, ..)| name.as_str()).collect();
        let problem = Problem::in_file(files.join(", "), "no model is named");
        problem.mend(format!("name one: `peakledger {verb} MODEL --from FILE`"))
    }

    fn origins(&self, command: String) -> Origins {
        let key = |origin: &Origin| OriginKey {
            file: origin.file.clone(),
            line: origin.line(),
            key: origin.key.clone(),
        };
        let files =
            self.files.iter().map(|(file, kind, _)| OriginFile { file: file.clone(), kind: kind.title() });
        let options = self.settings.iter().map(|setting| OriginOption {
            option: setting.option,
            value: setting.value.clone(),
            written: setting.written(),
            origin: key(&setting.origin),
        });
        let not_planned = self.not_planned.iter();
        let not_planned =
            not_planned.map(|left| NotPlanned { origin: key(&left.origin), what: left.what.clone() });
        Origins {
            files: files.collect(),
            options: options.collect(),
            not_read: self
                .not_read
                .iter()
                .map(|unread| NotRead { origin: key(&unread.origin), meant: unread.meant.clone() })
                .collect(),
            not_planned: not_planned.collect(),
            command,
        }
    }
}
