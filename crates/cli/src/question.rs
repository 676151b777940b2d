//! What the command line answers, for a program: the same words, and the answer as text instead of on standard output.

use crate::{Cli, usage, verbs};
use clap::{ArgAction, Command, CommandFactory, Parser};
use peakledger_input::{Problem, Source};
use peakledger_report::{Format, Look, Report, write};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

/// A question to one of the verbs.
pub struct Question {
    verb: verbs::Verb,
}

/// Whether the option of that name, which some verb has, stands without a value.
pub fn is_flag(name: &str) -> bool {
    let command = Cli::command();
    let mut options = command.get_subcommands().flat_map(Command::get_arguments);
    options.any(|option| {
        let needs_none = option.get_num_args().is_some_and(|values| values.min_values() == 0);
        option.get_long() == Some(name) && (needs_none || matches!(option.get_action(), ArgAction::SetTrue))
    })
}

/// The answer, as the command line writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// What `--format json` prints.
    pub json: String,
    /// The table, as it is written to a file: 80 columns, no colours.
    pub table: String,
}

/// Where an answer is heard.
pub(crate) type Listener = Rc<RefCell<Heard>>;

impl Question {
    /// The question that the words ask: a verb, and its arguments and options as the command line has them.
    ///
    /// # Errors
    /// What the command line says of words that it does not understand.
    pub fn of(words: &[String]) -> Result<Question, Problem> {
        let name = "peakledger".to_owned();
        match Cli::try_parse_from(std::iter::once(&name).chain(words)) {
            Ok(cli) => Ok(Question { verb: cli.verb }),
            Err(error) => {
                let verb = words.first().map(std::ffi::OsString::from);
                Err(usage::problem(&error, &Cli::command(), verb.as_ref()))
            }
        }
    }

    /// About the model of this config, whatever model the words name.
    #[must_use]
    pub fn about(mut self, config: Source) -> Question {
        if let Some(model) = self.verb.model() {
            model.give(config);
        }
        self
    }

    /// Asks it.
    ///
    /// # Errors
    /// What the verb says of its inputs.
    pub fn ask(mut self) -> Result<Heard, Problem> {
        let listener = Listener::default();
        let Some(output) = self.verb.output() else {
            return Err(Problem::anywhere("a page that stays is no answer").mend("ask another verb"));
        };
        output.tell(&listener);
        verbs::run(self.verb)?;
        Ok(listener.take())
    }
}

impl Heard {
    /// Hears a report.
    pub(crate) fn hear(&mut self, report: &dyn Report) -> io::Result<()> {
        let text = |format| {
            let mut text = Vec::new();
            write(report, format, &Look::default(), &mut text)?;
            String::from_utf8(text).map_err(io::Error::other)
        };
        *self = Heard { json: text(Format::Json)?, table: text(Format::Table)? };
        Ok(())
    }
}
