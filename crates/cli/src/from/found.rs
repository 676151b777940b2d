//! What a config says, once it is read: options with where they came from, questions, and what is left out.

use super::command;
use peakledger_input::{Place, Problem, Source};
use peakledger_plan::config::Architecture;

/// Where an option came from.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) file: String,
    /// Nothing for what the file leaves out.
    pub(super) place: Option<Place>,
    /// The key, or why what was left out means something.
    pub(super) key: String,
}

/// An option of the plan.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) option: &'static str,
    pub(super) value: String,
    pub(super) origin: Origin,
    /// The file does not say so: whoever reads it there does it by default.
    pub(super) implied: bool,
    /// Where it follows from the model: how. Its value is open until the model is known.
    pub(super) by_model: Option<ByModel>,
}

/// The value that an option has for a model, if it has one.
pub(super) type ByModel = fn(&Architecture) -> Option<String>;

/// Something that a file asks for and the plan leaves out or does otherwise.
#[derive(Clone, Debug)]
pub(super) struct LeftOut {
    pub(super) origin: Origin,
    pub(super) what: String,
    /// The option that plans it: where somebody else says that, nothing is left out.
    pub(super) option: Option<&'static str>,
}

/// A key that nobody here knows.
#[derive(Debug)]
pub(super) struct Unread {
    pub(super) origin: Origin,
    /// The key that it may be a slip for.
    pub(super) meant: Option<String>,
}

/// An option without which the plan would be a guess.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) option: &'static str,
    pub(super) origin: Origin,
    pub(super) cause: String,
    /// Whether the command line alone answers it, and no file.
    pub(super) of_you: bool,
}

/// A model that a file names or spells out.
#[derive(Debug)]
pub(super) enum ModelAsked {
    Named(String),
    Config(Source),
}

/// What a file says.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) settings: Vec<Setting>,
    pub(super) asks: Vec<Ask>,
    /// What cannot be, whoever answers what.
    pub(super) refused: Vec<Problem>,
    pub(super) not_read: Vec<Unread>,
    pub(super) not_planned: Vec<LeftOut>,
    pub(super) model: Option<(ModelAsked, Origin)>,
    /// Sequences of a whole step, of all ranks.
    pub(super) samples: Option<(u64, Origin)>,
    /// Configs that it names by their paths.
    pub(super) further: Vec<(String, Origin)>,
    /// Whether DeepSpeed runs the step, which keeps types its own way.
    pub(super) is_deepspeed: bool,
    /// Whether DeepSpeed runs it under torch's autocast, which leaves types as they are.
    pub(super) autocasts: bool,
    /// Whether accelerate shards it by FSDP2, which reduces gradients in the type that is computed in.
    pub(super) reduces_as_computed: bool,
    /// Whether whoever shards it by FSDP leaves weights in the type that they were loaded in.
    pub(super) shards_as_loaded: bool,
}

impl Origin {
    pub(super) fn line(&self) -> Option<usize> {
        match self.place {
            Some(Place::Text { line, .. }) => Some(line),
            _ => None,
        }
    }

    /// A problem there.
    pub(super) fn problem(&self, cause: impl Into<String>) -> Problem {
        let mut problem = Problem::in_file(&self.file, cause);
        problem.place = self.place.clone();
        problem
    }
}

impl Setting {
    /// As a command line has it.
    pub(super) fn written(&self) -> String {
        command::written(self.option, Some(&self.value)).join(" ")
    }

    /// What is wrong with the option, said of the key that set it.
    pub(super) fn located(&self, problem: Problem) -> Problem {
        let cause = format!("as `{}`: {}", self.written(), problem.cause);
        let mend = problem.mend.map_or_else(String::new, |mend| format!("{mend}; "));
        self.origin.problem(cause).mend(format!("{mend}an option on the command line wins over the file"))
    }
}
