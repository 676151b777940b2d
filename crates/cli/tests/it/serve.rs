//! `serve`: who is let in, what it answers, and how it ends. The page itself is tested in a browser (`web/tests`).

use crate::support::{Bench, SAMPLE};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

/// A server that runs until it is dropped.
struct Served {
    child: Child,
    host: String,
    token: String,
}

impl Served {
    fn new(bench: &Bench, arguments: &str) -> Served {
        let mut command = bench.command(&format!("serve --no-open {arguments}"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let rest = url.trim().strip_prefix("http://").unwrap();
        let (host, token) = rest.split_once('/').unwrap();
        let token = token.trim_end_matches('/').to_owned();
        assert!(host.starts_with("127.0.0.1:") && token.len() == 32, "{url}");
        Served { child, host: host.to_owned(), token }
    }

    /// Asks as a browser would: the status, and what came.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let length = body.len();
        write!(stream, "{method} {path} HTTP/1.0\r\n{headers}Content-Length: {length}\r\n\r\n{body}")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn post(&self, what: &str, body: &str) -> (u16, String) {
        self.ask("POST", &format!("/{}/{what}", self.token), &format!("Host: {}\r\n", self.host), body)
    }

    fn words(&self, what: &str, words: &[&str]) -> (u16, String) {
        self.post(what, &json!({ "words": words }).to_string())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

#[test]
fn only_who_knows_the_path_and_means_this_machine_is_let_in() {
    let bench = Bench::new();
    let served = Served::new(&bench, "");
    let (host, page) = (format!("Host: {}\r\n", served.host), format!("/{}/", served.token));
    let (status, body) = served.ask("GET", &page, &host, "");
    assert_eq!(status, 200);
    assert!(body.contains("connect-src 'self'") && body.contains("\"largest_file\":"), "{body}");
    for (path, headers) in [
        ("/", host.as_str()),
        ("/00000000000000000000000000000000/", &host),
        (&format!("{page}../"), &host),
        (&page, ""),
        (&page, "Host: elsewhere.example\r\n"),
        (&page, &format!("{host}Origin: http://elsewhere.example\r\n")),
        (&page, &format!("{host}Origin: null\r\n")),
        (&format!("{page}nothing"), &host),
    ] {
        assert_eq!(served.ask("GET", path, headers, ""), (404, "not found\n".to_owned()), "{path} {headers}");
    }
    assert_ne!(served.token, Served::new(&bench, "").token, "each has a path of its own");
}

/// What a header claims is never allocated, and who is silent keeps nobody waiting.
#[test]
fn nobody_stops_it() {
    let served = Served::new(&Bench::new(), "");
    let host = format!("Host: {}\r\n", served.host);
    let page = format!("/{}/", served.token);
    let say = |text: &str| {
        let mut stream = TcpStream::connect(&served.host).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    let mut silent = vec![say(""), say("POST /bad HTTP/1.1\r\nContent-Length: 5000\r\n\r\nabc")];
    silent.push(say(&format!("POST {page}plan HTTP/1.1\r\n{host}Content-Length: 5000\r\n\r\nabc")));
    for (path, length) in [("/bad", "18446744073709551615"), ("/bad", "100000000000")] {
        let mut stream = say(&format!("POST {path} HTTP/1.1\r\n{host}Content-Length: {length}\r\n\r\n"));
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    }
    for (length, status) in [("100000000000", 422), ("-1", 400), ("99999999999999999999999", 400)] {
        let mut stream = say(&format!("POST {page}plan HTTP/1.1\r\n{host}Content-Length: {length}\r\n\r\n"));
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{length}: {answer}");
    }
    for nonsense in ["\r\n\r\n\r\n", "GET\r\n\r\n", &"x".repeat(100_000), "GET / HTTP/9.9\r\n\r\n"] {
        let mut stream = TcpStream::connect(&served.host).unwrap();
        let _closed = stream.write_all(nonsense.as_bytes());
        let _closed = stream.shutdown(std::net::Shutdown::Write);
        let _closed = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(served.ask("GET", &page, &host, "").0, 200, "while others are silent");
    drop(silent);
}

#[test]
fn it_plans_what_the_command_line_plans() {
    let bench = Bench::new();
    let served = Served::new(&bench, "gpt2");
    let words = ["gpt2", "--seq-len", "64", "--gpu", "t4"];
    let (status, document) = served.words("plan", &words);
    assert_eq!(status, 200, "{document}");
    let document: Value = serde_json::from_str(&document).unwrap();
    let answer = bench.answer("plan gpt2 --seq-len 64 --gpu t4 --format json");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(document["series"][0]["peak"]["bytes"], answer["peak"]["bytes"]);
    let (status, ledger) = served.words("ledger", &words);
    bench.answer("plan gpt2 --seq-len 64 --gpu t4 --save saved.json --format json");
    assert_eq!((status, ledger), (200, bench.read("saved.json")));
    for (words, says) in [
        (&["gpt2", "--recompute", "ful"][..], "help: choose one of `none`, `full`"),
        (&["gpt3"], "help: "),
        (&["-"], "`-`: the page does not read standard input"),
        (&["gpt2", "--seq-len", "1025"], "1024 learned positions"),
        (&[], "MODEL"),
        (&["--from", "ledger.json"], "`--from`: the page does not read files"),
    ] {
        let (status, said) = served.words("plan", words);
        assert!(status == 422 && said.contains(says), "{words:?}: {status} {said}");
    }
    assert_eq!(served.post("plan", "{").0, 422);
    assert_eq!(served.post("plan", &" ".repeat((1 << 20) + 1)).0, 422);
}

#[test]
fn it_draws_the_files_that_it_is_given() {
    let bench = Bench::with_sample();
    let served = Served::new(&bench, "ledger.json");
    let (_, page) =
        served.ask("GET", &format!("/{}/", served.token), &format!("Host: {}\r\n", served.host), "");
    assert!(page.contains("<strong>Peak 2.15 GiB</strong> in backward"), "the file is on the page");
    let (status, document) = served.post("open?name=a%20b.json", SAMPLE);
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!((status, &document["title"]), (200, &json!("a b.json")));
    let timeline = "[[1], [[0, 4096, 0, 0, 0, 8192, 0, 0, 0]]]";
    assert_eq!(served.post("open?name=timeline.json", timeline).0, 200);
    let config = r#"{"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 1, "vocab_size": 50, "n_positions": 64}"#;
    assert_eq!(served.post("open?name=own.json", config), (200, r#"{"model":"own.json"}"#.to_owned()));
    assert_eq!(served.words("plan", &["own.json", "--seq-len", "8"]).0, 200, "and then it is a model");
    for (body, says) in [("", "an empty file"), ("[{\"name\": 1}]", "x.json:1:11"), ("\u{1}", "help: ")] {
        let (status, said) = served.post("open?name=x.json", body);
        assert!(status == 422 && said.contains(says), "{status} {said}");
    }
}

#[test]
fn what_is_refused_before_it_serves() {
    let bench = Bench::with_sample().file("broken.json", "[");
    for (arguments, says) in [
        ("serve --no-open nothing.json", "help: "),
        ("serve --no-open broken.json", "broken.json:1:"),
        ("serve --no-open -", "a page that stays does not read standard input"),
        ("serve --no-open --port 99999", "`--port`"),
    ] {
        let said = bench.refusal(arguments);
        assert!(said.starts_with("error: ") && said.contains(says), "{arguments}: {said}");
    }
    let taken = Served::new(&bench, "");
    let port = taken.host.split_once(':').unwrap().1;
    let said = bench.refusal(&format!("serve --no-open --port {port}"));
    assert!(said.contains("cannot listen") && said.contains("leave `--port` out"), "{said}");
}
