//! What is asked once configs and the command line are one, and who is told what is wrong with it.

use super::found::{Origin, Setting};
use super::{Given, command};
use crate::Answer;
use crate::args::Model;
use crate::step_args::{Said, StepArgs};
use crate::usage::Asker;
use clap::{Arg, Args, Command};
use peakledger_input::{Input, Place, Problem, Source, quoted};
use peakledger_report::{Fixed, Origins};
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

    /// The line that plans this step on the same card with these options of a candidate, without the files.
    pub(crate) fn plan_with(&self, given: &Given, config: &Source, options: &str) -> String {
        let words = || options.split_whitespace();
        let said = Said::of(words().map(str::to_owned), Asker::Step("a candidate"));
        let changed = said.map(|said| said.options()).unwrap_or_default();
        let line = self.plan_without(given, config, &changed);
        words().fold(line, |line, word| format!("{line} {}", command::in_shell(word)))
    }

    /// The line that plans this step on the same card, without the files and without the options that vary, which are to
    /// follow. A model that passes by once is written out.
    pub(crate) fn plan_without(&self, given: &Given, config: &Source, vary: &[String]) -> String {
        let follows = |option: &str| {
            let name = match option.trim_start_matches("--") {
                "gradient-checkpointing" => "recompute",
                name => name,
            };
            vary.iter().any(|varied| varied == name)
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

    /// The options that files say, by their own names.
    pub(crate) fn options_of_files(&self) -> Vec<&'static str> {
        self.settings.iter().map(|setting| setting.option.trim_start_matches("--")).collect()
    }

    /// What of the options that a search may vary under a name is said already, and by whom.
    pub(crate) fn fixed(&self, name: &str, sets: &[&str], given: &Given) -> Option<Fixed> {
        let of_step = StepArgs::augment_args(Command::new("step"));
        let is_set = |option: &str| {
            let option = option.trim_start_matches("--");
            sets.contains(&option) || option == "gradient-checkpointing" && sets.contains(&"recompute")
        };
        let on_line = command::given(&given.matches, &of_step);
        let on_line: Vec<String> = on_line
            .into_iter()
            .filter(|(option, _)| is_set(option))
            .flat_map(|(option, value)| command::written(&option, value.as_deref()))
            .collect();
        if !on_line.is_empty() {
            return Some(Fixed { name: name.to_owned(), options: on_line.join(" "), by: None });
        }
        let in_files: Vec<&Setting> = self.settings.iter().filter(|setting| is_set(setting.option)).collect();
        let by = in_files.first()?.origin.file.clone();
        let written: Vec<String> = in_files.into_iter().map(Setting::written).collect();
        Some(Fixed { name: name.to_owned(), options: written.join(" "), by: Some(by) })
    }

    /// What is wrong with the step, said of the file that asked for it where one did.
    pub(crate) fn blame(&self, problem: Problem) -> Problem {
        let Some(Place::Option(option)) = &problem.place else { return problem };
        let others = self.keys_of(&problem, option);
        let blamed = match self.settings.iter().find(|setting| setting.option == option) {
            Some(setting) => setting.located(problem),
            None => problem,
        };
        match (others, &blamed.mend) {
            (Some(others), Some(mend)) => {
                let mend = format!("{mend}; {others}");
                blamed.mend(mend)
            }
            _ => blamed,
        }
    }

    /// Who reads of options that no command line has is told by which keys files said them: `--grad-dtype fp32 is
    /// data_types.grad_accum_dtype (line 4)`. Of the option that is blamed its place is told anyway.
    fn keys_of(&self, problem: &Problem, blamed: &str) -> Option<String> {
        let text = format!("{} {}", problem.cause, problem.mend.as_deref().unwrap_or_default());
        let is_named = |option: &str| {
            let word = |c: char| c.is_whitespace() || "`,;:.()".contains(c);
            text.split(word).any(|word| word == option)
        };
        let named = self.settings.iter().filter(|it| it.option != blamed && is_named(it.option));
        let said = named.map(|setting| {
            let Origin { file, key, .. } = &setting.origin;
            let line = setting.origin.line().map(|line| format!(":{line}")).unwrap_or_default();
            format!("`{}` is {} in {file}{line}", setting.written(), quoted(key))
        });
        let said: Vec<String> = said.collect();
        (!said.is_empty()).then(|| said.join(", "))
    }
}
