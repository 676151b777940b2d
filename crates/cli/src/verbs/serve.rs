//! `peakledger serve`: the page on this machine, with a planner whose knobs answer while they move.

use super::drawable::{self, Kind};
use crate::Answer;
use crate::args::input;
use crate::server::{Server, Shown};
use peakledger_input::{Binary, Input, MEASURED_LIMIT, Problem};
use peakledger_plan::catalogue::open_model;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};

/// Show a plan, a ledger or a measurement on a page of this machine, and plan with knobs; Ctrl-C ends it
#[derive(clap::Args)]
#[command(after_help = crate::examples::SERVE)]
pub(crate) struct Args {
    /// What to show: a ledger, a memory snapshot, a profiler's trace, a memory timeline, a config.json, or a model by name
    #[arg(value_parser = input())]
    what: Option<Input>,
    /// Do not open a browser
    #[arg(long)]
    no_open: bool,
    /// The port to listen at [default: a free one]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = crate::parsers::count::<u16>)]
    port: Option<u16>,
}

pub(crate) fn run(args: Args) -> Result<Answer, Problem> {
    let shown = args.what.as_ref().map(shown).transpose()?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port.unwrap_or(0)));
    let server = Server::listen(address, shown)?;
    let url = server.url();
    // the address is the answer; who closed standard output does not want it
    let _closed = writeln!(io::stdout(), "{url}");
    let _closed = writeln!(io::stderr(), "note: only this machine can open it; Ctrl-C ends it");
    if !args.no_open {
        open_browser(&url);
    }
    server.run();
    Ok(Answer::Given)
}

/// What the page shows first.
fn shown(input: &Input) -> Result<Shown, Problem> {
    let path = match input {
        Input::File(path) if !input.passes_once() => path,
        _ => {
            let name = if *input == Input::Stdin { "-".into() } else { input.name() };
            let problem =
                Problem::in_option(name, "a page that stays does not read standard input or a pipe");
            return Err(problem.mend("name a file"));
        }
    };
    if path.is_file() && Kind::of(&Binary::open(input, MEASURED_LIMIT)?) != Kind::Config {
        let (name, file) = drawable::open(input)?;
        return Ok(Shown::Ledger(name, Box::new(file)));
    }
    open_model(path)?;
    let name = path.to_str().ok_or_else(|| {
        let problem = Problem::in_file(input.name(), "the page names a model in text, and this path is none");
        problem.mend("rename the file")
    })?;
    Ok(Shown::Plan(name.to_owned()))
}

/// Asks the desktop for a browser; where there is none, the address is on the terminal.
fn open_browser(url: &str) {
    let (program, before): (&str, &[&str]) = match std::env::consts::OS {
        "macos" => ("open", &[]),
        "windows" => ("cmd", &["/C", "start", ""]),
        _ => ("xdg-open", &[]),
    };
    let mut command = Command::new(program);
    command.args(before).arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    drop(command.spawn());
}
