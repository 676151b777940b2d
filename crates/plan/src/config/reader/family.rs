//! Whose model a config is: its family, what of it is refused, and what is said to be left out.

use super::Reader;
use crate::model::{FAMILIES, Family};
use peakledger_core::printable;
use peakledger_input::{Problem, misspelt_name, quoted};
use serde_json::{Map, Value};

impl Reader<'_> {
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
        if let Some(config) = self.fields.get("quantization_config").filter(|value| !value.is_null()) {
            let method = config.get("quant_method").and_then(Value::as_str);
            let (cause, mend) = match packed_by_bitsandbytes(config) {
                Some(option) => (
                    "the weights are packed by bitsandbytes, which an option says and not the config".to_owned(),
                    format!("remove `quantization_config` and plan with `--quantize {option}`, which packs them so"),
                ),
                None => (
                    format!(
                        "the weights are quantized{}, which is not planned",
                        method.map(|method| format!(" ({})", quoted(method))).unwrap_or_default()
                    ),
                    "remove `quantization_config` to plan the model as it was; `--quantize` says what is planned: nf4, \
                     nf4-double and int8 of bitsandbytes"
                        .to_owned(),
                ),
            };
            return Err(self.at("quantization_config", &cause, &mend));
        }
        if self.flag("is_encoder_decoder")? == Some(true) {
            let cause = "encoder-decoder models are not planned";
            return Err(self.at("is_encoder_decoder", cause, "pass the config of a decoder-only model"));
        }
        Ok(())
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
}

/// The value of `--quantize` that packs weights as this does, where bitsandbytes has them (`BitsAndBytesConfig`). Its fp4
/// takes what nf4 does.
fn packed_by_bitsandbytes(config: &Value) -> Option<&'static str> {
    let is = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
    if is("load_in_4bit") {
        Some(if is("bnb_4bit_use_double_quant") { "nf4-double" } else { "nf4" })
    } else if is("load_in_8bit") {
        Some("int8")
    } else {
        None
    }
}

/// The fields of the text model, where a model of another family has one of a family that is known.
pub(super) fn text_model(
    mut fields: Map<String, Value>,
) -> (Map<String, Value>, Option<(&'static str, String)>) {
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
