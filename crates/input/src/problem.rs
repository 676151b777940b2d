//! What is wrong with an input: the file, the place in it, the cause, and what to do about it.

use peakledger_core::printable;
use std::borrow::Cow;
use std::fmt;

/// An input that cannot be used. Displayed without an `error:` before it: who prints it knows where it goes, a terminal or
/// an exception.
///
/// ```text
/// ledger.json:12:7 (/states/3/size_mb): `size_mb` is negative (-1.0)
///   help: sizes are 0 or more
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, as the user named it; `standard input` for `-`.
    pub file: Option<String>,
    /// Where in the file, or which option.
    pub place: Option<Place>,
    /// What is wrong: lower case, no final period, literals in backticks.
    pub cause: String,
    /// What would mend it.
    pub mend: Option<String>,
}

/// Where a problem is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A place in a text file.
    Text {
        /// Counted from 1.
        line: usize,
        /// In characters, counted from 1.
        column: usize,
        /// The JSON pointer of the culprit, empty for the whole file.
        pointer: String,
    },
    /// A place in a binary file.
    Byte {
        /// Counted from 0, in what the file holds once it is unpacked.
        offset: u64,
        /// Where that lies in what the file says: `device_traces[0][1234].size`. Empty where it lies nowhere yet.
        path: String,
    },
    /// An option of the command line, such as `--gpu`.
    Option(String),
}

impl Problem {
    /// A problem of a whole file.
    pub fn in_file(file: impl Into<String>, cause: impl Into<String>) -> Problem {
        Problem { file: Some(file.into()), place: None, cause: cause.into(), mend: None }
    }

    /// A problem of an option of the command line.
    pub fn in_option(option: impl Into<String>, cause: impl Into<String>) -> Problem {
        Problem { file: None, place: Some(Place::Option(option.into())), cause: cause.into(), mend: None }
    }

    /// A problem of the request as a whole.
    pub fn anywhere(cause: impl Into<String>) -> Problem {
        Problem { file: None, place: None, cause: cause.into(), mend: None }
    }

    /// At this place.
    #[must_use]
    pub fn at(mut self, place: Place) -> Problem {
        self.place = Some(place);
        self
    }

    /// With this mend.
    #[must_use]
    pub fn mend(mut self, mend: impl Into<String>) -> Problem {
        self.mend = Some(mend.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}", printable(file))?;
        }
        match &self.place {
            Some(place @ Place::Text { .. }) => write!(f, ":{place}")?,
            Some(place @ Place::Byte { .. }) => write!(f, ": {place}")?,
            Some(place @ Place::Option(_)) => {
                let space = if self.file.is_some() { " " } else { "" };
                write!(f, "{space}`{place}`")?;
            }
            None => {}
        }
        if self.file.is_some() || self.place.is_some() {
            write!(f, ": ")?;
        }
        write!(f, "{}", printable(&self.cause))?;
        match &self.mend {
            Some(mend) => write!(f, "\n  help: {}", printable(mend)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Problem {}

/// `12:7 (/states/3/size_mb)`, `byte 1_048_577 (device_traces[0])`, `--gpu`.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let within = match self {
            Place::Text { line, column, pointer } => {
                write!(f, "{line}:{column}")?;
                pointer
            }
            Place::Byte { offset, path } => {
                write!(f, "byte {}", grouped(*offset))?;
                path
            }
            Place::Option(option) => return write!(f, "{}", printable(option)),
        };
        match within.as_str() {
            "" => Ok(()),
            within => write!(f, " ({})", printable(&clipped(within))),
        }
    }
}

/// A count in groups of three digits: `1_048_577`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (left, digit) in (0..digits.len()).rev().zip(digits.chars()) {
        text.push(digit);
        if left > 0 && left % 3 == 0 {
            text.push('_');
        }
    }
    text
}

/// The most characters of a word from a file that a message repeats.
const LONGEST_QUOTE: usize = 80;

/// A word from a file in backticks, shortened where it is very long.
pub fn quoted(word: &str) -> String {
    format!("`{}`", clipped(word))
}

pub(crate) fn clipped(word: &str) -> Cow<'_, str> {
    match word.char_indices().nth(LONGEST_QUOTE) {
        None => Cow::Borrowed(word),
        Some((end, _)) => Cow::Owned(format!("{}…", word.get(..end).unwrap_or(word))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_one_sentence_and_a_mend() {
        let place = Place::Text { line: 12, column: 7, pointer: "/states/3/size_mb".into() };
        let problem = Problem::in_file("ledger.json", "`size_mb` is negative (-1.0)").at(place);
        assert_eq!(
            problem.mend("sizes are 0 or more").to_string(),
            "ledger.json:12:7 (/states/3/size_mb): `size_mb` is negative (-1.0)\n  help: sizes are 0 or more"
        );
        let place = Place::Byte { offset: 1_048_577, path: "device_traces[0][1234].size".into() };
        assert_eq!(
            Problem::in_file("run7.pickle", "negative size -512").at(place).to_string(),
            "run7.pickle: byte 1_048_577 (device_traces[0][1234].size): negative size -512"
        );
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1_000", "1_234_567"]);
        let option = Problem::in_option("--gpu", "no such card: `T5`");
        assert_eq!(option.to_string(), "`--gpu`: no such card: `T5`");
        assert_eq!(Problem::anywhere("nothing to do").to_string(), "nothing to do");
    }

    #[test]
    fn what_a_file_says_never_reaches_the_terminal_raw() {
        let problem =
            Problem::in_file("a\nb.json", format!("unknown field {}", quoted("\u{1b}[31m\u{202e}x")));
        assert_eq!(problem.to_string(), r"a\nb.json: unknown field `\u{1b}[31m\u{202e}x`");
        assert_eq!(quoted(&"é".repeat(100)), format!("`{}…`", "é".repeat(80)));
    }
}
