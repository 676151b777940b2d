//! YAML as PyYAML's `safe_load` takes it, from a parser's events: what words mean, and what is refused, is decided here.

use super::{DEEPEST, Places, too_deep};
use crate::locate;
use crate::problem::{Place, Problem, quoted};
use crate::source::Source;
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Tag};
use serde_json::{Map, Number, Value};

/// The tags that say no more than the value does.
const PLAIN_TAGS: [&str; 7] = ["str", "int", "float", "bool", "null", "map", "seq"];

/// A map or list that is being read.
enum Open {
    Map { values: Map<String, Value>, key: Option<String> },
    List(Vec<Value>),
}

struct Reader<'a> {
    source: &'a Source,
    places: Places,
    /// Those that are not closed yet, the outermost first, each with where its pointer ends.
    open: Vec<(Open, usize)>,
    pointer: String,
    root: Option<Value>,
}

pub(super) fn read(source: &Source) -> Result<(Value, Places), Problem> {
    match read_text(source, source.text()) {
        // PyYAML lets a list or map that is written in brackets end where its key begins, and YAML itself does not
        Err(problem) => match closed_deeper(source.text()) {
            Some(text) => read_text(source, &text).or(Err(problem)),
            None => Err(problem),
        },
        read => read,
    }
}

/// The text with lines of nothing but closing brackets a column further in, if there are any.
fn closed_deeper(text: &str) -> Option<String> {
    let is_end = |line: &str| {
        let line = line.trim();
        line.starts_with([']', '}']) && line.chars().all(|c| matches!(c, ']' | '}' | ','))
    };
    if !text.lines().any(is_end) {
        return None;
    }
    let mut deeper = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if is_end(line) {
            deeper.push(' ');
        }
        deeper.push_str(line);
    }
    Some(deeper)
}

/// Reads a text of a file, whose lines are the file's.
fn read_text(source: &Source, text: &str) -> Result<(Value, Places), Problem> {
    let mut reader =
        Reader { source, places: Places::default(), open: Vec::new(), pointer: String::new(), root: None };
    let tab = text.lines().position(|line| line.starts_with('\t') && !line.trim().is_empty());
    if let Some(line) = tab {
        let place = Place::Text { line: line + 1, column: 1, pointer: String::new() };
        let problem = source.problem("a line that is indented with a tab").at(place);
        return Err(problem.mend("YAML is indented with spaces"));
    }
    let mut documents = 0;
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| {
            let cause = format!("not YAML: {}", error.info());
            reader.problem(*error.marker(), cause).mend("check the indentation and the quotes there")
        })?;
        let at = span.start;
        match event {
            Event::DocumentStart(_) => {
                documents += 1;
                if documents > 1 {
                    let problem = reader.problem(at, "a second document");
                    return Err(problem.mend("keep one of them in a file of its own"));
                }
            }
            Event::Alias(_) => {
                let problem = reader.problem(at, "an alias of another value");
                return Err(problem.mend("write the value out: aliases are not followed"));
            }
            Event::Scalar(text, style, _, tag) => {
                let as_text = reader.tag(tag.as_deref(), at)? == Some("str");
                reader.scalar(&text, style != ScalarStyle::Plain || as_text, at)?;
            }
            Event::MappingStart(_, tag) => {
                reader.tag(tag.as_deref(), at)?;
                reader.begin(Open::Map { values: Map::new(), key: None }, at)?;
            }
            Event::SequenceStart(_, tag) => {
                reader.tag(tag.as_deref(), at)?;
                reader.begin(Open::List(Vec::new()), at)?;
            }
            Event::MappingEnd | Event::SequenceEnd => reader.end(),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
    }
    Ok((reader.root.unwrap_or(Value::Null), reader.places))
}

impl Reader<'_> {
    fn problem(&self, at: Marker, cause: impl Into<String>) -> Problem {
        let place = Place::Text { line: at.line(), column: at.col() + 1, pointer: self.pointer.clone() };
        self.source.problem(cause).at(place)
    }

    /// The name of a tag that says no more than the value does.
    fn tag(&self, tag: Option<&Tag>, at: Marker) -> Result<Option<&'static str>, Problem> {
        let Some(tag) = tag else { return Ok(None) };
        let plain = PLAIN_TAGS.iter().find(|name| tag.is_yaml_core_schema() && tag.suffix == **name);
        plain.map(|name| Some(*name)).ok_or_else(|| {
            let cause = format!("the tag {}, which asks for an object to be made", quoted(&tag.to_string()));
            self.problem(at, cause).mend("write plain values: no tag is ever obeyed")
        })
    }

    /// Takes a word: a key where one is due, else a value.
    fn scalar(&mut self, text: &str, as_text: bool, at: Marker) -> Result<(), Problem> {
        if let Some((Open::Map { values, key: key @ None }, _)) = self.open.last_mut() {
            if text == "<<" && !as_text {
                let problem = self.problem(at, "a merge of another map");
                return Err(problem.mend("write its keys out: `<<` is not followed"));
            }
            if values.contains_key(text) {
                let problem = self.problem(at, format!("the key {} is there twice", quoted(text)));
                return Err(problem.mend("keep one of the two"));
            }
            *key = Some(text.to_owned());
            locate::push_word(&mut self.pointer, text);
            return Ok(());
        }
        self.enter(at);
        self.put(if as_text { Value::String(text.to_owned()) } else { resolved(text) });
        Ok(())
    }

    /// A value begins here.
    fn enter(&mut self, at: Marker) {
        if let Some((Open::List(values), _)) = self.open.last() {
            locate::push_word(&mut self.pointer, &values.len().to_string());
        }
        self.places.put(&self.pointer, at.line(), at.col() + 1);
    }

    fn begin(&mut self, open: Open, at: Marker) -> Result<(), Problem> {
        if self.open.len() >= DEEPEST {
            return Err(too_deep(self.source, at.line(), at.col() + 1));
        }
        if matches!(self.open.last(), Some((Open::Map { key: None, .. }, _))) {
            let problem = self.problem(at, "a key that is a map or a list");
            return Err(problem.mend("keys are words"));
        }
        self.enter(at);
        self.open.push((open, self.pointer.len()));
        Ok(())
    }

    fn end(&mut self) {
        match self.open.pop() {
            Some((Open::Map { values, .. }, _)) => self.put(Value::Object(values)),
            Some((Open::List(values), _)) => self.put(Value::Array(values)),
            None => {}
        }
    }

    /// Puts a value where it belongs.
    fn put(&mut self, value: Value) {
        let outer = match self.open.last_mut() {
            None => {
                self.root = Some(value);
                0
            }
            Some((Open::List(values), end)) => {
                values.push(value);
                *end
            }
            Some((Open::Map { values, key }, end)) => {
                values.insert(key.take().unwrap_or_default(), value);
                *end
            }
        };
        self.pointer.truncate(outer);
    }
}

/// What a word without quotes means in YAML 1.1, as PyYAML reads it: `yes` is true, `1e-5` is text.
fn resolved(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Value::Bool(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
            return Value::Bool(false);
        }
        _ => {}
    }
    let digits = text.replace('_', "");
    let unsigned = digits.trim_start_matches(['-', '+']);
    let is_number = unsigned.starts_with(|c: char| c.is_ascii_digit());
    let has_leading_zero = unsigned.len() > 1 && unsigned.starts_with('0') && !unsigned.starts_with("0.");
    if !is_number || has_leading_zero {
        return Value::String(text.to_owned());
    }
    let whole = digits.strip_prefix('+').unwrap_or(&digits).parse::<i64>().ok().map(Number::from);
    let number = whole.or_else(|| {
        let float = digits.contains('.').then(|| digits.parse::<f64>().ok()).flatten();
        float.and_then(Number::from_f64)
    });
    number.map_or_else(|| Value::String(text.to_owned()), Value::Number)
}

#[cfg(test)]
mod tests {
    use super::super::{Fields, Syntax};
    use super::*;
    use serde_json::json;

    fn fields(text: &str) -> Result<Fields, String> {
        Fields::read(Source::from_text("run.yaml", text), Syntax::Yaml).map_err(|problem| problem.to_string())
    }

    #[test]
    fn words_mean_what_pyyaml_makes_of_them() {
        let text = "base_model: meta-llama/Llama-3.1-8B\nload_in_4bit: yes\nempty:\nlr: 2e-4\nlr2: 0.0002\n\
                    big: 1_000\nquoted: \"8\"\nid: 007\nlist: [q_proj, 3]\nfsdp_config:\n  offload_params: false\n";
        assert_eq!(
            Value::Object(fields(text).unwrap().root().clone()),
            json!({
                "base_model": "meta-llama/Llama-3.1-8B", "load_in_4bit": true, "empty": null, "lr": "2e-4",
                "lr2": 0.0002, "big": 1000, "quoted": "8", "id": "007", "list": ["q_proj", 3],
                "fsdp_config": {"offload_params": false}
            })
        );
    }

    #[test]
    fn brackets_close_where_their_key_begins() {
        let text = "a:\n  b: [\n    1,\n  ]\n  c: {\n    d: 2,\n  }\n  e: 3\n";
        let fields = fields(text).unwrap();
        assert_eq!(fields.get("/a/b").unwrap().to_string(), "[1]");
        assert_eq!(fields.get("/a/c/d").unwrap().as_u64(), Some(2));
        assert!(matches!(fields.place_of("/a/e"), Place::Text { line: 8, column: 6, .. }));
    }

    #[test]
    fn a_value_has_its_place() {
        let fields = fields("a: 1\nb:\n  - c: 2\n    d: 3\n").unwrap();
        let place = |pointer: &str| fields.place_of(pointer).to_string();
        assert_eq!(place("/a"), "1:4 (/a)");
        assert_eq!(place("/b/0/d"), "4:8 (/b/0/d)");
        assert_eq!(place("/b/0/e"), "3:5 (/b/0/e)", "of what it would lie in");
        assert_eq!(fields.get("/b/0/d"), None, "lists are not looked into");
    }

    #[test]
    fn what_no_config_needs_is_refused() {
        let deep = format!("a: {}1{}", "[".repeat(100), "]".repeat(100));
        let bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n";
        for (text, says) in [
            (bomb, "run.yaml:2:8 (/b): an alias of another value\n  help: write the value out"),
            ("a: !!python/object:os.system x\n", "asks for an object to be made"),
            ("a: !custom x\n", "the tag `!custom`"),
            ("a: 1\na: 2\n", "run.yaml:2:1: the key `a` is there twice"),
            ("a:\n  <<: 1\n", "a merge of another map"),
            ("---\na: 1\n---\nb: 2\n", "a second document"),
            ("? [a]\n: 1\n", "a key that is a map or a list"),
            (&deep, "nested deeper than 64 levels"),
            ("a: [1\n", "not YAML: "),
            ("a:\n\tb: 1\n", "run.yaml:2:1: a line that is indented with a tab"),
            ("- 1\n", "no keys with values"),
            ("# nothing\n", "no keys with values"),
        ] {
            let said = fields(text).map(|_| ()).expect_err(text);
            assert!(said.contains(says) && said.contains("\n  help: "), "{text}: {said}");
        }
    }

    #[test]
    fn places_do_not_outgrow_the_file() {
        let text = format!("? {}\n: {}", "k".repeat(500_000), "  - 1\n".repeat(80_000).trim_start());
        assert!(fields(&text).unwrap().places.unwrap().0.len() < 3);
    }
}
