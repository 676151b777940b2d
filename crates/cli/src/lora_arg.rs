//! `--lora`: the adapters that are trained in the place of the model.

use crate::parsers;
use peakledger_input::{Problem, quoted};
use peakledger_plan::Dtype;
use peakledger_plan::options::{Lora, LoraTargets};
use std::str::FromStr;

/// A type by its name.
fn half_or_whole(name: &str) -> Option<Dtype> {
    match name {
        "fp32" => Some(Dtype::F32),
        "bf16" => Some(Dtype::Bf16),
        "fp16" => Some(Dtype::F16),
        _ => None,
    }
}

/// `r=16,alpha=32,dropout=0.05,dtype=fp32,targets=q_proj+v_proj`, or none; alpha changes no byte.
#[derive(Clone)]
pub(crate) struct LoraArg(pub(crate) Option<Lora>);

impl FromStr for LoraArg {
    type Err = Problem;

    fn from_str(text: &str) -> Result<LoraArg, Problem> {
        let wrong = |cause: String| Problem::anywhere(cause).mend(parsers::LORA);
        if parsers::is_without(text) {
            return Ok(LoraArg(None));
        }
        let mut lora = Lora { rank: 0, ..Lora::default() };
        if text.trim().is_empty() {
            return Err(wrong("its value is missing".to_owned()));
        }
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let Some((key, value)) = part.split_once('=') else {
                let cause = format!("{} is not KEY=VALUE", quoted(part));
                return Err(match seen.last().copied() {
                    // a list of names takes a plus between them
                    Some(list @ ("targets" | "save")) => {
                        Problem::anywhere(cause).mend(format!("join names by `+`: `{}`", joined(text, list)))
                    }
                    _ => wrong(cause),
                });
            };
            let is = |what: &str| wrong(format!("`{key}` is {what}, not {}", quoted(value)));
            match key {
                "r" => match value.parse::<u64>() {
                    Ok(rank @ 1..=65_536) => lora.rank = rank,
                    _ => return Err(is("a whole number from 1 to 65536")),
                },
                "alpha" => drop(value.parse::<f64>().map_err(|_| is("a number"))?),
                "dropout" => match value.parse::<f64>() {
                    Ok(dropout) if (0.0..1.0).contains(&dropout) => lora.dropout = dropout,
                    _ => return Err(is("a number from 0 to below 1")),
                },
                "dtype" => {
                    lora.dtype = half_or_whole(value).ok_or_else(|| is("fp32, bf16 or fp16"))?;
                }
                "targets" if value == "all-linear" => lora.targets = LoraTargets::AllLinear,
                "targets" => {
                    let names = value.split('+').map(|name| name.trim().to_owned()).collect();
                    lora.targets = LoraTargets::Named(names);
                }
                "save" => {
                    // peft takes a path for the module at its end
                    let name = |path: &str| path.rsplit('.').next().unwrap_or(path).trim().to_owned();
                    lora.save = value.split('+').map(name).collect();
                }
                "save_dtype" => {
                    lora.save_dtype = Some(half_or_whole(value).ok_or_else(|| is("fp32, bf16 or fp16"))?);
                }
                _ => {
                    let cause = format!(
                        "{} is none of r, alpha, dropout, dtype, targets, save, save_dtype",
                        quoted(key)
                    );
                    return Err(wrong(cause));
                }
            }
            if seen.contains(&key) {
                return Err(wrong(format!("`{key}` is given twice")));
            }
            seen.push(key);
        }
        match lora.rank {
            0 => Err(wrong("`r`, the rank, is missing".to_owned())),
            _ => Ok(LoraArg(Some(lora))),
        }
    }
}

/// The list of that name with all that follows it up to the next key, joined as it is written: `targets=q_proj+v_proj`.
fn joined(text: &str, list: &str) -> String {
    let parts = text.split(',').map(str::trim);
    let mut of_list = parts.skip_while(|part| part.split_once('=').is_none_or(|(key, _)| key != list));
    let first = of_list.next().unwrap_or_default();
    let names = of_list.take_while(|part| !part.contains('='));
    std::iter::once(first).chain(names).collect::<Vec<_>>().join("+")
}
