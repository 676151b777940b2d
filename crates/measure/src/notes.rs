//! What is said of a file beside its figures: each thing that was skipped, guessed or repaired, how often, and where first.

use peakledger_input::grouped;

/// How many different things are told apart.
const MOST_KINDS: usize = 64;

/// A list of remarks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    kinds: Vec<Kind>,
    more: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Kind {
    text: String,
    count: u64,
    first: String,
}

impl Notes {
    /// Remarks something; of one kind the first place is kept (`at event 7`), and how many there are.
    pub(crate) fn add(&mut self, text: impl AsRef<str>, place: impl FnOnce() -> String) {
        let text = text.as_ref();
        if let Some(kind) = self.kinds.iter_mut().find(|kind| kind.text == text) {
            kind.count += 1;
        } else if self.kinds.len() < MOST_KINDS {
            self.kinds.push(Kind { text: text.to_owned(), count: 1, first: place() });
        } else {
            self.more += 1;
        }
    }

    /// Remarks something of the file as a whole.
    pub(crate) fn say(&mut self, text: impl AsRef<str>) {
        self.add(text, String::new);
    }

    /// Each in a sentence, in the order in which they were met.
    pub fn sentences(&self) -> Vec<String> {
        let sentence = |kind: &Kind| {
            let space = if kind.first.is_empty() { "" } else { " " };
            let times = match kind.count {
                1 => String::new(),
                count => format!(" ({} times)", grouped(count)),
            };
            format!("{}{space}{}{times}", kind.text, kind.first)
        };
        let more = (self.more > 0).then(|| format!("and {} more remarks", grouped(self.more)));
        self.kinds.iter().map(sentence).chain(more).collect()
    }

    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// These and the others after them.
    pub(crate) fn extend(&mut self, others: &Notes) {
        for kind in &others.kinds {
            self.add(&kind.text, || kind.first.clone());
            if let Some(own) = self.kinds.iter_mut().find(|own| own.text == kind.text) {
                own.count += kind.count - 1;
            }
        }
        self.more += others.more;
    }
}
