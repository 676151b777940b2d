//! What the words of the command line become: numbers, sizes, and what a step goes with or without.

use crate::other_words;
use crate::step_args::Parts;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use peakledger_core::Bytes;
use peakledger_input::{Problem, quoted};
use peakledger_plan::catalogue::several_cards;
use peakledger_plan::options::{Frozen, Offload, Recompute};

/// How `--lora` is written, with the defaults of what may be left out.
pub(crate) const LORA: &str = "write it as `r=16`; left out are `dropout=0`, `dtype=fp32` and `targets=all-linear`, as in \
     `r=16,dropout=0.05,dtype=bf16,targets=q_proj+v_proj`; `save=embed_tokens+lm_head` trains these too (`alpha` is taken and changes no byte); `none` trains none";

/// How `--recompute` is written.
pub(crate) const RECOMPUTE: &str = "choose one of `none`, `full`, `every:N` (as in `every:4`), `layers:SET` (as in `layers:0-11+20`), `block:N` (the first N of each stage), `selective`";

/// How `--offload` is written.
pub(crate) const OFFLOAD: &str =
    "choose of `activations`, `optimizer`, `parameters`, several with commas between, or `none`";

/// How `--freeze` is written.
pub(crate) const FREEZE: &str =
    "name modules as the model has them, as in `model.embed_tokens+model.layers.0-15`, or `none`";

/// A number of sequences, tokens or the like; that it is not 0 is checked where it is known what it counts.
pub(crate) fn count<N: TryFrom<u64>>(text: &str) -> Result<N, Problem> {
    let wrong = |cause: &str, mend: &str| Problem::anywhere(format!("{} {cause}", quoted(text))).mend(mend);
    // more than this is beyond any use, and keeps products of two numbers far from 64 bits
    const MOST: u64 = 1 << 32;
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        let number = text.parse::<u64>().ok().filter(|number| *number <= MOST).map(N::try_from);
        return match number {
            Some(Ok(number)) => Ok(number),
            Some(Err(_)) => Err(wrong("is too large", "check the number")),
            None => Err(wrong("is more than 2^32", "check the number")),
        };
    }
    if let Some(mend) = several_cards(text) {
        return Err(wrong("is not a whole number", &mend));
    }
    Err(wrong("is not a whole number", "it is a whole number of 1 or more, in plain digits"))
}

/// How many numbers a buffer has or parameters are: plain digits, or as DeepSpeed's configs have them, `5e8`.
pub(crate) fn numbers(text: &str) -> Result<u64, Problem> {
    let wrong = |cause: &str, mend: &str| Problem::anywhere(format!("{} {cause}", quoted(text))).mend(mend);
    // what JSON's numbers hold to the last digit; bytes of so many are far from 64 bits
    const MOST: u64 = 1 << 53;
    let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let exponent = exponent.strip_prefix('+').unwrap_or(exponent);
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_written = !whole.is_empty() && !exponent.is_empty();
    if !(is_written && [whole, fraction, exponent].into_iter().all(is_number)) {
        return Err(wrong("is not a whole number", "write plain digits, or as in `5e8`"));
    }
    let places = u32::try_from(fraction.len()).ok().zip(exponent.parse::<u32>().ok());
    let number = places.and_then(|(places, exponent)| {
        let ones: u64 = format!("{whole}{fraction}").parse().ok()?;
        ones.checked_mul(10u64.checked_pow(exponent.checked_sub(places)?)?)
    });
    match number {
        Some(number) if number <= MOST => Ok(number),
        None if fraction.len() > exponent.parse().unwrap_or(usize::MAX) => {
            Err(wrong("is not a whole number", "write plain digits, or as in `5e8`"))
        }
        _ => Err(wrong("is more than 2^53", "check the number")),
    }
}

/// An amount of memory: digits and a unit.
pub(crate) fn size(text: &str) -> Result<u64, Problem> {
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    let parsed = Bytes::parse(text).ok().filter(|_| has_unit);
    let wrong = || Problem::anywhere(format!("{} is no amount of memory", quoted(text)));
    parsed.map(Bytes::get).ok_or_else(|| wrong().mend("write it as 512MiB"))
}

/// A network's Gb/s in bits a second: plain digits, with a point where it has one.
pub(crate) fn gbps(text: &str) -> Result<u64, Problem> {
    let wrong = |cause: &str| {
        let mend = "write Gb/s for each GPU, more than 0 and at most 1000000: 400, or 12.5";
        Err(Problem::anywhere(format!("{} {cause}", quoted(text))).mend(mend))
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || fraction.len() > 9 {
        return wrong("is no rate of a network");
    }
    let bits = format!("{whole}{fraction:0<9}").parse::<u64>().ok();
    match bits.filter(|bits| (1..=1_000_000_000_000_000).contains(bits)) {
        Some(bits) => Ok(bits),
        None => wrong("is no rate that a network has"),
    }
}

/// Whether a word says that a step goes without an option.
pub(crate) fn is_without(text: &str) -> bool {
    matches!(text.trim(), "none" | "off")
}

/// True or false, also in the words that people have for them.
pub(crate) fn flag() -> impl TypedValueParser<Value = bool> {
    let values = [
        PossibleValue::new("true").aliases(["on", "yes"]),
        PossibleValue::new("false").aliases(["off", "none", "no"]),
    ];
    PossibleValuesParser::new(values).map(|word| matches!(word.as_str(), "true" | "on" | "yes"))
}

/// The momentum, a number; its range is checked with the step.
pub(crate) fn momentum(text: &str) -> Result<f64, Problem> {
    if is_without(text) {
        return Ok(0.0);
    }
    text.parse().map_err(|_| {
        Problem::anywhere(format!("{} is not a number", quoted(text))).mend("use a number from 0 to 1")
    })
}

/// What waits on the host: some of activations, optimizer and parameters, or none.
pub(crate) fn offload(text: &str) -> Result<Offload, Problem> {
    let mut offload = Offload::default();
    if is_without(text) {
        return Ok(offload);
    }
    for word in text.split(',').map(str::trim) {
        let part = match word {
            "activations" => &mut offload.activations,
            "optimizer" => &mut offload.optimizer,
            "parameters" => &mut offload.parameters,
            _ => return Err(no_value("--offload", word, OFFLOAD)),
        };
        *part = true;
    }
    Ok(offload)
}

/// The parts of a model that are not trained; a range at the end is of a list of modules.
pub(crate) fn freeze(text: &str) -> Result<Parts, Problem> {
    if is_without(text) {
        return Ok(Parts(Vec::new()));
    }
    let part = |text: &str| {
        let wrong = |cause: &str| Problem::anywhere(format!("{} {cause}", quoted(text))).mend(FREEZE);
        if text.is_empty() {
            return Err(Problem::anywhere("it names an empty part").mend(FREEZE));
        }
        let whole = Frozen { prefix: text.to_owned(), range: None };
        let Some((prefix, (first, last))) =
            text.rsplit_once('.').and_then(|(prefix, last)| Some((prefix, last.split_once('-')?)))
        else {
            return Ok(whole);
        };
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => {
                Ok(Frozen { prefix: prefix.to_owned(), range: Some((first, last)) })
            }
            (Ok(_), Ok(_)) => Err(wrong("is a range that ends before it begins")),
            _ => Ok(whole),
        }
    };
    text.split('+').map(|text| part(text.trim())).collect::<Result<_, _>>().map(Parts)
}

/// The load of the busiest expert over the mean; its range is checked with the step.
pub(crate) fn imbalance(text: &str) -> Result<f64, Problem> {
    text.parse().map_err(|_| {
        Problem::anywhere(format!("{} is not a number", quoted(text))).mend("use a number of 1 or more")
    })
}

/// What is computed again: none, full, every:N, layers:SET, block:N, or selective.
pub(crate) fn recompute(text: &str) -> Result<Recompute, Problem> {
    let wrong = |cause: String| Problem::anywhere(cause).mend(RECOMPUTE);
    match text.split_once(':') {
        Some(("layers", layers)) => layers.parse().map(Recompute::Layers),
        None if is_without(text) => Ok(Recompute::None),
        None if text == "full" => Ok(Recompute::Full),
        None if text == "selective" => Ok(Recompute::Selective),
        Some(("every", layers)) => match layers.parse() {
            Ok(layers) => Ok(Recompute::Every(layers)),
            Err(_) => Err(wrong(format!("{} is no number of layers", quoted(layers)))),
        },
        Some(("block", layers)) => match layers.parse() {
            Ok(layers) => Ok(Recompute::Block(layers)),
            Err(_) => Err(wrong(format!("{} is no number of layers", quoted(layers)))),
        },
        _ => Err(no_value("--recompute", text, RECOMPUTE)),
    }
}

/// A word that is none of an option's values, with the one that another tool's word means or else how they are written.
fn no_value(option: &str, word: &str, written: &str) -> Problem {
    let problem = Problem::anywhere(format!("{} is none of its values", quoted(word)));
    match other_words::value(option, word) {
        Some(meant) => problem.mend(meant),
        None => problem.mend(written),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_deepspeed_has_them() {
        let numbers = |text| numbers(text).map_err(|problem| problem.cause);
        for (text, number) in [
            ("0", 0),
            ("500000000", 500_000_000),
            ("5e8", 500_000_000),
            ("2.5E+3", 2500),
            ("1e14", 100_000_000_000_000),
            ("9007199254740992", 1 << 53),
        ] {
            assert_eq!(numbers(text), Ok(number), "{text}");
        }
        for text in ["", "-1", "e8", "1e", "1.5", "1e-3", "0x10", "1e2e3", "1..2"] {
            assert_eq!(numbers(text), Err(format!("`{text}` is not a whole number")), "{text}");
        }
        for text in ["1e16", "9007199254740993", "99999999999999999999999", "1e99999999999"] {
            assert_eq!(numbers(text), Err(format!("`{text}` is more than 2^53")), "{text}");
        }
    }

    #[test]
    fn numbers_and_what_is_none() {
        assert_eq!((count::<u64>("4096").ok(), count::<u64>("0").ok()), (Some(4096), Some(0)));
        for (text, says) in [
            ("-1", "`-1` is not a whole number"),
            ("1e3", "`1e3` is not a whole number"),
            ("1.5", "not a whole number"),
            ("", "not a whole number"),
            ("1000000000000", "is more than 2^32"),
            ("99999999999999999999999", "is more than 2^32"),
        ] {
            let said = count::<u64>(text).unwrap_err().to_string();
            assert!(said.contains(says) && said.contains("\n  help: "), "{said}");
        }
        assert!(count::<u32>("4294967296").is_err(), "no room in 32 bits");
        assert!(momentum("a lot").is_err());
    }
}
