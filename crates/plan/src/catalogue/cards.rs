//! Cards: total memory as `torch.cuda.get_device_properties().total_memory` has it, which is less than the box says.

use super::meant::{letters, meant};
use super::speeds::{self, Speeds};
use peakledger_core::Bytes;
use peakledger_input::{Problem, quoted};
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
    /// Its peak rates, where it is a known card.
    pub speeds: Option<Speeds>,
}

impl Card {
    /// What the CUDA context of a process takes of it: as it was measured on the card, if it was.
    pub fn context(&self) -> Bytes {
        self.context.unwrap_or(CUDA_CONTEXT)
    }

    /// What that leaves.
    pub fn beside_the_context(&self) -> Bytes {
        Bytes::new(self.total.get().saturating_sub(self.context().get()))
    }

    /// Where it is just an amount, and one that cards are sold with: that these have another.
    pub(crate) fn caveat(&self) -> Option<String> {
        if self.full_name.is_some() {
            return None;
        }
        let digits: String = self.name.chars().take_while(char::is_ascii_digit).collect();
        let size: u64 = digits.parse().ok()?;
        let is_giga = self.name.trim_start_matches(&digits).trim_start().starts_with(['g', 'G']);
        let sold_with = |card: &&Card| card.total.get().div_ceil(1 << 30) == size;
        let mut sold: Vec<&Card> = cards().filter(sold_with).filter(|_| is_giga).collect();
        sold.sort_by_key(|card| card.total);
        let (least, most) = (sold.first()?, sold.last()?);
        let totals = match least.total.to_string() == most.total.to_string() {
            true => least.total.to_string(),
            false => format!("{} to {}", least.total, most.total),
        };
        Some(format!(
            "--gpu {} is taken for {}; a card that is sold with {size} GB has {totals}: name it, as in --gpu {}",
            self.name, self.total, least.name
        ))
    }
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
    speeds: speeds::Entry,
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
            speeds: Some(entry.speeds.into()),
        };
        Known { card, aliases: entry.aliases }
    }

    /// All names that it is found by.
    fn names(&self) -> impl Iterator<Item = &str> {
        let own = [Some(&self.card.name), self.card.full_name.as_ref()].into_iter().flatten();
        own.chain(&self.aliases).map(String::as_str)
    }
}

/// The cards that are known, by generation.
pub fn cards() -> impl ExactSizeIterator<Item = &'static Card> {
    KNOWN.iter().map(|known| &known.card)
}

/// The card of that name, or that amount of memory: `a100-80gb`, `80GiB`. Dashes, spaces and case do not matter, and
/// the size may be left out where one card has that name.
///
/// # Errors
/// Says that there is none, and which name is near; or that there are several, and which.
pub fn card(name: &str) -> Result<Card, Problem> {
    let asked = letters(name);
    let is_asked = |known: &&Known| known.names().any(|known| letters(known) == asked);
    if let Some(known) = KNOWN.iter().find(is_asked) {
        return Ok(known.card.clone());
    }
    let is_of = |known: &&Known| known.names().any(|known| letters(without_size(known)) == asked);
    match KNOWN.iter().filter(is_of).collect::<Vec<_>>().as_slice() {
        [] => {}
        [one] => return Ok(one.card.clone()),
        several => {
            let sizes = several.iter().map(|Known { card, .. }| format!("`{}` ({})", card.name, card.total));
            let mend = format!("name one: {}", sizes.collect::<Vec<_>>().join(", "));
            let cause = format!("{SEVERAL} {}", quoted(name));
            return Err(Problem::in_option("--gpu", cause).mend(mend));
        }
    }
    if let Some(mend) = several_cards(name) {
        return Err(Problem::in_option("--gpu", format!("{} are several cards", quoted(name))).mend(mend));
    }
    if name.contains(',') {
        let problem = Problem::in_option("--gpu", format!("{} are several cards", quoted(name)));
        return Err(problem.mend("name one: a plan is of one kind of card, so ask once for each"));
    }
    if let Some(total) = amount(name)? {
        let (name, source) = (name.trim().to_owned(), "as given".to_owned());
        let (full_name, capability, context, speeds) = (None, None, None, None);
        return Ok(Card { name, full_name, total, capability, source, context, speeds });
    }
    let names: Vec<&str> = cards().map(|card| card.name.as_str()).collect();
    let meant = meant(name, &names);
    let mend =
        format!("{meant}`peakledger list gpus` shows the known ones; an amount such as 80GiB works too");
    Err(Problem::in_option("--gpu", format!("the card {} is not known", quoted(name))).mend(mend))
}

/// How `8xH100` is asked for, as people write eight cards of a name; nothing where it is something else.
pub fn several_cards(text: &str) -> Option<String> {
    fn of(text: &str) -> Option<(u32, &str)> {
        let (count, name) = text.split_once(['x', 'X', '×', '*'])?;
        Some((count.trim().parse().ok().filter(|count| *count > 0)?, name.trim()))
    }
    let (count, name) = of(text.trim()).filter(|(_, name)| of(name).is_none())?;
    match card(name) {
        Ok(_) => Some(format!("write `--gpu {name} --gpus {count}`")),
        Err(problem) if problem.cause.starts_with(SEVERAL) => {
            Some(format!("write `--gpu NAME --gpus {count}`; {}", problem.mend.unwrap_or_default()))
        }
        Err(_) => None,
    }
}

/// How it is said that a name is that of more than one card.
const SEVERAL: &str = "there are several cards";

/// A name of the catalogue without the memory at its end: `h100` of `h100-80gb` as of `h100-94gb`.
fn without_size(name: &str) -> &str {
    let is_size = |end: &str| end.strip_suffix("gb").is_some_and(|size| size.parse::<u32>().is_ok());
    name.rsplit_once('-').filter(|(_, end)| is_size(end)).map_or(name, |(name, _)| name)
}

/// An amount of memory: digits and a unit. Nothing where it is something else, a card that begins with a digit.
fn amount(text: &str) -> Result<Option<Bytes>, Problem> {
    let is_amount =
        text.trim().starts_with(|c: char| c.is_ascii_digit()) && text.trim().ends_with(['b', 'B']);
    let wrong = |why: &str| {
        Problem::in_option("--gpu", format!("{} {why}", quoted(text))).mend("write an amount as 80GiB")
    };
    let bare = || {
        let problem = Problem::in_option(
            "--gpu",
            format!("{} is no card, and as an amount it lacks a unit", quoted(text)),
        );
        problem.mend(format!("write the unit: `--gpu {}GiB`", text.trim()))
    };
    match Bytes::parse(text) {
        Ok(Bytes::ZERO) => Err(wrong("is no memory at all")),
        Ok(_) if text.trim().ends_with(|c: char| c.is_ascii_digit()) => Err(bare()),
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
        for known in KNOWN.iter() {
            let name = &known.card.name;
            for other in known.names() {
                assert_eq!(card(other).unwrap().name, *name);
                assert_eq!(card(&other.to_uppercase().replace('-', "")).unwrap().name, *name);
            }
            let card = card(name).unwrap();
            assert!(
                card.capability.is_some() && card.total > Bytes::new(4 << 30) && !card.source.is_empty(),
                "{name}"
            );
            let speeds = card.speeds.unwrap();
            let is_half = |rate: Option<u64>| rate.is_none_or(|rate| rate > speeds.fp32);
            assert!(
                is_half(speeds.fp16) && is_half(speeds.bf16) && speeds.memory > 100_000_000_000,
                "{name}"
            );
            assert_eq!(speeds.bf16.is_some(), card.capability >= Some((8, 0)), "{name}");
            assert!(!speeds.source.is_empty(), "{name}");
        }
    }

    #[test]
    fn a_size_is_left_out_only_where_there_is_one() {
        for (asked, found) in [
            ("rtx4090", "rtx-4090"),
            ("RTX3080", "rtx-3080-10gb"),
            ("3080", "rtx-3080-10gb"),
            ("A100 80GB", "a100-80gb"),
            ("h100-nvl", "h100-94gb"),
            ("p100", "p100-16gb"),
        ] {
            assert_eq!(card(asked).unwrap().name, found, "{asked}");
        }
        for (asked, sizes) in [
            ("h100", ["`h100-80gb` (79.11 GiB)", "`h100-94gb` (93.00 GiB)"]),
            ("A100", ["`a100-80gb` (79.15 GiB)", "`a100-40gb` (39.39 GiB)"]),
            ("a100-sxm4", ["`a100-80gb` (", "`a100-40gb` ("]),
            ("v100", ["`v100-32gb` (31.73 GiB)", "`v100-16gb` (15.77 GiB)"]),
        ] {
            let said = card(asked).unwrap_err().to_string();
            assert!(
                said.contains(&format!("there are several cards `{asked}`\n  help: name one: ")),
                "{said}"
            );
            assert!(sizes.iter().all(|size| said.contains(size)), "{said}");
        }
    }

    #[test]
    fn several_cards_are_one_name_and_a_number() {
        let mend = |text: &str| card(text).unwrap_err().mend.unwrap();
        assert_eq!(mend("8xh100-80gb"), "write `--gpu h100-80gb --gpus 8`");
        assert_eq!(mend("2 x RTX4090"), "write `--gpu RTX4090 --gpus 2`");
        assert_eq!(mend("4x80GiB"), "write `--gpu 80GiB --gpus 4`");
        let said = card("24GB,48GB").unwrap_err().to_string();
        assert!(said.contains("`24GB,48GB` are several cards\n  help: name one"), "{said}");
        let said = mend("8xH100");
        assert!(said.starts_with("write `--gpu NAME --gpus 8`; name one: `h100-80gb` ("), "{said}");
        assert_eq!(several_cards("2x2xh100"), None);
        assert_eq!(several_cards("8xh1000"), None);
    }

    #[test]
    fn an_amount_that_cards_are_sold_with_is_told_from_theirs() {
        let caveat = |amount: &str| card(amount).unwrap().caveat().unwrap_or_default();
        insta::assert_snapshot!(caveat("24GB"), @"--gpu 24GB is taken for 22.35 GiB; a card that is sold with 24 GB has 23.51 GiB to 23.64 GiB: name it, as in --gpu rtx-4090");
        insta::assert_snapshot!(caveat("80 GiB"), @"--gpu 80 GiB is taken for 80.00 GiB; a card that is sold with 80 GB has 79.11 GiB to 79.15 GiB: name it, as in --gpu h100-80gb");
        for quiet in ["rtx-4090", "100GiB", "24576MiB", "23.6GiB", "1TB"] {
            assert_eq!(caveat(quiet), "", "{quiet}");
        }
    }

    #[test]
    fn amounts_and_slips() {
        assert_eq!(card("80GiB").unwrap().total, Bytes::new(80 << 30));
        assert_eq!(card("RTX 4090").unwrap().name, "rtx-4090");
        assert_eq!((card("t4").unwrap().capability, card("24gb").unwrap().capability), (Some((7, 5)), None));
        assert!(card("gtx 4090").unwrap_err().to_string().contains("did you mean"));
        for (text, bytes) in
            [("1_0GiB", 10 << 30), ("80 GiB", 80 << 30), ("24G", 24 << 30), ("0.5 PiB", 1 << 49)]
        {
            assert_eq!(card(text).unwrap().total, Bytes::new(bytes), "{text}");
        }
        for (text, says) in [("0GiB", "is no memory at all"), ("8QB", "has a unit other")] {
            let said = card(text).unwrap_err().to_string();
            assert!(said.contains(says) && said.contains("\n  help: write an amount as 80GiB"), "{said}");
        }
        let bare = card(" 24").unwrap_err().to_string();
        assert!(bare.contains("lacks a unit\n  help: write the unit: `--gpu 24GiB`"), "{bare}");
        for bad in ["0GiB", "80 QiB", "", "99999999999999999999GiB", "1.2.3GiB"] {
            assert!(card(bad).is_err(), "{bad}");
        }
    }
}
