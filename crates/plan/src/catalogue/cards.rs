//! Cards: total memory as `torch.cuda.get_device_properties().total_memory` has it, which is less than the box says.

use peakledger_core::Bytes;
use peakledger_input::{Problem, near, quoted};
use serde::Deserialize;
use std::sync::LazyLock;

/// A card, or just an amount of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// What it was asked for as.
    pub name: String,
    /// The name that the driver gives, where the card is known.
    pub full_name: Option<String>,
    /// Its memory as torch reports it.
    pub total: Bytes,
    /// Compute capability, major and minor: sm80 is (8, 0).
    pub capability: Option<(u8, u8)>,
    /// Where the figure was seen.
    pub source: String,
    /// The CUDA context of a process on it, where that was measured.
    pub context: Option<Bytes>,
}

/// The CUDA context of a process, with modules loaded lazily, where it was not measured: about 300 MB
/// (pytorch/pytorch#107667).
pub const CUDA_CONTEXT: Bytes = Bytes::new(300_000_000);

/// An entry of `gpus.json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    full_name: String,
    aliases: Vec<String>,
    total_bytes: u64,
    compute_capability: String,
    source: String,
    context_bytes: Option<u64>,
}

/// A card that is known, and the other names that it goes by.
struct Known {
    card: Card,
    aliases: Vec<String>,
}

static KNOWN: LazyLock<Vec<Known>> =
    LazyLock::new(|| match serde_json::from_str::<Vec<Entry>>(include_str!("gpus.json")) {
        Ok(entries) => entries.into_iter().map(Known::of).collect(),
        Err(error) => unreachable!("gpus.json is built in and read by a test: {error}"),
    });

impl Known {
    fn of(entry: Entry) -> Known {
        let capability = entry.compute_capability.split_once('.');
        let capability =
            capability.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let card = Card {
            name: entry.name,
            full_name: Some(entry.full_name),
            total: Bytes::new(entry.total_bytes),
            capability,
            source: entry.source,
            context: entry.context_bytes.map(Bytes::new),
        };
        Known { card, aliases: entry.aliases }
    }
}

/// The cards that are known, by generation.
pub fn cards() -> impl ExactSizeIterator<Item = &'static Card> {
    KNOWN.iter().map(|known| &known.card)
}

/// The card of that name, or that amount of memory: `a100-80gb`, `80GiB`.
///
/// # Errors
/// Says that there is none, and which name is near.
pub fn card(name: &str) -> Result<Card, Problem> {
    let wanted = name.trim().to_ascii_lowercase().replace([' ', '_'], "-");
    let is_wanted = |known: &&Known| known.card.name == wanted || known.aliases.contains(&wanted);
    if let Some(known) = KNOWN.iter().find(is_wanted) {
        return Ok(known.card.clone());
    }
    if let Some(total) = amount(name)? {
        let (name, source) = (name.trim().to_owned(), "as given".to_owned());
        return Ok(Card { name, full_name: None, total, capability: None, source, context: None });
    }
    let mend = match near(&wanted, cards().map(|card| card.name.as_str())) {
        Some(near) => format!(
            "did you mean `{near}`? `peakledger list gpus` shows all; an amount such as 80GiB works too"
        ),
        None => "`peakledger list gpus` shows the known ones; an amount such as 80GiB works too".to_owned(),
    };
    Err(Problem::in_option("--gpu", format!("the card {} is not known", quoted(name))).mend(mend))
}

/// An amount of memory: digits and a unit. Nothing where it is something else, a card that begins with a digit.
fn amount(text: &str) -> Result<Option<Bytes>, Problem> {
    let is_amount =
        text.trim().starts_with(|c: char| c.is_ascii_digit()) && text.trim().ends_with(['b', 'B']);
    let wrong = |why: &str| {
        Problem::in_option("--gpu", format!("{} {why}", quoted(text))).mend("write an amount as 80GiB")
    };
    match Bytes::parse(text) {
        Ok(Bytes::ZERO) => Err(wrong("is no memory at all")),
        Ok(_) if text.trim().ends_with(|c: char| c.is_ascii_digit()) => {
            Err(wrong("is no card, and as an amount it lacks a unit"))
        }
        Ok(total) => Ok(Some(total)),
        Err(why) if is_amount => Err(wrong(why)),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_card_is_found_by_its_names() {
        assert!(cards().len() >= 30);
        for Known { card: known, aliases } in KNOWN.iter() {
            let name = &known.name;
            for alias in aliases.iter().chain([name]) {
                assert_eq!(card(alias).unwrap().name, *name);
            }
            let card = card(name).unwrap();
            assert!(
                card.capability.is_some() && card.total > Bytes::new(4 << 30) && !card.source.is_empty(),
                "{name}"
            );
        }
    }

    #[test]
    fn amounts_and_slips() {
        assert_eq!(card("80GiB").unwrap().total, Bytes::new(80 << 30));
        assert_eq!(card("RTX 4090").unwrap().name, "rtx-4090");
        assert_eq!((card("t4").unwrap().capability, card("24gb").unwrap().capability), (Some((7, 5)), None));
        assert!(card("h10").unwrap_err().to_string().contains("did you mean"));
        for (text, bytes) in
            [("1_0GiB", 10 << 30), ("80 GiB", 80 << 30), ("24G", 24 << 30), ("0.5 PiB", 1 << 49)]
        {
            assert_eq!(card(text).unwrap().total, Bytes::new(bytes), "{text}");
        }
        for (text, says) in
            [("0GiB", "is no memory at all"), ("80", "lacks a unit"), ("8QB", "has a unit other")]
        {
            let said = card(text).unwrap_err().to_string();
            assert!(said.contains(says) && said.contains("\n  help: write an amount as 80GiB"), "{said}");
        }
        for bad in ["0GiB", "80 QiB", "", "99999999999999999999GiB", "1.2.3GiB"] {
            assert!(card(bad).is_err(), "{bad}");
        }
    }
}
