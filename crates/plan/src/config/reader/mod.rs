//! A config.json as it is read: its fields, which of them are asked for, under which names, and what was left out.

mod family;
mod shape;
mod slips;
mod values;

pub(crate) use shape::Defaults;

use family::text_model;
use peakledger_input::{Problem, Source, json, misspelt};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// A config.json being read.
pub(crate) struct Reader<'a> {
    source: &'a Source,
    fields: Map<String, Value>,
    /// Where they lie in the file, and whose text model they describe: `/text_config` of `gemma3`.
    within: Option<(&'static str, String)>,
    /// What was left out and filled in.
    pub(crate) defaults: Vec<String>,
    /// What sizes are where the file leaves them out, as files of the family do.
    left_out: &'static [(&'static str, u64)],
    /// The keys that were asked for.
    asked: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(source: &'a Source) -> Result<Reader<'a>, Problem> {
        match json::value(source)? {
            Value::Object(fields) => {
                let (fields, within) = text_model(fields);
                let (defaults, asked) = (Vec::new(), RefCell::default());
                Ok(Reader { source, fields, within, defaults, left_out: &[], asked })
            }
            _ => Err(source
                .problem("a model's config is a JSON object")
                .mend("pass the config.json of a model")),
        }
    }

    /// Takes these sizes for what the file leaves out: it was written without what is the family's default.
    pub(crate) fn leaving_out(&mut self, sizes: &'static [(&'static str, u64)]) {
        self.left_out = sizes;
        let left_out = sizes.iter().filter(|(key, _)| self.is_left_out(key));
        let left_out: Vec<String> = left_out.map(|(key, size)| format!("{key} = {size}")).collect();
        self.defaults.extend(left_out);
    }

    /// Whether the file neither has a key nor one that is a slip for it.
    fn is_left_out(&self, key: &str) -> bool {
        let others = || self.fields.keys().map(String::as_str);
        !self.fields.contains_key(key) && misspelt(key, others()).is_none()
    }

    /// The value of a key, which is known by that.
    fn field(&self, key: &'static str) -> Option<&Value> {
        self.asked.borrow_mut().insert(key);
        self.fields.get(key)
    }

    /// The family's default, which is named as assumed.
    pub(crate) fn defaulted(&mut self, key: &str, value: u64) -> u64 {
        self.defaults.push(format!("{key} = {value}"));
        value
    }

    /// The name that the file uses of several.
    fn named(&self, keys: &[&'static str]) -> &'static str {
        let used = keys.iter().find(|key| self.fields.contains_key(**key));
        used.or(keys.first()).copied().unwrap_or("")
    }

    /// A problem at a key's place in the file.
    pub(crate) fn at(&self, key: &str, cause: &str, mend: &str) -> Problem {
        let within = self.within.as_ref().map_or("", |(within, _)| within);
        self.source.problem_at(&format!("{within}/{key}"), cause).mend(mend)
    }
}
