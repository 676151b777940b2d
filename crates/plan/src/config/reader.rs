//! Fields of a config.json, each checked for its kind and range, under all the names it goes by.

use super::{Activation, Shape, Window};
use crate::model::{FAMILIES, Family};
use crate::torch::Dtype;
use peakledger_core::printable;
use peakledger_input::{Problem, Source, json, misspelt, misspelt_name, quoted};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// More layers than any model has; a larger number is a slip.
const MAX_LAYERS: u64 = 1 << 14;
/// Larger than any width or vocabulary in use; keeps products of two of them far from 64 bits.
const MAX_SIZE: u64 = 1 << 28;

/// Shapes by the names that other libraries and people have for them.
const OTHER_NAMES: &[(&str, &[&str])] = &[
    (
        "num_key_value_heads",
        &["num_kv_heads", "n_kv_heads", "kv_heads", "num_query_groups", "num_kv_attention_heads"],
    ),
    ("head_dim", &["head_size", "d_head", "attention_head_size", "attention_head_dim", "kv_channels"]),
    (
        "tie_word_embeddings",
        &["tie_embeddings", "tied_embeddings", "tie_weights", "tie_embedding", "tie_lm_head"],
    ),
    ("sliding_window", &["window_size", "attention_window"]),
    ("max_position_embeddings", &["max_seq_len", "max_sequence_length", "max_seq_length", "seq_length"]),
];

/// Keys of configs that are like others and mean something else.
fn is_known(key: &str) -> bool {
    const KNOWN: &[&str] = &[
        "sliding_window",
        "use_sliding_window",
        "_sliding_window_pattern",
        "qk_head_dim",
        "v_head_dim",
        "q_head_dim",
    ];
    KNOWN.contains(&key)
}

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

/// What a family's file may leave out of the common shapes.
pub(crate) struct Defaults {
    pub(crate) max_position_embeddings: u64,
    pub(crate) tie_word_embeddings: bool,
    /// Key heads where the file says nothing; where it says `null`, and for most families, as many as query heads.
    pub(crate) num_key_value_heads: Option<u64>,
    /// A head's width that does not follow from the hidden size.
    pub(crate) head_dim: Option<u64>,
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

    /// Refuses a key that nobody asks for where one is left out that it is a slip for, or another library's name for it: the
    /// family's default would be planned in its place.
    pub(crate) fn refuse_slips(&self) -> Result<(), Problem> {
        let asked = self.asked.borrow();
        let unknown: Vec<&str> = self
            .fields
            .keys()
            .map(String::as_str)
            .filter(|key| !asked.contains(key) && !is_known(key))
            .collect();
        for key in asked.iter().filter(|key| !self.fields.contains_key(**key)) {
            let others = OTHER_NAMES.iter().filter(|(own, _)| own == key).flat_map(|(_, others)| *others);
            let other = others.copied().find(|other| unknown.contains(other));
            if let Some(found) = misspelt(key, unknown.iter().copied()).or(other) {
                let cause = format!("{} is no key of it, and `{key}` is left out", quoted(found));
                let mend = format!("did you mean `{key}`? Write it so, or remove the key");
                return Err(self.at(found, &cause, &mend));
            }
        }
        Ok(())
    }

    pub(crate) fn family(&self) -> Result<&'static Family, Problem> {
        let known = || FAMILIES.iter().map(|family| family.model_type);
        let listed = known().collect::<Vec<_>>().join(", ");
        let name = match self.fields.get("model_type") {
            Some(Value::String(name)) => name,
            Some(_) => {
                return Err(self.at("model_type", "`model_type` is not text", "write it as \"llama\""));
            }
            None if self.fields.contains_key("peak") => {
                let problem = self.source.problem("a report, not the config of a model");
                return Err(problem.mend("pass the model that it was made of, as a name or a config.json"));
            }
            None if self.fields.contains_key("schema_version") || self.fields.contains_key("states") => {
                let problem = self.source.problem("a ledger, not the config of a model");
                return Err(problem.mend("`peakledger show FILE` shows a ledger; `plan` takes a config.json"));
            }
            None => {
                let problem = self.source.problem("there is no `model_type`");
                return Err(problem.mend(format!("add \"model_type\": one of {listed}")));
            }
        };
        FAMILIES.iter().find(|family| family.model_type == name).ok_or_else(|| {
            let cause = format!("the model family {} is not known", quoted(name));
            let mend = match misspelt_name(name, known()) {
                Some(near) => format!("did you mean `{near}`? Known are {listed}"),
                None => format!("known are {listed}"),
            };
            self.at("model_type", &cause, &mend)
        })
    }

    pub(crate) fn refuse_what_is_not_planned(&self) -> Result<(), Problem> {
        if self.fields.get("quantization_config").is_some_and(|v| !v.is_null()) {
            let method = self.fields.get("quantization_config").and_then(|v| v.get("quant_method"));
            let method = method.and_then(Value::as_str).map(|method| format!(" ({})", quoted(method)));
            let method = method.unwrap_or_default();
            let cause = format!("the weights are quantized{method}, which is not planned yet");
            return Err(self.at(
                "quantization_config",
                &cause,
                "remove it to plan the model as it was; --quantize nf4 packs it",
            ));
        }
        if self.flag("is_encoder_decoder")? == Some(true) {
            let cause = "encoder-decoder models are not planned";
            return Err(self.at("is_encoder_decoder", cause, "pass the config of a decoder-only model"));
        }
        Ok(())
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

    /// What the file says and the family's modules do not read: the plan is one of those modules all the same.
    pub(crate) fn not_planned(&self, family: &Family, routed: bool) -> Vec<String> {
        let field = |key: &&'static str| self.field(key).filter(|value| !value.is_null());
        let experts = ["num_local_experts", "num_experts", "n_routed_experts"];
        let experts = experts.iter().filter(|key| {
            // none and one are what a dense model has
            !routed && field(key).is_some_and(|value| !matches!(value.as_u64(), Some(0 | 1)))
        });
        let around =
            self.within.iter().map(|(_, of)| format!("what {} has beside its text model", quoted(of)));
        let further = field(&"num_nextn_predict_layers").filter(|value| value.as_u64() != Some(0));
        let predicting = "`num_nextn_predict_layers`: layers that predict further tokens, which transformers does not build, and \
                          Megatron with `--mtp-num-layers` alone";
        let further = further.map(|_| predicting.to_owned());
        let towers = ["vision_config", "audio_config", "text_config"];
        let towers = towers.iter().filter(|key| field(key).is_some());
        let fields = experts.chain(towers).map(|key| format!("`{key}`"));
        let mut list: Vec<String> = around.chain(fields).chain(further).collect();
        let plain = |name: &str| name.replace('_', "").to_ascii_lowercase();
        let own = plain(family.model_type.trim_end_matches("_text"));
        let is_own =
            |class: &str| [format!("{own}forcausallm"), format!("{own}lmheadmodel")].contains(&plain(class));
        let classes = field(&"architectures").and_then(Value::as_array).into_iter().flatten();
        let others = classes.filter_map(Value::as_str).filter(|class| !is_own(class));
        list.extend(others.take(8).map(|class| format!("{} of `architectures`", printable(&quoted(class)))));
        list
    }

    /// Refuses gpt2's name for a shape where it stands alone in another family's file: those modules do not know it.
    fn refuse_foreign_name(&self, usual: &'static str, of_gpt2: &'static str) -> Result<(), Problem> {
        let is_there = |key: &str| self.fields.get(key).is_some_and(|value| !value.is_null());
        let family = self.fields.get("model_type").and_then(Value::as_str).unwrap_or_default();
        if family == "gpt2" || is_there(usual) || !is_there(of_gpt2) {
            return Ok(());
        }
        let cause =
            format!("`{of_gpt2}` is gpt2's name for `{usual}`, which {} does not know", quoted(family));
        Err(self.at(of_gpt2, &cause, &format!("name it `{usual}`, or correct `model_type`")))
    }

    /// The usual name, and after it gpt2's where the family has that or the file has both, which must then agree.
    fn names<'n>(&self, names: &'n [&'static str; 2]) -> &'n [&'static str] {
        let is_gpt2 = self.fields.get("model_type").and_then(Value::as_str) == Some("gpt2");
        if is_gpt2 || self.fields.contains_key(names[0]) { names } else { &names[..1] }
    }

    /// The common shapes.
    pub(crate) fn shape(&mut self, defaults: &Defaults) -> Result<Shape, Problem> {
        for (usual, of_gpt2) in [
            ("hidden_size", "n_embd"),
            ("num_hidden_layers", "n_layer"),
            ("num_attention_heads", "n_head"),
            ("max_position_embeddings", "n_positions"),
        ] {
            self.refuse_foreign_name(usual, of_gpt2)?;
        }
        let vocab_size = self.size(&["vocab_size"])?;
        let hidden_size = self.size(self.names(&["hidden_size", "n_embd"]))?;
        let layers = self.number(self.names(&["num_hidden_layers", "n_layer"]), MAX_LAYERS)?;
        let num_attention_heads = self.size(self.names(&["num_attention_heads", "n_head"]))?;
        let num_key_value_heads = match self.optional_size(&["num_key_value_heads"])? {
            Some(heads) => heads,
            None => {
                match defaults.num_key_value_heads.filter(|_| self.field("num_key_value_heads").is_none()) {
                    Some(heads) => self.defaulted("num_key_value_heads", heads),
                    None => num_attention_heads,
                }
            }
        };
        if num_attention_heads % num_key_value_heads != 0 {
            let cause = format!(
                "`num_attention_heads` ({num_attention_heads}) is no multiple of `num_key_value_heads` ({num_key_value_heads})"
            );
            return Err(self.at(
                "num_key_value_heads",
                &cause,
                "each key head serves the same number of query heads",
            ));
        }
        let head_dim = match self.optional_size(&["head_dim"])?.or(defaults.head_dim) {
            Some(head_dim) => head_dim,
            None if hidden_size % num_attention_heads == 0 => hidden_size / num_attention_heads,
            None => {
                let cause = format!(
                    "`hidden_size` ({hidden_size}) is no multiple of `num_attention_heads` ({num_attention_heads}) and there is no `head_dim`"
                );
                return Err(self.at(
                    self.named(&["hidden_size", "n_embd"]),
                    &cause,
                    "add `head_dim`, or correct one of the two",
                ));
            }
        };
        let positions =
            self.optional_number(&["max_position_embeddings", "n_positions"], u64::from(u32::MAX))?;
        Ok(Shape {
            vocab_size,
            hidden_size,
            num_hidden_layers: u32::try_from(layers).unwrap_or(u32::MAX),
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            v_head_dim: None,
            max_position_embeddings: positions.unwrap_or_else(|| {
                self.defaulted("max_position_embeddings", defaults.max_position_embeddings)
            }),
            tie_word_embeddings: match self.flag("tie_word_embeddings")? {
                Some(tied) => tied,
                None => {
                    self.defaults.push(format!("tie_word_embeddings = {}", defaults.tie_word_embeddings));
                    defaults.tie_word_embeddings
                }
            },
            attention_dropout: self.probability("attention_dropout", 0.0)?,
            window: None,
            eager_only: false,
            num_experts: 0,
            learned_positions: false,
        })
    }

    /// Refuses a head that rotary positions cannot turn in pairs.
    pub(crate) fn rotary(&self, shape: &Shape) -> Result<(), Problem> {
        if shape.head_dim.is_multiple_of(2) {
            return Ok(());
        }
        let cause = format!("a head is {} wide, and rotary positions turn pairs", shape.head_dim);
        let key =
            if self.fields.contains_key("head_dim") { "head_dim" } else { self.named(&["hidden_size"]) };
        Err(self.at(key, &cause, "use an even head width"))
    }

    /// The window of `sliding_window`, for the layers that `layer_types` names or else those that `falls_on` does.
    pub(crate) fn window(
        &mut self,
        shape: &Shape,
        default: u64,
        beside_full: bool,
        falls_on: impl Fn(u32) -> bool,
    ) -> Result<Option<Window>, Problem> {
        let size = match self.field("sliding_window") {
            None => Some(self.defaulted("sliding_window", default)),
            Some(_) => self.optional_number(&["sliding_window"], u64::from(u32::MAX))?,
        };
        let Some(size) = size else { return Ok(None) };
        let layers: Vec<bool> = match self.layer_types(shape.num_hidden_layers)? {
            Some(types) => types,
            None => (0..shape.num_hidden_layers).map(falls_on).collect(),
        };
        Ok(layers.contains(&true).then_some(Window { size, layers, beside_full }))
    }

    /// `layer_types`: whether each layer's attention is sliding.
    fn layer_types(&self, layers: u32) -> Result<Option<Vec<bool>>, Problem> {
        let Some(value) = self.field("layer_types").filter(|v| !v.is_null()) else { return Ok(None) };
        let wrong = |cause: &str| {
            self.at("layer_types", cause, "list `full_attention` or `sliding_attention` for each layer")
        };
        let list = value.as_array().ok_or_else(|| wrong("`layer_types` is no list"))?;
        if list.len() != layers as usize {
            return Err(wrong(&format!("`layer_types` lists {} layers and there are {layers}", list.len())));
        }
        let is_sliding = |value: &Value| match value.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(wrong(&format!("`layer_types` has {value} in it"))),
        };
        list.iter().map(is_sliding).collect::<Result<_, _>>().map(Some)
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

    /// Refuses heads that do not fill the hidden size, where the modules do.
    pub(crate) fn whole_heads(&self, shape: &Shape) -> Result<(), Problem> {
        if shape.num_attention_heads.saturating_mul(shape.head_dim) == shape.hidden_size {
            return Ok(());
        }
        let cause =
            format!("{} heads do not fill a hidden size of {}", shape.num_attention_heads, shape.hidden_size);
        Err(self.at(
            self.named(&["num_attention_heads", "n_head"]),
            &cause,
            "use a divisor of the hidden size",
        ))
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

    pub(crate) fn defaulted(&mut self, key: &str, value: u64) -> u64 {
        self.defaults.push(format!("{key} = {value}"));
        value
    }

    /// The name that the file uses of several.
    fn named(&self, keys: &[&'static str]) -> &'static str {
        let used = keys.iter().find(|key| self.fields.contains_key(**key));
        used.or(keys.first()).copied().unwrap_or("")
    }

    pub(crate) fn at(&self, key: &str, cause: &str, mend: &str) -> Problem {
        let within = self.within.as_ref().map_or("", |(within, _)| within);
        self.source.problem_at(&format!("{within}/{key}"), cause).mend(mend)
    }
}

/// The fields of the text model, where a model of another family has one of a family that is known.
fn text_model(mut fields: Map<String, Value>) -> (Map<String, Value>, Option<(&'static str, String)>) {
    let family = |fields: &Map<String, Value>| Some(fields.get("model_type")?.as_str()?.to_owned());
    let is_known = |name: &str| FAMILIES.iter().any(|family| family.model_type == name);
    let Some(outer) = family(&fields).filter(|name| !is_known(name)) else { return (fields, None) };
    match fields.remove("text_config") {
        Some(Value::Object(mut text)) if family(&text).is_some_and(|name| is_known(&name)) => {
            // the whole model is loaded in one type
            for key in ["dtype", "torch_dtype"] {
                if let Some(dtype) = fields.remove(key) {
                    text.entry(key).or_insert(dtype);
                }
            }
            (text, Some(("/text_config", outer)))
        }
        Some(other) => {
            fields.insert("text_config".to_owned(), other);
            (fields, None)
        }
        None => (fields, None),
    }
}
