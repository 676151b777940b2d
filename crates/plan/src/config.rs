//! From a Hugging Face `config.json` to the architecture: shapes, checked, with the family's defaults and every fault named
//! by its place in the file.

use peakledger_input::{Problem, Source, json, near};
use serde_json::{Map, Value};

use crate::torch::{Tensor, ops};

/// The model families known, by `model_type`. A new family is one entry here and its modules in `crate::model`.
pub const FAMILIES: [Family; 3] = [
    Family {
        model_type: "llama",
        qkv_bias: false,
        sliding_window: SlidingWindow::Never,
        modules: "modeling_llama.py",
    },
    Family {
        model_type: "mistral",
        qkv_bias: false,
        sliding_window: SlidingWindow::AllLayers,
        modules: "modeling_mistral.py",
    },
    Family {
        model_type: "qwen2",
        qkv_bias: true,
        sliding_window: SlidingWindow::UpperLayers,
        modules: "modeling_qwen2.py",
    },
];

/// What sets a family apart from the others that share its modules.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `model_type` in config.json.
    pub model_type: &'static str,
    /// The transformers file whose modules are mirrored.
    pub modules: &'static str,
    qkv_bias: bool,
    sliding_window: SlidingWindow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlidingWindow {
    Never,
    AllLayers,
    /// With `use_sliding_window`, the layers from `max_window_layers` on.
    UpperLayers,
}

/// The shapes of a decoder-only model.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// `model_type`.
    pub model_type: &'static str,
    /// Rows of the embedding.
    pub vocab_size: u64,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Width inside the MLP.
    pub intermediate_size: u64,
    /// Decoder layers.
    pub num_hidden_layers: u32,
    /// Query heads.
    pub num_attention_heads: u64,
    /// Key and value heads.
    pub num_key_value_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// The longest sequence.
    pub max_position_embeddings: u64,
    /// Whether the head shares the embedding's weight.
    pub tie_word_embeddings: bool,
    pub(crate) qkv_bias: bool,
    pub(crate) o_bias: bool,
    pub(crate) mlp_bias: bool,
    pub(crate) attention_dropout: f64,
    pub(crate) hidden_act: Activation,
    pub(crate) window: Option<Window>,
    /// What the file left out and the family's default filled in.
    pub defaults: Vec<String>,
}

/// Attention that looks back a limited way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// How many tokens a query looks at.
    pub(crate) size: u64,
    /// The first layer that has it.
    pub(crate) first_layer: u32,
    /// Whether a mask for layers without it is made too, needed or not.
    pub(crate) beside_full: bool,
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    Silu,
    Gelu,
    GeluTanh,
    Relu,
}

impl Activation {
    const NAMES: [(&'static str, Activation); 5] = [
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("gelu", Activation::Gelu),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("relu", Activation::Relu),
    ];

    pub(crate) fn apply(self, x: Tensor) -> Tensor {
        match self {
            Activation::Silu => ops::silu(x),
            Activation::Gelu => ops::gelu(x),
            Activation::GeluTanh => ops::gelu_tanh(x),
            Activation::Relu => ops::relu(x),
        }
    }
}

/// More layers than any model has; a larger number is a slip.
const MAX_LAYERS: u64 = 100_000;
/// Larger than any width or vocabulary in use; keeps products of two of them far from 64 bits.
const MAX_SIZE: u64 = 1 << 28;

impl Architecture {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// Names the file, the place, what is wrong and how to mend it.
    pub fn read(source: &Source) -> Result<Architecture, Problem> {
        let Value::Object(fields) = json::value(source)? else {
            return Err(source
                .problem("a model's config is a JSON object")
                .mend("pass the config.json of a model"));
        };
        Reader { source, fields, defaults: Vec::new() }.architecture()
    }

    /// How many parameters the model has.
    pub fn parameters(&self) -> u64 {
        crate::step::parameters(self)
    }
}

struct Reader<'a> {
    source: &'a Source,
    fields: Map<String, Value>,
    defaults: Vec<String>,
}

impl Reader<'_> {
    fn architecture(mut self) -> Result<Architecture, Problem> {
        let family = self.family()?;
        self.refuse_what_is_not_planned()?;
        let vocab_size = self.size("vocab_size")?;
        let hidden_size = self.size("hidden_size")?;
        let intermediate_size = self.size("intermediate_size")?;
        let layers = self.number("num_hidden_layers", MAX_LAYERS)?;
        let num_attention_heads = self.size("num_attention_heads")?;
        let num_key_value_heads = self
            .optional_size("num_key_value_heads")?
            .unwrap_or_else(|| self.defaulted("num_key_value_heads", num_attention_heads));
        if num_attention_heads % num_key_value_heads != 0 {
            let cause = format!(
                "`num_attention_heads` ({num_attention_heads}) is no multiple of `num_key_value_heads` ({num_key_value_heads})"
            );
            return Err(self.at(
                "num_key_value_heads",
                cause,
                "each key head serves the same number of query heads",
            ));
        }
        let head_dim = match self.optional_size("head_dim")? {
            Some(head_dim) => head_dim,
            None if hidden_size % num_attention_heads == 0 => hidden_size / num_attention_heads,
            None => {
                let cause = format!(
                    "`hidden_size` ({hidden_size}) is no multiple of `num_attention_heads` ({num_attention_heads}) and there is no `head_dim`"
                );
                return Err(self.at("hidden_size", cause, "add `head_dim`, or correct one of the two"));
            }
        };
        if head_dim % 2 != 0 {
            let cause = format!("`head_dim` is {head_dim}, and rotary positions turn pairs");
            return Err(self.at("head_dim", cause, "use an even head width"));
        }
        let max_position_embeddings = self
            .optional_number("max_position_embeddings", u64::from(u32::MAX))?
            .unwrap_or_else(|| self.defaulted("max_position_embeddings", 2048));
        let attention_bias = self.flag("attention_bias")?.unwrap_or(false);
        let window = self.window(family, layers)?;
        Ok(Architecture {
            model_type: family.model_type,
            vocab_size,
            hidden_size,
            intermediate_size,
            num_hidden_layers: u32::try_from(layers).unwrap_or(u32::MAX),
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            max_position_embeddings,
            tie_word_embeddings: match self.flag("tie_word_embeddings")? {
                Some(tied) => tied,
                None => {
                    self.defaults.push("tie_word_embeddings = false".to_owned());
                    false
                }
            },
            qkv_bias: family.qkv_bias || attention_bias,
            o_bias: attention_bias,
            mlp_bias: self.flag("mlp_bias")?.unwrap_or(false),
            attention_dropout: self.probability("attention_dropout")?,
            hidden_act: self.activation()?,
            window,
            defaults: self.defaults,
        })
    }

    fn family(&self) -> Result<Family, Problem> {
        let known = || FAMILIES.iter().map(|family| family.model_type);
        let listed = known().collect::<Vec<_>>().join(", ");
        let name = match self.fields.get("model_type") {
            Some(Value::String(name)) => name,
            Some(_) => {
                return Err(self.at(
                    "model_type",
                    "`model_type` is not text".to_owned(),
                    "write it as \"llama\"",
                ));
            }
            None => {
                let problem = self.source.problem("there is no `model_type`");
                return Err(problem.mend(format!("add \"model_type\": one of {listed}")));
            }
        };
        FAMILIES.iter().find(|family| family.model_type == name).copied().ok_or_else(|| {
            let cause = format!("the model family `{name}` is not known");
            let mend = match near(name, known()) {
                Some(near) => format!("did you mean `{near}`? Known are {listed}"),
                None => format!("known are {listed}"),
            };
            self.at("model_type", cause, &mend)
        })
    }

    fn refuse_what_is_not_planned(&self) -> Result<(), Problem> {
        if self.fields.get("quantization_config").is_some_and(|v| !v.is_null()) {
            let method = self.fields.get("quantization_config").and_then(|v| v.get("quant_method"));
            let method = method.and_then(Value::as_str).unwrap_or("of an unknown method");
            let cause = format!("the weights are quantized (`{method}`), which is not planned yet");
            return Err(self.at("quantization_config", cause, "remove it to plan the unquantized model"));
        }
        if self.fields.get("is_encoder_decoder").and_then(Value::as_bool) == Some(true) {
            let cause = "encoder-decoder models are not planned".to_owned();
            return Err(self.at("is_encoder_decoder", cause, "pass the config of a decoder-only model"));
        }
        Ok(())
    }

    fn window(&mut self, family: Family, layers: u64) -> Result<Option<Window>, Problem> {
        let first = match family.sliding_window {
            SlidingWindow::Never => return Ok(None),
            SlidingWindow::AllLayers => 0,
            SlidingWindow::UpperLayers => {
                if self.flag("use_sliding_window")? != Some(true) {
                    return Ok(None);
                }
                self.optional_number("max_window_layers", MAX_LAYERS)?
                    .unwrap_or_else(|| self.defaulted("max_window_layers", 28))
            }
        };
        let size = match self.fields.get("sliding_window") {
            None => Some(self.defaulted("sliding_window", 4096)),
            Some(_) => self.optional_number("sliding_window", u64::from(u32::MAX))?,
        };
        Ok(size.filter(|_| first < layers).map(|size| Window {
            size,
            first_layer: u32::try_from(first).unwrap_or(u32::MAX),
            beside_full: family.sliding_window == SlidingWindow::UpperLayers,
        }))
    }

    fn activation(&self) -> Result<Activation, Problem> {
        let Some(value) = self.fields.get("hidden_act").filter(|v| !v.is_null()) else {
            return Ok(Activation::Silu);
        };
        let known = Activation::NAMES.iter().find(|(name, _)| value.as_str() == Some(name));
        known.map(|(_, activation)| *activation).ok_or_else(|| {
            let names = Activation::NAMES.map(|(name, _)| name).join(", ");
            self.at(
                "hidden_act",
                format!("the activation {value} is not known"),
                &format!("known are {names}"),
            )
        })
    }

    fn size(&self, key: &'static str) -> Result<u64, Problem> {
        self.number(key, MAX_SIZE)
    }

    fn optional_size(&self, key: &'static str) -> Result<Option<u64>, Problem> {
        self.optional_number(key, MAX_SIZE)
    }

    fn number(&self, key: &'static str, limit: u64) -> Result<u64, Problem> {
        self.optional_number(key, limit)?.ok_or_else(|| {
            self.source
                .problem(format!("`{key}` is missing"))
                .mend(format!("add \"{key}\" as the model's config.json has it"))
        })
    }

    /// A whole number from 1 to `limit`; `null` counts as left out.
    fn optional_number(&self, key: &'static str, limit: u64) -> Result<Option<u64>, Problem> {
        let Some(value) = self.fields.get(key).filter(|v| !v.is_null()) else { return Ok(None) };
        match value {
            Value::Number(number) => match number.as_u64() {
                Some(number @ 1..) if number <= limit => Ok(Some(number)),
                Some(1..) => Err(self.at(
                    key,
                    format!("`{key}` is {value}, above the limit of {limit}"),
                    "check the number",
                )),
                _ => Err(self.at(key, format!("`{key}` is {value}"), "it is a whole number of 1 or more")),
            },
            Value::String(text) if text.parse::<u64>().is_ok() => {
                Err(self.at(key, format!("`{key}` is the text {value}"), "remove the quotes"))
            }
            _ => Err(self.at(key, format!("`{key}` is not a number"), "it is a whole number of 1 or more")),
        }
    }

    fn flag(&self, key: &'static str) -> Result<Option<bool>, Problem> {
        match self.fields.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.at(
                key,
                format!("`{key}` is not true or false"),
                "write true or false without quotes",
            )),
        }
    }

    fn probability(&self, key: &'static str) -> Result<f64, Problem> {
        match self.fields.get(key) {
            None | Some(Value::Null) => Ok(0.0),
            Some(value) => value.as_f64().filter(|p| (0.0..1.0).contains(p)).ok_or_else(|| {
                self.at(key, format!("`{key}` is {value}"), "it is a probability from 0 to below 1")
            }),
        }
    }

    fn defaulted(&mut self, key: &str, value: u64) -> u64 {
        self.defaults.push(format!("{key} = {value}"));
        value
    }

    fn at(&self, key: &str, cause: String, mend: &str) -> Problem {
        self.source.problem_at(&format!("/{key}"), cause).mend(mend)
    }
}
