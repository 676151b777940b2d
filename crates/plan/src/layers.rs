//! A set of decoder layers, as the command line writes it: `0-11+20`.

use peakledger_input::{Problem, quoted};
use std::fmt;
use std::str::FromStr;

const WORDS: usize = 16;

/// Decoder layers by their index from 0, up to [`Layers::MOST`] of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layers([u64; WORDS]);

impl Layers {
    /// Layers beyond this cannot be named.
    pub const MOST: u32 = 64 * 16;

    /// Whether a layer is one of them.
    pub fn contains(&self, layer: u32) -> bool {
        let word = usize::try_from(layer / 64).ok().and_then(|word| self.0.get(word));
        word.is_some_and(|word| word & (1 << (layer % 64)) != 0)
    }

    /// Adds a layer; nothing beyond [`Layers::MOST`].
    pub fn insert(&mut self, layer: u32) {
        if let Some(word) = usize::try_from(layer / 64).ok().and_then(|word| self.0.get_mut(word)) {
            *word |= 1 << (layer % 64);
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Layers::default()
    }

    /// The layers, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..Layers::MOST).filter(|layer| self.contains(*layer))
    }

    /// How many.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The last one.
    pub fn last(&self) -> Option<u32> {
        (0..Layers::MOST).rev().find(|layer| self.contains(*layer))
    }
}

impl FromIterator<u32> for Layers {
    fn from_iter<I: IntoIterator<Item = u32>>(layers: I) -> Layers {
        let mut set = Layers::default();
        layers.into_iter().for_each(|layer| set.insert(layer));
        set
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut plus = "";
        let mut layers = self.iter().peekable();
        while let Some(first) = layers.next() {
            let mut last = first;
            while layers.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            match last - first {
                0 => write!(f, "{plus}{first}")?,
                _ => write!(f, "{plus}{first}-{last}")?,
            }
            plus = "+";
        }
        Ok(())
    }
}

impl FromStr for Layers {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Layers, Problem> {
        let mut set = Layers::default();
        for part in text.split('+').map(str::trim) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let wrong = |cause: &str| {
                Err(Problem::anywhere(format!("{} {cause}", quoted(part)))
                    .mend("name layers from 0 on, with ranges and + between, as in `0-11+20`"))
            };
            match (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
                (Ok(first), Ok(last)) if first > last => {
                    return wrong("is a range that ends before it begins");
                }
                (Ok(_), Ok(last)) if last >= Layers::MOST => {
                    return wrong("is beyond the layers of any model");
                }
                (Ok(first), Ok(last)) => (first..=last).for_each(|layer| set.insert(layer)),
                _ => return wrong("is no layer and no range of layers"),
            }
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_written_as_they_are_read() {
        for (text, written, len) in
            [("0", "0", 1), ("0-3", "0-3", 4), ("5+0-1+ 2", "0-2+5", 4), ("63-64+1023", "63-64+1023", 3)]
        {
            let layers: Layers = text.parse().unwrap();
            assert_eq!((layers.to_string().as_str(), layers.len()), (written, len));
            assert_eq!(layers.iter().collect::<Layers>(), layers);
            assert_eq!(layers.last(), layers.iter().last());
        }
        assert!(Layers::default().is_empty() && !Layers::default().contains(0));
    }

    #[test]
    fn what_names_no_layers_is_refused() {
        for (text, says) in [
            ("", "is no layer"),
            ("3-1", "ends before it begins"),
            ("1024", "beyond the layers"),
            ("a", "is no layer"),
            ("1-", "is no layer"),
            ("-1", "is no layer"),
            ("99999999999", "is no layer"),
        ] {
            let said = text.parse::<Layers>().unwrap_err().to_string();
            assert!(said.contains(says), "{text}: {said}");
        }
    }
}
