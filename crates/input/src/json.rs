//! Strict JSON into typed values: the fast way where all is well, and a second, slower look where it is not, to name
//! the place.

use crate::problem::Problem;
use crate::source::Source;
use crate::{explain, locate};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Reads a whole source as one value of type `T`, which may borrow from it.
///
/// A struct that derives `Deserialize` refuses repeated fields by itself; it needs `deny_unknown_fields` to refuse
/// unknown ones. For free-form objects use [`value()`], which refuses repeated keys.
///
/// # Errors
/// The first thing that is not JSON, or not what `T` takes, with its place.
pub fn parse<'a, T: Deserialize<'a>>(source: &'a Source) -> Result<T, Problem> {
    serde_json::from_str(source.text()).map_err(|error| locate_error::<T>(source, error))
}

/// Reads a whole source as a JSON value in which no object has a key twice.
///
/// # Errors
/// The first thing that is not strict JSON, with its place.
pub fn value(source: &Source) -> Result<Value, Problem> {
    parse::<Unique>(source).map(|unique| unique.0)
}

/// Reads once more, this time keeping track of the path.
fn locate_error<'a, T: Deserialize<'a>>(source: &'a Source, error: serde_json::Error) -> Problem {
    let mut deserializer = serde_json::Deserializer::from_str(source.text());
    let (pointer, error) = match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Ok(_) => (String::new(), error), // the value is sound: something follows it
        Err(error) => (pointer_of(error.path()), error.into_inner()),
    };
    match error.is_data() {
        true => explain::data(source, &pointer, &error),
        false => syntax(source, &pointer, &error),
    }
}

fn syntax(source: &Source, pointer: &str, error: &serde_json::Error) -> Problem {
    let at = locate::offset(source.text(), error.line(), error.column());
    let (at, cause, mend) = explain::syntax(source.text(), at, error);
    source.problem(cause).at(source.place_at(at, pointer)).mend(mend)
}

fn pointer_of(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => locate::push_word(&mut pointer, &index.to_string()),
            Segment::Map { key } => locate::push_word(&mut pointer, key),
            Segment::Enum { .. } => {}
            Segment::Unknown => break,
        }
    }
    pointer
}

/// A value whose objects name each key once. serde_json's own keeps the last of several.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Unique)
    }
}

struct UniqueVisitor;

impl<'de> DeserializeSeed<'de> for UniqueVisitor {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(UniqueVisitor)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some(key) = object.next_key::<String>()? {
            if values.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate field `{key}`")));
            }
            let value = object.next_value_seed(UniqueVisitor)?;
            values.insert(key, value);
        }
        Ok(Value::Object(values))
    }
}
