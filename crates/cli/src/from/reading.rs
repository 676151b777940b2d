//! A config being read: keys in, options of the plan out, each with where it came from. What nobody asked for is what was
//! not read.

use super::found::{Ask, ByModel, Found, LeftOut, ModelAsked, Origin, Setting, Unread};
use super::optimizer;
use peakledger_input::{Fields, Problem, misspelt, quoted};
use serde_json::Value;
use std::collections::BTreeSet;

/// A config being read. Keys are paths, `zero_optimization/stage`.
pub(super) struct Reading<'a> {
    fields: &'a Fields,
    /// In which of its maps keys are looked for, as a JSON pointer.
    within: String,
    /// The pointers of what was asked for.
    read: BTreeSet<String>,
    /// Whether its keys are options of a command line: one that nothing follows has no value, and is `true`.
    are_options: bool,
    pub(super) found: Found,
}

/// What configs write for a value that follows from others.
const AUTO: &str = "auto";

/// What of a long list is shown.
const MOST_NOT_READ: usize = 20;

impl<'a> Reading<'a> {
    pub(super) fn of(fields: &'a Fields, are_options: bool) -> Reading<'a> {
        let (within, read, found) = (String::new(), BTreeSet::new(), Found::default());
        Reading { fields, within, read, are_options, found }
    }

    /// Reads a part. What is wrong with it is said once all is read, so that whoever mends it hears of everything at once.
    pub(super) fn attempt(&mut self, part: impl FnOnce(&mut Self) -> Result<(), Problem>) {
        if let Err(problem) = part(self) {
            self.refuse(problem);
        }
    }

    /// Says what is wrong with a key, beside whatever else is.
    pub(super) fn refuse(&mut self, problem: Problem) {
        self.found.refused.push(problem);
    }

    /// Reads a map in it.
    pub(super) fn within<T>(&mut self, key: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.within.len();
        self.within.push('/');
        self.within.push_str(key);
        let answer = read(self);
        self.within.truncate(outer);
        answer
    }

    fn pointer(&self, key: &str) -> String {
        format!("{}/{key}", self.within)
    }

    pub(super) fn origin(&self, key: &str) -> Origin {
        let pointer = self.pointer(key);
        Origin {
            file: self.fields.name().to_owned(),
            place: Some(self.fields.place_of(&pointer)),
            key: pointer.trim_start_matches('/').replace('/', "."),
        }
    }

    /// What the user calls the file.
    pub(super) fn file(&self) -> &'a str {
        self.fields.name()
    }

    /// All of the file, as it is written.
    pub(super) fn whole_text(&self) -> &'a str {
        self.fields.text()
    }

    /// Whether somebody asked for a key.
    pub(super) fn is_read(&self, key: &str) -> bool {
        self.read.contains(&self.pointer(key))
    }

    /// The options that a key says.
    pub(super) fn options_by(&self, key: &str) -> Vec<&'static str> {
        let of_key = |origin: &Origin| origin.key == key;
        let said = self.found.settings.iter().filter(|setting| of_key(&setting.origin));
        let samples = self.found.samples.iter().filter(|(_, origin)| of_key(origin));
        said.map(|setting| setting.option).chain(samples.map(|_| "--gradient-accumulation-steps")).collect()
    }

    pub(super) fn problem(&self, key: &str, cause: impl Into<String>) -> Problem {
        self.fields.problem_at(&self.pointer(key), cause)
    }

    /// The value of a key, unless it is `null`. It is not read by that.
    pub(super) fn peek(&self, key: &str) -> Option<&'a Value> {
        self.fields.get(&self.pointer(key)).filter(|value| !value.is_null())
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.peek(key).is_some()
    }

    /// Whether a key is there and says nothing.
    pub(super) fn is_null(&self, key: &str) -> bool {
        self.fields.get(&self.pointer(key)).is_some_and(Value::is_null)
    }

    /// The value of a key, unless it is `null`.
    pub(super) fn value(&mut self, key: &str) -> Option<&'a Value> {
        let pointer = self.pointer(key);
        let value = self.fields.get(&pointer);
        self.read.insert(pointer);
        value.filter(|value| !value.is_null())
    }

    pub(super) fn is_auto(&self, key: &str) -> bool {
        self.fields.get(&self.pointer(key)).and_then(Value::as_str) == Some(AUTO)
    }

    /// A variable of the shell, which nobody runs here.
    fn variable(&self, key: &str) -> Option<&'a str> {
        let text = self.fields.get(&self.pointer(key)).and_then(Value::as_str);
        text.filter(|text| text.contains('$'))
    }

    pub(super) fn is_variable(&self, key: &str) -> bool {
        self.variable(key).is_some()
    }

    /// A whole number of 0 or more.
    pub(super) fn number(&mut self, key: &str) -> Result<Option<u64>, Problem> {
        let Some(value) = self.value(key) else { return Ok(None) };
        if let Some(variable) = self.variable(key) {
            let problem = self.problem(key, format!("{}, and no shell is run", quoted(variable)));
            return Err(problem.mend("write its value into the file"));
        }
        let whole = match value {
            // 5e8, as DeepSpeed's bucket sizes are often written
            Value::Number(number) => number.as_u64().or_else(|| float_as_whole(number.as_f64()?)),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        let wrong = || {
            let said = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            self.problem(
                key,
                match value {
                    Value::Bool(true) if self.are_options => "its value is missing".to_owned(),
                    _ => format!("{} is not a whole number", quoted(&said)),
                },
            )
        };
        whole.map(Some).ok_or_else(|| wrong().mend("write a whole number"))
    }

    /// Any number.
    pub(super) fn amount(&mut self, key: &str) -> Result<Option<f64>, Problem> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
        let wrong = || self.problem(key, "not a number").mend("write a number");
        number.map(Some).ok_or_else(wrong)
    }

    /// True or false, also as words.
    pub(super) fn flag(&mut self, key: &str) -> Result<Option<bool>, Problem> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(Value::String(text)) => match text.to_ascii_lowercase().as_str() {
                "true" | "yes" | "1" => Ok(Some(true)),
                "false" | "no" | "0" | "" => Ok(Some(false)),
                _ => Err(self.problem(key, format!("{} is not true or false", quoted(text))))
                    .map_err(|problem| problem.mend("write true or false")),
            },
            Some(other) => {
                let problem =
                    self.problem(key, format!("{} is not true or false", quoted(&other.to_string())));
                Err(problem.mend("write true or false"))
            }
        }
    }

    /// Whether a flag is there and true.
    pub(super) fn is(&mut self, key: &str) -> Result<bool, Problem> {
        Ok(self.flag(key)?.unwrap_or(false))
    }

    pub(super) fn text(&mut self, key: &str) -> Result<Option<&'a str>, Problem> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            // YAML reads an unquoted yes, no, on or off so
            Some(Value::Bool(it)) => {
                let cause = format!("{} is a word here, and this is read as true or false", quoted(key));
                Err(self.problem(key, cause).mend(format!(
                    "write {} in quotes, if it was meant",
                    if *it { "yes or on" } else { "no or off" }
                )))
            }
            Some(_) => Err(self.problem(key, "not text").mend("write a word")),
        }
    }

    /// Words: a list of them, or one text with commas between them.
    pub(super) fn words(&mut self, key: &str) -> Result<Option<Vec<String>>, Problem> {
        let wrong = |problem: Problem| problem.mend("list names");
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => {
                let words = text.split([',', ' ']).map(str::trim).filter(|word| !word.is_empty());
                Ok(Some(words.map(str::to_owned).collect()))
            }
            Some(Value::Array(list)) => {
                let words = list.iter().map(|word| word.as_str().map(str::to_owned));
                let words: Option<Vec<String>> = words.collect();
                words
                    .map(Some)
                    .ok_or_else(|| wrong(self.problem(key, "a list with something else than names")))
            }
            Some(_) => Err(wrong(self.problem(key, "no list of names"))),
        }
    }

    /// Says an option, by a key that was read.
    pub(super) fn set(&mut self, option: &'static str, value: impl ToString, key: &str) {
        let origin = self.origin(key);
        self.put(Setting { option, value: value.to_string(), origin, implied: false, by_model: None });
    }

    /// Says an option by a key that leaves its value to the model.
    pub(super) fn set_by_model(&mut self, option: &'static str, value: ByModel, key: &str) {
        self.value(key);
        let origin = self.origin(key);
        let value = Some(value);
        self.put(Setting { option, value: AUTO.to_owned(), origin, implied: false, by_model: value });
    }

    /// Says an option that the file leaves out: what its reader does then.
    pub(super) fn imply(&mut self, option: &'static str, value: impl ToString, why: &str) {
        let origin = self.left_out(why);
        self.put(Setting { option, value: value.to_string(), origin, implied: true, by_model: None });
    }

    /// The same of an option whose value is the model's.
    pub(super) fn imply_by_model(&mut self, option: &'static str, value: ByModel, why: &str) {
        let (origin, value) = (self.left_out(why), Some(value));
        self.put(Setting { option, value: AUTO.to_owned(), origin, implied: true, by_model: value });
    }

    /// Where that comes from which a file leaves out.
    fn left_out(&self, why: &str) -> Origin {
        Origin { file: self.fields.name().to_owned(), place: None, key: why.to_owned() }
    }

    fn put(&mut self, setting: Setting) {
        let settings = &mut self.found.settings;
        if setting.implied && settings.iter().any(|other| other.option == setting.option && !other.implied) {
            return;
        }
        settings.retain(|other| other.option != setting.option);
        settings.push(setting);
    }

    /// Takes back what was said of an option.
    pub(super) fn take_back(&mut self, option: &str) {
        self.found.settings.retain(|setting| setting.option != option);
    }

    /// Another config that this one names by its path.
    pub(super) fn further(&mut self, key: &str, path: &str) {
        self.value(key);
        self.found.further.push((path.to_owned(), self.origin(key)));
    }

    /// What was said of an option up to here.
    pub(super) fn said(&self, option: &str) -> Option<&str> {
        let mut settings = self.found.settings.iter();
        settings.find(|setting| setting.option == option).map(|setting| setting.value.as_str())
    }

    /// A key that is an option's number; `auto` and variables ask for the option.
    pub(super) fn count(&mut self, key: &str, option: &'static str) {
        if self.is_auto(key) {
            self.value(key);
            self.ask(option, key, "`auto` is left to another file or to the command line");
        } else if let Some(variable) = self.variable(key) {
            self.value(key);
            self.ask(option, key, &format!("{}, and no shell is run", quoted(variable)));
        } else {
            self.attempt(|reading| {
                if let Some(number) = reading.number(key)? {
                    reading.set(option, number, key);
                }
                Ok(())
            });
        }
    }

    /// Asks for an option, unless somebody else says it.
    pub(super) fn ask(&mut self, option: &'static str, key: &str, cause: &str) {
        let origin = self.origin(key);
        self.found.asks.push(Ask { option, origin, cause: cause.to_owned(), of_you: false });
    }

    /// The same where the file asks for what is not planned: no other key answers that, and the command line alone says what comes
    /// in its place.
    pub(super) fn unplanned(&mut self, option: &'static str, key: &str, cause: &str) {
        let origin = self.origin(key);
        self.found.asks.push(Ask { option, origin, cause: cause.to_owned(), of_you: true });
    }

    /// Notes what the file asks for and the plan leaves out.
    pub(super) fn not_planned(&mut self, key: &str, what: &str) {
        self.value(key);
        self.note(key, what);
    }

    /// The same, unless somebody else says the option.
    pub(super) fn not_planned_without(&mut self, option: &'static str, key: &str, what: &str) {
        self.value(key);
        self.note_without(option, key, what);
    }

    /// The same of a map that is not read as a whole.
    pub(super) fn note_without(&mut self, option: &'static str, key: &str, what: &str) {
        let (origin, what) = (self.origin(key), what.to_owned());
        self.found.not_planned.push(LeftOut { origin, what, option: Some(option) });
    }

    /// The same of what whoever reads the file does by default, where it does not say so itself.
    pub(super) fn default_not_planned(&mut self, option: &'static str, key: &str, what: &str) {
        let origin = self.origin(key);
        let origin = if self.has(key) { origin } else { Origin { place: None, ..origin } };
        self.found.not_planned.push(LeftOut { origin, what: what.to_owned(), option: Some(option) });
    }

    /// The same of a map that is not read as a whole.
    pub(super) fn note(&mut self, key: &str, what: &str) {
        let (origin, what) = (self.origin(key), what.to_owned());
        self.found.not_planned.push(LeftOut { origin, what, option: None });
    }

    /// Notes it of a key that is there and neither false, 0 nor empty.
    pub(super) fn not_planned_if_set(&mut self, key: &str, what: &str) {
        if self.value(key).is_some_and(is_set) {
            self.not_planned(key, what);
        }
    }

    /// The same, unless somebody else says the option.
    pub(super) fn not_planned_if_set_without(&mut self, option: &'static str, key: &str, what: &str) {
        if self.value(key).is_some_and(is_set) {
            self.not_planned_without(option, key, what);
        }
    }

    /// Sequences of a step.
    pub(super) fn samples(&mut self, key: &str) {
        if self.is_auto(key) {
            self.value(key);
            return;
        }
        self.attempt(|reading| {
            if let Some(samples) = reading.number(key)? {
                reading.found.samples = Some((samples, reading.origin(key)));
            }
            Ok(())
        });
    }

    /// The model by its name.
    pub(super) fn model(&mut self, key: &str) {
        self.attempt(|reading| {
            if let Some(name) = reading.text(key)? {
                reading.found.model = Some((ModelAsked::Named(name.to_owned()), reading.origin(key)));
            }
            Ok(())
        });
    }

    /// The optimizer by the name that transformers or DeepSpeed has for it.
    pub(super) fn optimizer(&mut self, key: &str) {
        self.attempt(|reading| {
            let Some(name) = reading.text(key)? else { return Ok(()) };
            reading.optimizer_called(name, key);
            Ok(())
        });
    }

    /// The optimizer of that name, by the key that asks for it.
    pub(super) fn optimizer_called(&mut self, name: &str, key: &str) {
        let Some(optimizer) = optimizer::of(name) else {
            let near =
                optimizer::near(name).map(|near| format!(": the nearest is {near}")).unwrap_or_default();
            let cause = format!("the optimizer {} is not planned{near}", quoted(name));
            self.unplanned("--optimizer", key, &cause);
            return;
        };
        self.set("--optimizer", optimizer.kind, key);
        if let Some(implementation) = optimizer.implementation {
            self.set("--optimizer-impl", implementation, key);
        }
        if let Some(what) = optimizer.not_planned {
            self.not_planned_without("--optimizer", key, what);
        }
    }

    /// The momentum among the optimizer's arguments, which SGD alone takes.
    pub(super) fn momentum(&mut self, key: &str) {
        let momentum = self.value(key).and_then(optimizer::momentum);
        let momentum = momentum.filter(|_| self.said("--optimizer") == Some("sgd"));
        if let Some(momentum) = momentum.filter(|momentum| *momentum != 0.0) {
            self.set("--momentum", momentum, key);
        }
    }

    /// The keys that cannot change memory: a name, or the beginning of some with `*`.
    pub(super) fn pass(&mut self, keys: &[&str]) {
        for key in keys {
            let Some(beginning) = key.strip_suffix('*') else {
                self.value(key);
                continue;
            };
            let (map, beginning) = beginning.rsplit_once('/').unwrap_or(("", beginning));
            let map = if map.is_empty() { self.within.clone() } else { self.pointer(map) };
            let values = match map.as_str() {
                "" => Some(self.fields.root()),
                map => self.fields.get(map).and_then(Value::as_object),
            };
            let names = values.into_iter().flat_map(|values| values.keys());
            let names = names.filter(|name| name.starts_with(beginning));
            self.read.extend(names.map(|name| format!("{map}/{name}")));
        }
    }

    /// Passes maps that nobody looked into.
    pub(super) fn pass_unread(&mut self, keys: &[&str]) {
        for key in keys {
            let pointer = self.pointer(key);
            if !self.is_entered(&pointer) {
                self.read.insert(pointer);
            }
        }
    }

    /// Whether something in the map at a pointer was read.
    fn is_entered(&self, pointer: &str) -> bool {
        let inner = format!("{pointer}/");
        self.read.range(inner.clone()..).next().is_some_and(|next| next.starts_with(&inner))
    }

    /// What was found, with what was not read.
    pub(super) fn finish(mut self) -> Found {
        let mut left = Vec::new();
        for (name, value) in self.fields.root() {
            self.collect(&format!("/{name}"), value, &mut left);
        }
        let rest = left.len().saturating_sub(MOST_NOT_READ);
        left.truncate(MOST_NOT_READ);
        self.within.clear();
        let unread = |pointer: &String| {
            let origin = self.origin(pointer.trim_start_matches('/'));
            Unread { origin, meant: self.meant(pointer) }
        };
        self.found.not_read = left.iter().map(unread).collect();
        if rest > 0 {
            let key = format!("{rest} more");
            let origin = Origin { file: self.fields.name().to_owned(), place: None, key };
            self.found.not_read.push(Unread { origin, meant: None });
        }
        self.found
    }

    /// The key beside one that is not known which it may be a slip for: one that was looked for and is not there.
    fn meant(&self, pointer: &str) -> Option<String> {
        let (map, name) = pointer.rsplit_once('/')?;
        let beside = |known: &&str| known.rsplit_once('/').is_some_and(|(other, _)| other == map);
        let missing = |known: &&str| self.fields.get(known).is_none();
        let known = self.read.iter().map(String::as_str).filter(beside).filter(missing);
        let names = known.filter_map(|known| Some(known.rsplit_once('/')?.1));
        misspelt(name, names).map(str::to_owned)
    }

    fn collect(&self, pointer: &str, value: &Value, left: &mut Vec<String>) {
        if value.is_null() || self.read.contains(pointer) {
            return;
        }
        match value {
            Value::Object(values) if self.is_entered(pointer) => {
                for (name, value) in values {
                    self.collect(&format!("{pointer}/{name}"), value, left);
                }
            }
            _ => left.push(pointer.to_owned()),
        }
    }
}

/// Neither false, 0 nor empty.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => {
            !matches!(text.to_ascii_lowercase().as_str(), "" | "no" | "none" | "false" | "0")
        }
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// A float that is a whole number, such as `5e8`.
fn float_as_whole(number: f64) -> Option<u64> {
    format!("{number:.0}").parse().ok().filter(|_| number.fract() == 0.0)
}
