//! The shapes that every family has, and what they must be to each other.

use super::Reader;
use super::values::MAX_LAYERS;
use crate::config::{Shape, Window};
use peakledger_input::{Problem, quoted};
use serde_json::Value;

/// What a family's file may leave out of the common shapes.
pub(crate) struct Defaults {
    pub(crate) max_position_embeddings: u64,
    pub(crate) tie_word_embeddings: bool,
    /// Key heads where the file says nothing; where it says `null`, and for most families, as many as query heads.
    pub(crate) num_key_value_heads: Option<u64>,
    /// A head's width that does not follow from the hidden size.
    pub(crate) head_dim: Option<u64>,
}

impl Reader<'_> {
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
        let num_key_value_heads = self.key_heads(num_attention_heads, defaults)?;
        let head_dim = self.head_dim(hidden_size, num_attention_heads, defaults)?;
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

    /// Key and value heads, each of which serves as many query heads.
    fn key_heads(&mut self, query_heads: u64, defaults: &Defaults) -> Result<u64, Problem> {
        let usual = defaults.num_key_value_heads.filter(|_| self.field("num_key_value_heads").is_none());
        let key_heads = match (self.optional_size(&["num_key_value_heads"])?, usual) {
            (Some(heads), _) => heads,
            (None, Some(usual)) => self.defaulted("num_key_value_heads", usual),
            (None, None) => query_heads,
        };
        if !query_heads.is_multiple_of(key_heads) {
            let cause = format!(
                "`num_attention_heads` ({query_heads}) is no multiple of `num_key_value_heads` ({key_heads})"
            );
            let mend = "each key head serves the same number of query heads";
            return Err(self.at("num_key_value_heads", &cause, mend));
        }
        Ok(key_heads)
    }

    /// The width of a head, which follows from the hidden size unless it is said.
    fn head_dim(&self, hidden_size: u64, heads: u64, defaults: &Defaults) -> Result<u64, Problem> {
        match self.optional_size(&["head_dim"])?.or(defaults.head_dim) {
            Some(head_dim) => Ok(head_dim),
            None if hidden_size.is_multiple_of(heads) => Ok(hidden_size / heads),
            None => {
                let cause = format!(
                    "`hidden_size` ({hidden_size}) is no multiple of `num_attention_heads` ({heads}) and there is no `head_dim`"
                );
                let key = self.named(&["hidden_size", "n_embd"]);
                Err(self.at(key, &cause, "add `head_dim`, or correct one of the two"))
            }
        }
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
}
