//! Every door of peakledger: bytes from a path or `-`, JSON with places, and errors that name file, place, cause and
//! mend.
//!
//! ```
//! use peakledger_input::{Source, json};
//!
//! #[derive(serde::Deserialize, Debug)]
//! #[serde(deny_unknown_fields)]
//! struct Config {
//!     hidden_size: u64,
//! }
//!
//! let source = Source::from_text("config.json", "{\n  \"hiden_size\": 4096\n}");
//! let problem = json::parse::<Config>(&source).unwrap_err();
//! assert_eq!(
//!     problem.to_string(),
//!     "config.json:2:3 (/hiden_size): unknown field `hiden_size`\n  help: did you mean `hidden_size`?"
//! );
//! ```
//!
//! What holds: a file is read once and never changed; nothing but a file or a pipe is opened; what is strict
//! about JSON (no repeated keys, no `NaN`, no text for a number) is strict for every file.

#![forbid(unsafe_code)]

mod binary;
mod explain;
mod fields;
pub mod json;
mod ledger;
mod locate;
mod near;
mod opened;
mod problem;
mod record;
mod source;
mod stream;
mod system;

pub use binary::{Binary, MEASURED_LIMIT, MOST_RATIO};
pub use fields::{FIELDS_LIMIT, Fields, Syntax};
pub use ledger::{open_ledger, read_ledger};
pub use near::{misspelt, misspelt_name, near};
pub use problem::{Place, Problem, grouped, quoted};
pub use source::{CONFIG_LIMIT, Input, LEDGER_LIMIT, Limit, Source};
pub use system::in_plain_words;
