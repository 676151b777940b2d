//! What is asked once configs and the command line are one, and who is told what is wrong with it.

use super::found::Setting;
use super::{Given, command};
use crate::Answer;
use crate::args::Model;
use crate::step_args::StepArgs;
use clap::{Arg, Args, Command};
use peakledger_input::{Input, Place, Problem, Source};
use peakledger_report::Origins;
use std::io::{self, Write};

/// What is asked, with everything that was read.
pub(crate) struct Resolved {
    pub(crate) model: Model,
    pub(crate) step: StepArgs,
    pub(crate) origins: Option<Origins>,
    /// The files that were read.
    pub(crate) inputs: Vec<Input>,
    pub(super) settings: Vec<Setting>,
}

impl Resolved {
    /// Without any file.
    pub(super) fn of_command_line(model: Model, step: StepArgs) -> Resolved {
        Resolved { model, step, origins: None, inputs: Vec::new(), settings: Vec::new() }
    }

    /// Prints the command line that plans the same without the files.
    pub(crate) fn print(&self) -> Result<Answer, Problem> {
        let line = self.origins.as_ref().map(|origins| origins.command.as_str()).unwrap_or_default();
        match writeln!(io::stdout(), "{line}") {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Problem::anywhere(error.to_string()))
            }
            _ => Ok(Answer::Given),
        }
    }

    /// The line that plans this step on the same card, without the files and without the options that vary, which are to
    /// follow. A model that passes by once is written out.
    pub(crate) fn plan_without(&self, given: &Given, config: &Source, vary: &[String]) -> String {
        let follows = |option: &str| {
            let name = match option.trim_start_matches("--") {
                "gradient-checkpointing" => "recompute",
                name => name,
            };
            name == "gradient-accumulation-steps" || vary.iter().any(|varied| varied == name)
        };
        let of_plan = StepArgs::augment_args(Command::new("plan"))
            .args([Arg::new("gpu").long("gpu"), Arg::new("alloc_conf").long("alloc-conf")]);
        let mut said = command::given(&given.matches, &of_plan);
        said.retain(|(option, _)| !follows(option));
        let settings: Vec<Setting> =
            self.settings.iter().filter(|setting| !follows(setting.option)).cloned().collect();
        let mut model = self.model.clone();
        if model.passes_once() {
            model.give(config.clone());
        }
        command::line("plan", &model, &settings, &said)
    }

    /// What is wrong with the step, said of the file that asked for it where one did.
    pub(crate) fn blame(&self, problem: Problem) -> Problem {
        let Some(Place::Option(option)) = &problem.place else { return problem };
        match self.settings.iter().find(|setting| setting.option == option) {
            Some(setting) => setting.located(problem),
            None => problem,
        }
    }
}
