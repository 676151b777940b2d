//! Arguments that verbs share, and the plain requests that they become at once.

use crate::extension::Extension;
use crate::from::not_a_model;
use crate::output::{self, Output, Target};
use crate::question::Listener;
use clap::builder::{OsStringValueParser, PathBufValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use peakledger_allocator::Settings;
use peakledger_input::{Input, Place, Problem, Source};
use peakledger_plan::catalogue::{ModelFile, open_model};
use peakledger_plan::config::Architecture;
use peakledger_report::{Format, Look};
use std::borrow::Cow;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;

/// Where `--help` lists options of the verb's own that follow those of a step.
pub(crate) const IN_OPTIONS: Option<&str> = None;

/// Reads the name of an input: a file, or `-`.
pub(crate) fn input() -> impl TypedValueParser<Value = Input> {
    PathBufValueParser::new().map(Input::of)
}

/// Reads the name of an output: a file, or `-`.
pub(crate) fn target() -> impl TypedValueParser<Value = Target> {
    PathBufValueParser::new().map(Target::of)
}

/// The settings of the caching allocator, torch's own where none are said.
pub(crate) fn alloc_conf(text: Option<&str>) -> Result<Settings, Problem> {
    text.map_or_else(|| Ok(Settings::default()), str::parse)
        .map_err(|problem: Problem| problem.at(Place::Option("--alloc-conf".to_owned())))
}

/// A model as it is named, or its config as a program has it.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    name: OsString,
    given: Option<Source>,
}

impl Model {
    /// What it is called.
    pub(crate) fn name(&self) -> Cow<'_, str> {
        self.name.to_string_lossy()
    }

    /// The model by that name.
    pub(crate) fn named(name: impl Into<OsString>) -> Model {
        Model { name: name.into(), given: None }
    }

    /// Whether its config passes by and cannot be read again.
    pub(crate) fn passes_once(&self) -> bool {
        self.given.is_none() && Input::of(&self.name).passes_once()
    }

    /// Its config, if it was not read from where its name says.
    pub(crate) fn config(&self) -> Option<&Source> {
        self.given.as_ref()
    }

    /// Takes this config, whatever the name.
    pub(crate) fn give(&mut self, config: Source) {
        self.given = Some(config);
    }

    /// Its config, and the file that it was read from if an output could overwrite it.
    pub(crate) fn open(&self) -> Result<(ModelFile, Option<Input>), Problem> {
        if let Some(config) = &self.given {
            let name = config.name().to_owned();
            return Ok((ModelFile { name, config: config.clone(), path: None }, None));
        }
        let model = open_model(&self.name)?;
        let read_from = match Input::of(&self.name) {
            Input::Stdin => Some(Input::Stdin),
            Input::File(_) => model.path.clone().map(Input::File),
        };
        Ok((model, read_from))
    }
}

/// The architecture that a model's config describes; of a training config it is said where that goes.
pub(crate) fn architecture(config: &Source) -> Result<Architecture, Problem> {
    Architecture::read(config).map_err(|problem| not_a_model(config).unwrap_or(problem))
}

/// Reads the name of a model.
pub(crate) fn model() -> impl TypedValueParser<Value = Model> {
    OsStringValueParser::new().map(Model::named)
}

/// Where the answer goes and how it is written.
#[derive(Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// The format [default: table, or what the extension of --output names]
    #[arg(long, value_enum)]
    format: Option<FormatArg>,
    /// Write to this file, whole or not at all
    #[arg(short, long, value_name = "FILE", value_parser = target())]
    output: Option<Target>,
    /// Overwrite the file of --output
    #[arg(long)]
    force: bool,
    /// Draw tables in ASCII
    #[arg(long)]
    ascii: bool,
    #[arg(skip)]
    listener: Option<Listener>,
}

/// How much of long lists is shown.
#[derive(Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct ListArgs {
    /// Show all entries of long lists
    #[arg(long)]
    all: bool,
    /// Show this many entries of long lists
    #[arg(long, value_name = "N", default_value_t = 10, conflicts_with = "all", allow_negative_numbers = true, value_parser = crate::parsers::count::<usize>)]
    top: usize,
}

impl ListArgs {
    /// How many entries are shown; nothing for all of them.
    pub(crate) fn top(&self) -> Option<usize> {
        (!self.all).then_some(self.top)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FormatArg {
    Table,
    Json,
    Csv,
    Markdown,
    /// A page with pictures, in one file: of plan, show, compare and report
    Html,
}

impl OutputArgs {
    /// Checks what can be checked before the inputs are read: formats, the file to be written, standard input. For an answer
    /// without pictures.
    pub(crate) fn request(&self, inputs: &[&Input]) -> Result<Output, Problem> {
        if self.asked_for() != FormatArg::Html {
            return self.request_of(inputs, false);
        }
        let no_report = "there is no `html` report of this verb";
        Err(match self.format {
            Some(_) => {
                Problem::in_option("--format", no_report).mend("choose `table`, `json`, `csv` or `markdown`")
            }
            None => Problem::in_option("--output", no_report)
                .mend("name a file that ends in `.json`, `.csv` or `.md`, or add `--format`"),
        })
    }

    /// The same for an answer that has a page too.
    pub(crate) fn request_with_pictures(&self, inputs: &[&Input]) -> Result<Output, Problem> {
        self.request_of(inputs, true)
    }

    fn request_of(&self, inputs: &[&Input], has_pictures: bool) -> Result<Output, Problem> {
        if inputs.iter().filter(|input| ***input == Input::Stdin).count() > 1 {
            let problem = Problem::in_option("-", "standard input can only be read once");
            return Err(problem.mend("name a file for all but one of the inputs"));
        }
        let file = self.output.as_ref().and_then(Target::path);
        if let Some(path) = file {
            output::check_target("--output", path, self.force, inputs)?;
            let extension = Extension::of(path);
            extension.check_known(has_pictures)?;
            extension.check_format(&self.format.map_or(Extension::Open, FormatArg::extension))?;
        }
        if self.asked_for() == FormatArg::Html {
            self.check_no_terminal()?;
        }
        Ok(Output {
            format: match self.asked_for() {
                FormatArg::Table => Format::Table,
                FormatArg::Json => Format::Json,
                FormatArg::Csv => Format::Csv,
                FormatArg::Markdown => Format::Markdown,
                FormatArg::Html => Format::Html,
            },
            file: file.map(Path::to_owned),
            force: self.force,
            look: self.look(file.is_some()),
            listener: self.listener.clone(),
        })
    }

    /// The same for an answer that is a page where nothing else is asked for.
    pub(crate) fn request_of_page(&self, inputs: &[&Input]) -> Result<Output, Problem> {
        let mut output = self.request_with_pictures(inputs)?;
        if self.format.is_none() && output.format == Format::Table {
            output.format = Format::Html;
            let extension = output.file.as_deref().map_or(Extension::Open, Extension::of);
            extension.check_format(&Extension::Html)?;
            self.check_no_terminal()?;
        }
        Ok(output)
    }

    /// Refuses a page that would go to a terminal.
    fn check_no_terminal(&self) -> Result<(), Problem> {
        let is_file = self.output.as_ref().and_then(Target::path).is_some();
        if is_file || self.listener.is_some() || !std::io::stdout().is_terminal() {
            return Ok(());
        }
        let problem = Problem::in_option("--output", "a page is for a browser, not for a terminal");
        Err(problem.mend("name a file: `-o report.html`"))
    }

    fn asked_for(&self) -> FormatArg {
        let of_file = || self.output.as_ref().and_then(Target::path).map(FormatArg::of);
        self.format.or_else(of_file).unwrap_or(FormatArg::Table)
    }

    /// Tells the answer to a program.
    pub(crate) fn tell(&mut self, listener: &Listener) {
        self.listener = Some(listener.clone());
    }

    fn look(&self, to_file: bool) -> Look {
        let terminal = !to_file && std::io::stdout().is_terminal();
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let width = width(terminal);
        Look {
            width: width.unwrap_or(80).max(20),
            known_width: width.is_some(),
            terminal,
            color: terminal && !no_color && !dumb,
            ascii: self.ascii,
            ..Look::default()
        }
    }
}

impl FormatArg {
    /// The format that a file's name says; a table where it says none.
    fn of(path: &Path) -> FormatArg {
        match Extension::of(path) {
            Extension::Json => FormatArg::Json,
            Extension::Csv => FormatArg::Csv,
            Extension::Markdown => FormatArg::Markdown,
            Extension::Html => FormatArg::Html,
            Extension::Text | Extension::Foreign(_) | Extension::Open => FormatArg::Table,
        }
    }

    /// How files of the format end.
    fn extension(self) -> Extension {
        match self {
            FormatArg::Table => Extension::Text,
            FormatArg::Json => Extension::Json,
            FormatArg::Csv => Extension::Csv,
            FormatArg::Markdown => Extension::Markdown,
            FormatArg::Html => Extension::Html,
        }
    }
}

/// The columns that a table may take: as many as `COLUMNS` says, or as the terminal has.
fn width(terminal: bool) -> Option<usize> {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let measured = || terminal.then(terminal_size::terminal_size).flatten().map(|(w, _)| usize::from(w.0));
    said.or_else(measured)
}
