//! Values of fields, each checked for its kind and range.

use super::Reader;
use crate::config::Activation;
use crate::torch::Dtype;
use peakledger_input::{Problem, misspelt, quoted};
use serde_json::Value;

/// More layers than any model has; a larger number is a slip.
pub(super) const MAX_LAYERS: u64 = 1 << 14;
/// Larger than any width or vocabulary in use; keeps products of two of them far from 64 bits.
const MAX_SIZE: u64 = 1 << 28;

impl Reader<'_> {
    pub(crate) fn size(&self, keys: &[&'static str]) -> Result<u64, Problem> {
        self.number(keys, MAX_SIZE)
    }

    pub(crate) fn optional_size(&self, keys: &[&'static str]) -> Result<Option<u64>, Problem> {
        self.optional_number(keys, MAX_SIZE)
    }

    pub(crate) fn number(&self, keys: &[&'static str], limit: u64) -> Result<u64, Problem> {
        let own = |key: &&str| self.left_out.iter().find(|(own, _)| own == key).map(|(_, size)| *size);
        let left_out = keys.first().filter(|key| self.is_left_out(key)).and_then(own);
        self.optional_number(keys, limit)?.or(left_out).ok_or_else(|| {
            let (first, others) =
                keys.split_first().map_or(("", &[][..]), |(first, others)| (*first, others));
            let also = match others {
                [] => String::new(),
                others => format!(" (or `{}`)", others.join("`, `")),
            };
            let others = || self.fields.keys().map(String::as_str).filter(|key| !keys.contains(key));
            let mend = match keys.iter().find_map(|key| Some((key, misspelt(key, others())?))) {
                Some((key, found)) => format!("did you mean `{key}` where it says {}?", quoted(found)),
                None => format!("add \"{first}\"{also} as the model's config.json has it"),
            };
            self.source.problem(format!("`{first}` is missing")).mend(mend)
        })
    }

    /// A whole number from 1 to `limit` under one of its names; `null` counts as left out.
    pub(crate) fn optional_number(&self, keys: &[&'static str], limit: u64) -> Result<Option<u64>, Problem> {
        let mut found: Option<(&'static str, u64)> = None;
        for key in keys {
            let Some(number) = self.one_number(key, limit)? else { continue };
            match found {
                Some((other, value)) if value != number => {
                    let cause =
                        format!("`{key}` is {number} and `{other}`, which means the same, is {value}");
                    return Err(self.at(key, &cause, "keep one of the two"));
                }
                _ => found = Some((key, number)),
            }
        }
        if found.is_some() {
            // its other names are not left out
            self.asked.borrow_mut().retain(|key| !keys.contains(key) || self.fields.contains_key(*key));
        }
        Ok(found.map(|(_, number)| number))
    }

    fn one_number(&self, key: &'static str, limit: u64) -> Result<Option<u64>, Problem> {
        let Some(value) = self.field(key).filter(|v| !v.is_null()) else { return Ok(None) };
        let whole = "it is a whole number of 1 or more";
        match value {
            Value::Number(number) => match number.as_u64() {
                Some(number @ 1..) if number <= limit => Ok(Some(number)),
                // what passes 64 bits is read as a float
                number if number.is_some_and(|n| n > limit) || value.as_f64().is_some_and(|n| n > 1e19) => {
                    let cause = format!("`{key}` is {value}, above the limit of {limit}");
                    Err(self.at(key, &cause, "check the number"))
                }
                _ => Err(self.at(key, &format!("`{key}` is {value}"), whole)),
            },
            Value::String(text) if text.parse::<u64>().is_ok() => {
                Err(self.at(key, &format!("`{key}` is the text {}", quoted(text)), "remove the quotes"))
            }
            _ => Err(self.at(key, &format!("`{key}` is not a number"), whole)),
        }
    }

    /// A layer's number: 0 or more.
    pub(crate) fn layer(&self, key: &'static str) -> Result<Option<u64>, Problem> {
        if self.field(key).and_then(Value::as_u64) == Some(0) {
            return Ok(Some(0));
        }
        self.optional_number(&[key], MAX_LAYERS)
    }

    /// A list of layers' numbers; none where it is left out.
    pub(crate) fn layers(&self, key: &'static str) -> Result<Vec<u32>, Problem> {
        let Some(value) = self.field(key).filter(|v| !v.is_null()) else { return Ok(Vec::new()) };
        let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        let numbers = value.as_array().and_then(|list| list.iter().map(number).collect());
        numbers.ok_or_else(|| {
            self.at(key, &format!("`{key}` is no list of layers"), "list layers by number, the first being 0")
        })
    }

    /// A whole number under one of its names, or the family's default, which is then named as assumed.
    pub(crate) fn number_or(&mut self, keys: &[&'static str], default: u64) -> Result<u64, Problem> {
        match self.optional_size(keys)? {
            Some(number) => Ok(number),
            None => Ok(self.defaulted(keys.first().copied().unwrap_or(""), default)),
        }
    }

    pub(crate) fn flag(&self, key: &'static str) -> Result<Option<bool>, Problem> {
        match self.field(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.at(
                key,
                &format!("`{key}` is not true or false"),
                "write true or false without quotes",
            )),
        }
    }

    /// Whether the field is there and not `null`, whatever it is: a cap on scores, say.
    pub(crate) fn is_set(&self, key: &'static str) -> Option<bool> {
        self.field(key).map(|value| !value.is_null())
    }

    /// A share from 0 to 1, or `default`.
    pub(crate) fn fraction(&self, key: &'static str, default: f64) -> Result<f64, Problem> {
        let value = self.field(key).or_else(|| self.fields.get("rope_parameters")?.get(key));
        match value.filter(|v| !v.is_null()) {
            None => Ok(default),
            Some(value) => value
                .as_f64()
                .filter(|share| (0.0..=1.0).contains(share))
                .ok_or_else(|| self.at(key, &format!("`{key}` is {value}"), "it is a number from 0 to 1")),
        }
    }

    pub(crate) fn probability(&self, key: &'static str, default: f64) -> Result<f64, Problem> {
        match self.field(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value.as_f64().filter(|p| (0.0..1.0).contains(p)).ok_or_else(|| {
                self.at(
                    key,
                    &format!("`{key}` is {}", quoted(&value.to_string())),
                    "it is a probability from 0 to below 1",
                )
            }),
        }
    }

    pub(crate) fn activation(&self, key: &'static str, default: Activation) -> Result<Activation, Problem> {
        let Some(value) = self.field(key).filter(|v| !v.is_null()) else { return Ok(default) };
        let known = Activation::NAMES.iter().find(|(name, _)| value.as_str() == Some(name));
        known.map(|(_, activation)| *activation).ok_or_else(|| {
            let names = Activation::NAMES.map(|(name, _)| name).join(", ");
            self.at(
                key,
                &format!("the activation {} is not known", quoted(&value.to_string())),
                &format!("known are {names}"),
            )
        })
    }

    /// The type that the weights were saved in, which is the one that `from_pretrained` of transformers 5 loads them in unless it
    /// is told another (`_get_dtype`, `modeling_utils.py`). It is `dtype` there, and was `torch_dtype`.
    ///
    /// # Errors
    /// Names a type that torch has not, or that is not planned; transformers looks it up in torch.
    pub(crate) fn dtype(&self) -> Result<Option<Dtype>, Problem> {
        let said = ["dtype", "torch_dtype"].iter().find_map(|key| Some((key, self.field(key)?)));
        let (key, name) = match said {
            // a map has a type for each part of a model
            None | Some((_, Value::Null | Value::Object(_))) => return Ok(None),
            Some((key, value)) => (key, value.as_str().unwrap_or_default()),
        };
        match name.trim_start_matches("torch.") {
            "bfloat16" => Ok(Some(Dtype::Bf16)),
            "float16" | "half" => Ok(Some(Dtype::F16)),
            "float32" | "float" => Ok(Some(Dtype::F32)),
            _ => {
                let said = self.field(key).map(|value| value.to_string().replace('"', ""));
                let said = quoted(&said.unwrap_or_default());
                let cause = format!("`{key}` is {said}, and no type of weights that is planned");
                Err(self.at(key, &cause, "write bfloat16, float16 or float32, or leave it out"))
            }
        }
    }
}
