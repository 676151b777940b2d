//! The server of the local page: it listens to this machine alone, under a path that nobody can guess, and answers with the
//! documents that the page draws.
//!
//! A planned step is asked for by the words of its command line, so the page shows what the command shows, and the words that
//! it offers to copy are those that made it.

use crate::http::{Admission, Head, Listener, Request, Response};
use crate::output;
use crate::usage::{self, Asker};
use crate::verbs::drawable::{self, Kind};
use crate::verbs::plan::{self, Planned, Question};
use clap::{CommandFactory, Parser};
use peakledger_core::document::LedgerFile;
use peakledger_input::{Binary, Problem, Source};
use peakledger_plan::catalogue::{ModelFile, cards, models, open_model};
use peakledger_report::html::{Page, write_document, write_served_page};
use peakledger_report::{Report, ShowReport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// The largest file that the page may hand over; a larger one is drawn by the command line.
const LARGEST_FILE: u64 = 1 << 30;
/// The largest question.
const LARGEST_QUESTION: u64 = 1 << 20;

/// What the page shows first.
pub(crate) enum Shown {
    /// The plan of a model, by its name on the command line.
    Plan(String),
    /// A ledger, or a measurement that became one.
    Ledger(String, Box<LedgerFile>),
}

/// The server and what it was given.
pub(crate) struct Server {
    http: Listener,
    token: Arc<str>,
    shown: Option<Shown>,
    /// Configs that were dropped on the page, by name.
    configs: Mutex<BTreeMap<String, Vec<u8>>>,
}

/// An answer: its type and its bytes.
type Body = (&'static str, Vec<u8>);

const JSON: &str = "application/json";

impl Server {
    /// Listens at an address of this machine.
    pub(crate) fn listen(address: SocketAddr, shown: Option<Shown>) -> Result<Server, Problem> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| Problem::anywhere(format!("no random numbers: {error}")))?;
        let token: Arc<str> = random.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into();
        let known = token.clone();
        let http =
            Listener::bind(address, move |head, own| admission(head, &known, own)).map_err(|error| {
                let problem = Problem::in_option("--port", format!("cannot listen at {address}: {error}"));
                problem.mend("leave `--port` out: a free one is taken")
            })?;
        Ok(Server { http, token, shown, configs: Mutex::default() })
    }

    /// Where a browser finds the page.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/{}/", self.http.address, self.token)
    }

    /// Answers until the process ends: two at a time and more where there are cores, so that a knob does not wait for an answer
    /// that its move made obsolete.
    pub(crate) fn run(&self) {
        let answer = || {
            while let Some(request) = self.http.next() {
                let response = self.respond(&request);
                request.answer(&response);
            }
        };
        let answering = thread::available_parallelism().map_or(1, NonZero::get).max(2);
        thread::scope(|scope| (0..answering).for_each(|_| drop(scope.spawn(answer))));
    }

    fn respond(&self, request: &Request) -> Response {
        let (asked, query) = asked(&request.head, &self.token).unwrap_or_default();
        let answer = match (request.head.method.as_str(), asked) {
            ("GET", "") => self.page(),
            ("POST", "plan") => self.planned(&request.body).and_then(|planned| document(&planned.report())),
            ("POST", "moving") => self.planned(&request.body).and_then(|planned| {
                written(&planned.report().page_in_motion().map_err(|error| fault(&error))?)
            }),
            ("POST", "ledger") => self.planned(&request.body).and_then(|planned| {
                let mut out = Vec::new();
                output::write_ledger(&planned.ledger()?, &mut out).map_err(|error| fault(&error))?;
                Ok((JSON, out))
            }),
            ("POST", "open") => self.open(&request.body, query),
            _ => return not_found(),
        };
        match answer {
            Ok((kind, body)) => Response { status: 200, kind, body },
            Err(problem) => refused(&problem),
        }
    }

    fn page(&self) -> Result<Body, Problem> {
        let shown = match &self.shown {
            Some(Shown::Ledger(name, file)) => {
                ShowReport { name, file }.page().map_err(|error| fault(&error))?
            }
            _ => None,
        };
        let model = match &self.shown {
            Some(Shown::Plan(model)) => Some(model.as_str()),
            _ => None,
        };
        let can = Can {
            model,
            models: models().iter().map(|model| model.name.as_str()).collect(),
            gpus: cards().map(|card| card.name.as_str()).collect(),
            largest_file: LARGEST_FILE,
        };
        let mut out = Vec::new();
        write_served_page(shown.as_ref(), &can, &mut out).map_err(|error| fault(&error))?;
        Ok(("text/html; charset=utf-8", out))
    }

    fn configs(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.configs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans what the words of a command line ask.
    fn planned(&self, question: &[u8]) -> Result<Planned, Problem> {
        let asked = Source::from_bytes("the page's question", question.to_vec())?;
        let Asked { words } = peakledger_input::json::parse(&asked)?;
        let Words { plan: args } = Words::try_parse_from(words)
            .map_err(|error| usage::explained(&error, &Words::command(), Asker::Verb("plan")))?;
        if args.from.is_given() {
            let problem = Problem::in_option("--from", "the page does not read files");
            return Err(problem.mend("`peakledger plan --from FILE --print-options` writes what they say"));
        }
        let question = Question::of(&args)?;
        let name = question.asked.model.name();
        let dropped = self.configs().get(&*name).cloned();
        let model = match dropped {
            Some(config) => {
                let config = Source::from_bytes(&*name, config)?;
                ModelFile { name: name.into_owned(), config, path: None }
            }
            None if question.asked.model.passes_once() => {
                let problem = Problem::in_option(name, "the page does not read standard input or a pipe");
                return Err(problem.mend("name a model"));
            }
            None => open_model(&*name)?,
        };
        Planned::of(&args, &question, model)
    }

    /// Draws a file that was dropped on the page, or keeps it if it is a config.
    fn open(&self, bytes: &[u8], query: &str) -> Result<Body, Problem> {
        let name = decoded(query.strip_prefix("name=").unwrap_or_default());
        let name = if name.is_empty() { "the file".to_owned() } else { name };
        if Kind::of(&Binary::from_bytes(&*name, bytes)?) == Kind::Config {
            self.configs().insert(name.clone(), bytes.to_vec());
            let out = serde_json::to_vec(&BTreeMap::from([("model", name)]));
            return Ok((JSON, out.map_err(|error| fault(&error.into()))?));
        }
        let file = drawable::from_bytes(&name, bytes.to_vec())?;
        document(&ShowReport { name: &name, file: &file })
    }
}

/// What the page asks.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// The words after `peakledger plan`.
    words: Vec<String>,
}

/// A command line of `plan`.
#[derive(Parser)]
#[command(name = "peakledger plan", no_binary_name = true, disable_help_flag = true)]
struct Words {
    #[command(flatten)]
    plan: plan::Args,
}

/// What the server tells the page that it can do.
#[derive(Serialize)]
struct Can<'a> {
    /// The model to plan first.
    model: Option<&'a str>,
    models: Vec<&'a str>,
    gpus: Vec<&'a str>,
    largest_file: u64,
}

fn document(report: &dyn Report) -> Result<Body, Problem> {
    written(&report.page().map_err(|error| fault(&error))?.unwrap_or_default())
}

fn written(page: &Page) -> Result<Body, Problem> {
    let mut out = Vec::new();
    write_document(page, &mut out).map_err(|error| fault(&error))?;
    Ok((JSON, out))
}

/// What is asked below the token, and its query; nothing for who does not know the token.
fn asked<'a>(head: &'a Head, token: &str) -> Option<(&'a str, &'a str)> {
    let (path, query) = head.target.split_once('?').unwrap_or((&head.target, ""));
    Some((path.strip_prefix('/')?.strip_prefix(token)?.strip_prefix('/')?, query))
}

/// Who is let in, and how much it may say.
fn admission(head: &Head, token: &str, own: SocketAddr) -> Admission {
    let Some((asked, _)) = asked(head, token).filter(|_| is_own(head, own)) else {
        return Admission::Refused(not_found());
    };
    let most = if asked == "open" { LARGEST_FILE } else { LARGEST_QUESTION };
    let problem = Problem::anywhere(format!("more than {} MiB are too much for the page", most >> 20));
    let problem = problem.mend("draw it from the command line: `peakledger report FILE -o report.html`");
    Admission::Body(most, refused(&problem))
}

/// Whether the browser means this server by its own name, and no page of another one asks.
fn is_own(head: &Head, own: SocketAddr) -> bool {
    let hosts = [own.to_string(), format!("localhost:{}", own.port())];
    let host = head.header("host").is_some_and(|host| hosts.iter().any(|own| own == host));
    let origin = head
        .header("origin")
        .is_none_or(|origin| hosts.iter().any(|host| origin.strip_prefix("http://") == Some(host)));
    host && origin
}

fn not_found() -> Response {
    Response { status: 404, kind: "text/plain", body: b"not found\n".to_vec() }
}

fn refused(problem: &Problem) -> Response {
    Response { status: 422, kind: "text/plain; charset=utf-8", body: problem.to_string().into_bytes() }
}

fn fault(error: &io::Error) -> Problem {
    Problem::anywhere(error.to_string())
}

/// `%2F` and the like as what they stand for.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let hex = |byte: Option<u8>| char::from(byte?).to_digit(16);
        match byte {
            b'%' => {
                let (high, low) = (hex(rest.next()).unwrap_or(0), hex(rest.next()).unwrap_or(0));
                bytes.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn names_come_back_from_a_query() {
        assert_eq!(decoded("a%20b%2F%E5%B1%82.json"), "a b/层.json");
        assert_eq!(decoded("50%"), "50\0");
        assert_eq!(decoded("%zz%FF"), "\0\u{fffd}");
    }
}
