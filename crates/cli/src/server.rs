//! The server of the local page: it listens to this machine alone, under a path that nobody can guess, and answers with the
//! documents that the page draws.
//!
//! A planned step is asked for by the words of its command line, so the page shows what the command shows, and the words that
//! it offers to copy are those that made it.

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
use std::io::{self, Read};
use std::net::SocketAddr;
use tiny_http::{Header, Method, Request, Response};

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
    http: tiny_http::Server,
    address: SocketAddr,
    token: String,
    shown: Option<Shown>,
    /// Configs that were dropped on the page, by name.
    configs: BTreeMap<String, Vec<u8>>,
}

/// An answer: its type and its bytes.
type Body = (&'static str, Vec<u8>);

const JSON: &str = "application/json";

impl Server {
    /// Listens at an address of this machine.
    pub(crate) fn listen(address: SocketAddr, shown: Option<Shown>) -> Result<Server, Problem> {
        let http = tiny_http::Server::http(address).map_err(|error| {
            let problem = Problem::in_option("--port", format!("cannot listen at {address}: {error}"));
            problem.mend("leave `--port` out: a free one is taken")
        })?;
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| Problem::anywhere(format!("no random numbers: {error}")))?;
        let token = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let address = http.server_addr().to_ip().unwrap_or(address);
        Ok(Server { http, address, token, shown, configs: BTreeMap::new() })
    }

    /// Where a browser finds the page.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/{}/", self.address, self.token)
    }

    /// Answers until the process ends.
    pub(crate) fn run(&mut self) {
        while let Ok(mut request) = self.http.recv() {
            let response = self.respond(&mut request);
            let _gone = request.respond(response); // a browser that went away needs no answer
        }
    }

    fn respond(&mut self, request: &mut Request) -> Response<io::Cursor<Vec<u8>>> {
        let url = request.url().to_owned();
        let (path, query) = url.split_once('?').unwrap_or((&url, ""));
        let asked = path.strip_prefix('/').and_then(|path| path.strip_prefix(self.token.as_str()));
        let Some(asked) = asked.and_then(|path| path.strip_prefix('/')).filter(|_| self.is_own(request))
        else {
            return response(404, ("text/plain", b"not found\n".to_vec()));
        };
        let answer = match (request.method(), asked) {
            (Method::Get, "") => self.page(),
            (Method::Post, "plan") => self.planned(request).and_then(|planned| document(&planned.report())),
            (Method::Post, "ledger") => self.planned(request).and_then(|planned| {
                let mut out = Vec::new();
                output::write_ledger(&planned.ledger()?, &mut out).map_err(|error| fault(&error))?;
                Ok((JSON, out))
            }),
            (Method::Post, "open") => self.open(request, query),
            _ => return response(404, ("text/plain", b"not found\n".to_vec())),
        };
        match answer {
            Ok(body) => response(200, body),
            Err(problem) => response(422, ("text/plain; charset=utf-8", problem.to_string().into_bytes())),
        }
    }

    /// Whether the browser means this server by its own name, and no page of another one asks.
    fn is_own(&self, request: &Request) -> bool {
        let header = |name: &'static str| {
            let found = request.headers().iter().find(|header| header.field.equiv(name));
            found.map(|header| header.value.as_str().to_owned())
        };
        let hosts = [self.address.to_string(), format!("localhost:{}", self.address.port())];
        let host = header("Host").is_some_and(|host| hosts.contains(&host));
        let origin = header("Origin")
            .is_none_or(|origin| hosts.iter().any(|host| origin.strip_prefix("http://") == Some(host)));
        host && origin
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

    /// Plans what the words of a command line ask.
    fn planned(&self, request: &mut Request) -> Result<Planned, Problem> {
        let asked = Source::from_bytes("the page's question", body(request, LARGEST_QUESTION)?)?;
        let Asked { words } = peakledger_input::json::parse(&asked)?;
        let Words { plan: args } = Words::try_parse_from(words)
            .map_err(|error| usage::explained(&error, &Words::command(), Asker::Verb("plan")))?;
        let question = Question::of(&args)?;
        let model = match self.configs.get(args.model.name()) {
            Some(config) => {
                let config = Source::from_bytes(args.model.name(), config.clone())?;
                ModelFile { name: args.model.name().to_owned(), config, path: None }
            }
            None if args.model.name() == "-" => {
                return Err(
                    Problem::in_option("-", "the page does not read standard input").mend("name a model")
                );
            }
            None => open_model(args.model.name())?,
        };
        Planned::of(&args, question, model)
    }

    /// Draws a file that was dropped on the page, or keeps it if it is a config.
    fn open(&mut self, request: &mut Request, query: &str) -> Result<Body, Problem> {
        let name = decoded(query.strip_prefix("name=").unwrap_or_default());
        let bytes = body(request, LARGEST_FILE)?;
        if Kind::of(&Binary::from_bytes(&*name, &*bytes)?) == Kind::Config {
            self.configs.insert(name.clone(), bytes);
            let out = serde_json::to_vec(&BTreeMap::from([("model", name)]));
            return Ok((JSON, out.map_err(|error| fault(&error.into()))?));
        }
        let file = drawable::from_bytes(&name, bytes)?;
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
    let page: Page = report.page().map_err(|error| fault(&error))?.unwrap_or_default();
    let mut out = Vec::new();
    write_document(&page, &mut out).map_err(|error| fault(&error))?;
    Ok((JSON, out))
}

fn body(request: &mut Request, most: u64) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    let read = request.as_reader().take(most + 1).read_to_end(&mut bytes).map_err(|error| fault(&error))?;
    if u64::try_from(read).unwrap_or(u64::MAX) > most {
        let problem = Problem::anywhere(format!("more than {} MiB are too much for the page", most >> 20));
        return Err(problem.mend("draw it from the command line: `peakledger report FILE -o report.html`"));
    }
    Ok(bytes)
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

fn response(status: u16, (kind, bytes): Body) -> Response<io::Cursor<Vec<u8>>> {
    let headers = [
        ("Content-Type", kind),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        ("Referrer-Policy", "no-referrer"),
    ];
    let mut response = Response::from_data(bytes).with_status_code(status);
    for header in headers.iter().filter_map(|(name, value)| Header::from_bytes(*name, *value).ok()) {
        response.add_header(header);
    }
    response
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
