//! How records are read from their fields: words borrowed from the text, each field once, `x-` fields passed over.
//!
//! serde's derive cannot tell an unknown field from one of the `x-` space without a slow detour, so the few record
//! types are read by one macro instead.

use super::{Document, PhaseRecord, ResidencyRecord, StateRecord};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

/// How the names of fields begin that are for anyone's use.
const EXTENSION: &str = "x-";

/// A word of a file: borrowed from its text, owned only where the text has an escape in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(transparent)]
pub struct Text<'a>(pub Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Text(Cow::Borrowed(text))
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Text(Cow::Owned(text))
    }
}

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(text.into())
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(text.to_owned().into())
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// Named versions of the states, in file order.
#[derive(Clone, Debug, Default)]
pub struct Candidates<'a>(pub Vec<(Text<'a>, Vec<StateRecord<'a>>)>);

impl Candidates<'_> {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Candidates<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, states)| (name, states)))
    }
}

impl<'de> Deserialize<'de> for Candidates<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CandidatesVisitor;
        impl<'de> Visitor<'de> for CandidatesVisitor {
            type Value = Candidates<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of names and lists of states")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Candidates<'de>, A::Error> {
                let mut list: Vec<(Text<'de>, Vec<StateRecord<'de>>)> = Vec::new();
                let mut names = std::collections::BTreeSet::new();
                while let Some(name) = map.next_key::<Text<'de>>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!("duplicate field `{}`", &*name)));
                    }
                    list.push((name, map.next_value()?));
                }
                Ok(Candidates(list))
            }
        }
        deserializer.deserialize_map(CandidatesVisitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Candidates<'_> {
    fn schema_name() -> Cow<'static, str> {
        "Candidates".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let states = generator.subschema_for::<Vec<StateRecord<'static>>>();
        schemars::json_schema!({
            "type": "object",
            "propertyNames": { "minLength": 1 },
            "additionalProperties": states
        })
    }
}

/// Reads a record: each required field once, each optional one at most once, `x-` fields passed over.
macro_rules! read_fields {
    ($record:ident: $what:literal, [$($required:ident),*], [$($optional:ident),*]) => {
        impl<'de> Deserialize<'de> for $record<'de> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                const FIELDS: &[&str] = &[$(stringify!($required),)* $(stringify!($optional),)*];

                #[allow(non_camel_case_types)]
                enum Field { $($required,)* $($optional,)* Extension }

                impl<'de> Deserialize<'de> for Field {
                    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                        deserializer.deserialize_identifier(FieldVisitor)
                    }
                }

                struct FieldVisitor;
                impl Visitor<'_> for FieldVisitor {
                    type Value = Field;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("the name of a field")
                    }

                    fn visit_str<E: Error>(self, name: &str) -> Result<Field, E> {
                        match name {
                            $(stringify!($required) => Ok(Field::$required),)*
                            $(stringify!($optional) => Ok(Field::$optional),)*
                            _ if name.starts_with(EXTENSION) => Ok(Field::Extension),
                            _ => Err(E::unknown_field(name, FIELDS)),
                        }
                    }
                }

                struct RecordVisitor;
                impl<'de> Visitor<'de> for RecordVisitor {
                    type Value = $record<'de>;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($what)
                    }

                    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                        $(let mut $required = None;)*
                        $(let mut $optional = None;)*
                        while let Some(field) = map.next_key()? {
                            match field {
                                $(Field::$required => match $required {
                                    None => $required = Some(map.next_value()?),
                                    Some(_) => return Err(A::Error::duplicate_field(stringify!($required))),
                                },)*
                                $(Field::$optional => match $optional {
                                    None => $optional = Some(map.next_value()?),
                                    Some(_) => return Err(A::Error::duplicate_field(stringify!($optional))),
                                },)*
                                Field::Extension => {
                                    map.next_value::<IgnoredAny>()?;
                                }
                            }
                        }
                        Ok($record {
                            $($required: match $required {
                                Some(value) => value,
                                None => return Err(A::Error::missing_field(stringify!($required))),
                            },)*
                            $($optional: $optional.unwrap_or_default(),)*
                        })
                    }
                }

                deserializer.deserialize_map(RecordVisitor)
            }
        }
    };
}

read_fields!(Document: "an object with `states`", [schema_version, states], [note, incomplete, timeline, candidates]);
read_fields!(PhaseRecord: "a phase (an object)", [phase], [micro_batch, moments, peak_op]);
read_fields!(StateRecord: "a state (an object)", [name, category, persistent],
    [detail, size_mb, size_bytes, start_phase, end_phase, device, residencies]);
read_fields!(ResidencyRecord: "a residency (an object)", [device, start_phase, end_phase],
    [start_moment, end_moment]);
