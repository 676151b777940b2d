//! JSON files of any size, value by value: a list is walked through and only the value in hand is in memory.
//!
//! What is between two values is read here; a value in hand is a slice, for serde_json. Values that are passed over are
//! only counted through. A file that ends too early says so ([`Elements::was_cut`]), so that what came before can be kept.

use memchr::memchr2;
use peakledger_input::{Binary, Place, Problem, Source, json};
use serde::de::IgnoredAny;
use std::io::{ErrorKind, Read};

/// The largest value that is held whole. An event of a profiler with long stacks takes some 10 KiB.
const LONGEST: usize = 16 << 20;
const PIECE: usize = 1 << 18;

/// The values of a file.
pub(crate) struct Elements<'a> {
    file: &'a mut Binary,
    /// Is told how many bytes of the file were read.
    progress: &'a mut dyn FnMut(u64),
    /// What was read; from `start` on, what is not yet passed.
    buffer: Vec<u8>,
    start: usize,
    /// The value in hand begins at `start` and has so many bytes.
    held: usize,
    line: usize,
    column: usize,
    cut: bool,
}

impl<'a> Elements<'a> {
    pub(crate) fn new(file: &'a mut Binary, progress: &'a mut dyn FnMut(u64)) -> Elements<'a> {
        Elements { file, progress, buffer: Vec::new(), start: 0, held: 0, line: 1, column: 1, cut: false }
    }

    /// The file, for problems of it as a whole.
    pub(crate) fn file(&self) -> &Binary {
        self.file
    }

    /// Whether the last problem was that the file ends too early.
    pub(crate) fn was_cut(&self) -> bool {
        self.cut
    }

    /// The next byte that is no white space.
    pub(crate) fn peek(&mut self) -> Result<Option<u8>, Problem> {
        let held = std::mem::take(&mut self.held);
        self.pass(held);
        loop {
            let rest = self.buffer.get(self.start..).unwrap_or_default();
            match rest.iter().position(|byte| !byte.is_ascii_whitespace()) {
                Some(at) => {
                    self.pass(at);
                    return Ok(self.buffer.get(self.start).copied());
                }
                None => self.pass(rest.len()),
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Goes into a list or an object: passes its first byte.
    pub(crate) fn enter(&mut self) -> Result<(), Problem> {
        self.peek()?;
        self.pass(1);
        Ok(())
    }

    /// Whether a list that was entered has another value, which is then next.
    pub(crate) fn next_in_list(&mut self, first: bool) -> Result<bool, Problem> {
        self.go_on(b']', first)
    }

    /// The next key of an object that was entered; its value is then next.
    pub(crate) fn next_key(&mut self, first: bool) -> Result<Option<String>, Problem> {
        if !self.go_on(b'}', first)? {
            return Ok(None);
        }
        self.hold()?;
        let key = serde_json::from_slice(self.held()).map_err(|_| self.faulty(""))?;
        match self.peek()? {
            Some(b':') => self.pass(1),
            None => return Err(self.ends()),
            Some(_) => {
                return Err(self
                    .problem("a key without a colon after it")
                    .mend("put `:` between the key and its value"));
            }
        }
        Ok(Some(key))
    }

    fn go_on(&mut self, end: u8, first: bool) -> Result<bool, Problem> {
        match self.peek()? {
            Some(byte) if byte == end => {
                self.pass(1);
                Ok(false)
            }
            Some(_) if first => Ok(true),
            Some(b',') => {
                self.pass(1);
                Ok(true)
            }
            Some(_) => Err(self.problem("no comma between two values").mend(REWRITE)),
            None => Err(self.ends()),
        }
    }

    /// Takes the next value in hand.
    pub(crate) fn hold(&mut self) -> Result<(), Problem> {
        self.held = self.walk(LONGEST)?;
        Ok(())
    }

    /// Passes the next value over.
    pub(crate) fn skip(&mut self) -> Result<(), Problem> {
        self.held = self.walk(0)?;
        Ok(())
    }

    /// The value in hand.
    pub(crate) fn held(&self) -> &[u8] {
        self.buffer.get(self.start..self.start.saturating_add(self.held)).unwrap_or_default()
    }

    /// Nothing but white space may follow the last value.
    pub(crate) fn end(&mut self) -> Result<(), Problem> {
        match self.peek()? {
            None => self.file.check_unchanged(),
            Some(_) => Err(self.problem("more text after the end of the value").mend(REWRITE)),
        }
    }

    /// What is wrong with the value in hand, which serde_json did not take.
    pub(crate) fn faulty(&self, pointer: &str) -> Problem {
        let found = Source::from_bytes(self.file.name(), self.held().to_vec());
        let found = found.and_then(|source| json::parse::<IgnoredAny>(&source).map(|_| source));
        let problem = match found {
            Ok(source) => source.problem_at("", "not the value that belongs here").mend(REWRITE),
            Err(problem) => problem,
        };
        let place = match &problem.place {
            Some(Place::Text { line, column, pointer: inner }) => Place::Text {
                line: self.line + line - 1,
                column: if *line == 1 { self.column + column - 1 } else { *column },
                pointer: format!("{pointer}{inner}"),
            },
            _ => self.place(pointer),
        };
        problem.at(place)
    }

    /// A problem at the place that was reached.
    pub(crate) fn problem(&self, cause: impl Into<String>) -> Problem {
        self.file.problem(cause).at(self.place(""))
    }

    /// A problem with the value in hand.
    pub(crate) fn place(&self, pointer: &str) -> Place {
        Place::Text { line: self.line, column: self.column, pointer: pointer.to_owned() }
    }

    /// The file ends where a value goes on.
    fn ends(&mut self) -> Problem {
        self.cut = true;
        self.problem("the file ends in the middle of a value")
            .mend("it may be cut off: copy or write it again")
    }

    /// How long the next value is. Up to `most` bytes of it are kept, or with 0 what is passed over is let go of.
    fn walk(&mut self, most: usize) -> Result<usize, Problem> {
        if self.peek()?.is_none() {
            return Err(self.ends());
        }
        let (mut scan, mut seen) = (Scan::default(), 0);
        loop {
            let from = self.start.saturating_add(seen);
            let rest = self.buffer.get(from..).unwrap_or_default();
            match scan.feed(rest) {
                Some(0) if seen == 0 => {
                    return Err(self.problem("no value where one belongs").mend(REWRITE));
                }
                Some(end) => return Ok(seen + end),
                None => {}
            }
            seen += rest.len();
            if most == 0 {
                self.pass(std::mem::take(&mut seen));
            } else if seen > most {
                return Err(self.problem(format!("one value of more than {} MiB", most >> 20)).mend(REWRITE));
            }
            if !self.fill()? {
                return if scan.may_end() { Ok(seen) } else { Err(self.ends()) };
            }
        }
    }

    /// Reads a piece more. Whether there was any.
    fn fill(&mut self) -> Result<bool, Problem> {
        if self.start > PIECE {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        let length = self.buffer.len();
        let piece = u64::try_from(PIECE).unwrap_or(u64::MAX);
        (self.progress)(self.file.consumed());
        match (&mut *self.file).take(piece).read_to_end(&mut self.buffer) {
            Ok(read) => Ok(read > 0),
            // an archive that was cut off gives what there is
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(self.buffer.len() > length),
            Err(error) => Err(self.file.explain(&error)),
        }
    }

    fn pass(&mut self, bytes: usize) {
        let end = self.start.saturating_add(bytes).min(self.buffer.len());
        let passed = self.buffer.get(self.start..end).unwrap_or_default();
        let lines = passed.iter().filter(|byte| **byte == b'\n').count();
        let last = match lines {
            0 => passed,
            _ => passed.rsplit(|byte| *byte == b'\n').next().unwrap_or_default(),
        };
        // characters, not bytes: the bytes that continue one are 0b10……
        let characters = last.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        self.column = if lines == 0 { self.column + characters } else { 1 + characters };
        self.line += lines;
        self.start = end;
    }
}

const REWRITE: &str = "write the file again, or check it with `python -m json.tool`";

/// Where a value ends: brackets are counted, and strings passed over.
#[derive(Default)]
struct Scan {
    scalar: bool,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// Takes bytes in; how many of them there are up to the value's end, if it is among them.
    fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            if self.in_string {
                at += self.string(bytes.get(at..)?)?;
                if self.depth == 0 {
                    return Some(at);
                }
            }
            let byte = bytes.get(at)?;
            match byte {
                b'"' if !self.scalar => self.in_string = true,
                b'{' | b'[' if !self.scalar => self.depth += 1,
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                b',' | b'}' | b']' | b':' if self.depth == 0 => return Some(at),
                byte if self.depth == 0 && byte.is_ascii_whitespace() => return Some(at),
                _ => self.scalar |= self.depth == 0,
            }
            at += 1;
        }
    }

    /// Goes on in a string; how many bytes there are up to its end, if it is among them.
    fn string(&mut self, bytes: &[u8]) -> Option<usize> {
        bytes.first()?;
        let mut at = usize::from(std::mem::take(&mut self.escaped));
        loop {
            at += memchr2(b'"', b'\\', bytes.get(at..)?)?;
            match bytes.get(at) {
                Some(b'"') => {
                    self.in_string = false;
                    return Some(at + 1);
                }
                _ if at + 1 == bytes.len() => {
                    self.escaped = true; // what is escaped comes with the next bytes
                    return None;
                }
                _ => at += 2,
            }
        }
    }

    /// Whether the value is whole if nothing more comes.
    fn may_end(&self) -> bool {
        self.scalar && self.depth == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(text: &str) -> Binary {
        Binary::from_bytes("x.json", text.as_bytes()).unwrap()
    }

    fn list(text: &str) -> Result<Vec<String>, Problem> {
        let (mut file, mut progress) = (over(text), |_| {});
        let mut values = Elements::new(&mut file, &mut progress);
        values.enter()?;
        let mut found = Vec::new();
        while values.next_in_list(found.is_empty())? {
            values.hold()?;
            found.push(String::from_utf8(values.held().to_vec()).unwrap());
        }
        values.end()?;
        Ok(found)
    }

    #[test]
    fn values_are_cut_where_they_end() {
        let found = list("[1, \"a]\\\"\", {\"b\": [\"}\"]} ,[], null\n]").unwrap();
        assert_eq!(found, ["1", r#""a]\"""#, r#"{"b": ["}"]}"#, "[]", "null"]);
        assert_eq!(list("[]").unwrap(), Vec::<String>::new());
    }

    /// Pieces end anywhere: in a string, after a backslash, between brackets.
    #[test]
    fn a_value_ends_in_the_same_place_however_it_comes() {
        let cases = [(r#""a\"b\\", 1"#, 8), (r#"{"a": ["]", {}]}, 1"#, 16), ("-1.5e3]", 6), (r#""\"""#, 4)];
        for (text, end) in cases {
            assert_eq!(Scan::default().feed(text.as_bytes()), Some(end), "{text}");
            let mut scan = Scan::default();
            let mut bytes = text.bytes().zip(0usize..);
            let found = bytes.find_map(|(byte, at)| scan.feed(&[byte]).map(|within| at + within));
            assert_eq!(found, Some(end), "{text}");
        }
    }

    #[test]
    fn places_are_counted_in_lines_and_characters() {
        let mut progress = |_| {};
        let mut file = over("{\"é\":\n  \"层\", \"b\": {\"c\": nul}}");
        let mut values = Elements::new(&mut file, &mut progress);
        values.enter().unwrap();
        assert_eq!(values.next_key(true).unwrap().as_deref(), Some("é"));
        values.skip().unwrap();
        assert_eq!(values.next_key(false).unwrap().as_deref(), Some("b"));
        values.hold().unwrap();
        let problem = values.faulty("/b");
        assert!(problem.to_string().starts_with("x.json:2:22 (/b): a word"), "{problem}");
    }

    #[test]
    fn what_is_cut_off_or_out_of_order_says_so() {
        assert!(list("[1, {\"a\": 2").unwrap_err().to_string().contains("ends in the middle"));
        assert!(list("[1 2]").unwrap_err().to_string().contains("no comma"));
        assert!(list("[1] 2").unwrap_err().to_string().contains("more text"));
        assert!(list(&"[".repeat(1 << 20)).is_err(), "depth is counted, not climbed");
    }
}
