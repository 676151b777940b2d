//! A file of keys and values, whatever it is written in: JSON, YAML or TOML as one tree, and the place of each value.
//!
//! Nothing in it is trusted: what repeats a key, nests too deep, has an alias or a tag that makes objects is refused, and no
//! text grows when it is read.

mod toml;
mod yaml;

use crate::problem::{Place, Problem};
use crate::source::{Limit, Source};
use crate::{json, locate};
use peakledger_core::Bytes;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Training configs: up to 1 MiB.
pub const FIELDS_LIMIT: Limit = Limit { what: "a training config", bytes: Bytes::new(1 << 20) };

/// Deeper than any config.
const DEEPEST: usize = 64;

/// What a file is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// `{"key": 1}`
    Json,
    /// `key: 1`, as PyYAML's `safe_load` reads it.
    Yaml,
    /// `key = 1`
    Toml,
}

/// A file of keys and values.
#[derive(Clone, Debug)]
pub struct Fields {
    source: Source,
    root: Map<String, Value>,
    /// Of JSON nothing: its places are found when they are asked for.
    places: Option<Places>,
}

/// Line and column of values by their JSON pointer, as far down as anyone asks.
#[derive(Clone, Debug, Default)]
struct Places(BTreeMap<String, (usize, usize)>);

impl Places {
    /// Longer pointers are those of nobody's config; kept for each of many values they would outgrow the file.
    const LONGEST: usize = 200;

    fn put(&mut self, pointer: &str, line: usize, column: usize) {
        if pointer.len() <= Self::LONGEST {
            self.0.insert(pointer.to_owned(), (line, column));
        }
    }

    /// Of the value, or of what it lies in.
    fn of(&self, pointer: &str) -> (usize, usize) {
        let mut known = pointer;
        loop {
            if let Some(place) = self.0.get(known) {
                return *place;
            }
            match known.rsplit_once('/') {
                Some((outer, _)) => known = outer,
                None => return (1, 1),
            }
        }
    }
}

impl Fields {
    /// Reads a whole file.
    ///
    /// # Errors
    /// The first thing that is not of this syntax, or is refused in every file, with its place.
    pub fn read(source: Source, syntax: Syntax) -> Result<Fields, Problem> {
        let (root, places) = match syntax {
            Syntax::Json => (json::value(&source)?, None),
            Syntax::Yaml => yaml::read(&source).map(|(root, places)| (root, Some(places)))?,
            Syntax::Toml => toml::read(&source).map(|(root, places)| (root, Some(places)))?,
        };
        match root {
            Value::Object(root) => Ok(Fields { source, root, places }),
            _ => Err(source.problem("no keys with values").mend("give a file of a training run's options")),
        }
    }

    /// Keys and values that were found elsewhere, each with its line: the arguments of a program.
    pub fn of(source: Source, found: impl IntoIterator<Item = (String, Value, usize)>) -> Fields {
        let (mut root, mut places) = (Map::new(), Places::default());
        for (key, value, line) in found {
            let mut pointer = String::new();
            locate::push_word(&mut pointer, &key);
            places.put(&pointer, line, 1);
            root.insert(key, value);
        }
        Fields { source, root, places: Some(places) }
    }

    /// What the user calls it.
    pub fn name(&self) -> &str {
        self.source.name()
    }

    /// All of it, as it is written.
    pub fn text(&self) -> &str {
        self.source.text()
    }

    /// Its keys and values.
    pub fn root(&self) -> &Map<String, Value> {
        &self.root
    }

    /// The value at a JSON pointer.
    pub fn get(&self, pointer: &str) -> Option<&Value> {
        let mut words = locate::words(pointer);
        let first = self.root.get(&words.next()?)?;
        words.try_fold(first, |value, word| value.get(&word))
    }

    /// Where the value at a JSON pointer is.
    pub fn place_of(&self, pointer: &str) -> Place {
        match &self.places {
            None => self.source.place_of(pointer),
            Some(places) => {
                let (line, column) = places.of(pointer);
                Place::Text { line, column, pointer: pointer.to_owned() }
            }
        }
    }

    /// A problem with the value at a JSON pointer.
    pub fn problem_at(&self, pointer: &str, cause: impl Into<String>) -> Problem {
        self.source.problem(cause).at(self.place_of(pointer))
    }

    /// A problem with the file as a whole.
    pub fn problem(&self, cause: impl Into<String>) -> Problem {
        self.source.problem(cause)
    }
}

fn too_deep(source: &Source, line: usize, column: usize) -> Problem {
    let place = Place::Text { line, column, pointer: String::new() };
    let problem = source.problem(format!("nested deeper than {DEEPEST} levels")).at(place);
    problem.mend("no training config is: check that it is the right file")
}
