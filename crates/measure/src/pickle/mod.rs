//! A machine for pickles that are data: it reads what `pickle.dump` writes of dicts, lists, tuples, strings and numbers
//! (protocols 2 to 5), and nothing else. No callable is ever looked up, let alone called: an opcode that names one is
//! refused by name.
//!
//! Values are handles of 16 bytes, and what the memo keeps is one of 4 bytes, so that a list that is referred to a
//! million times stands once. There is no recursion; a container is finished before anything may refer to it, so there
//! are no cycles. Dicts are handed to [`Tables`](crate::snapshot::Tables), which keeps a row of columns of each that it
//! knows; whatever else the file holds is passed over.
//!
//! Memory: at most 16 times the file and 32 MiB, whatever the file is; of a snapshot, a quarter to a third of it.

mod containers;
mod error;
mod feed;
mod handles;
mod machine;
mod memo;
mod opcode;
mod path;
mod plain;
mod salvage;
mod value;

pub(crate) use error::{Fault, Wrong};
pub(crate) use feed::Feed;
pub(crate) use machine::Machine;
pub(crate) use salvage::Salvaged;
pub(crate) use value::{Arena, Table, Value};

/// The most rows of one kind: what 28 bits of a handle can number.
pub(crate) const MOST_ROWS: u32 = 1 << 28;
/// The most values that wait on the stack.
const MOST_WAITING: usize = 1_000_000;
/// The most entries of lists and dicts that become no row.
const MOST_ENTRIES: usize = 1_000_000;
/// How deep containers may lie in one another. A snapshot has six levels.
const MOST_DEPTH: usize = 64;
/// Why a container may not be added to.
const CYCLIC: &str = "cyclic: a list or a dict that is in itself, or is added to after it was used";
/// The longest line of the text opcodes of protocol 0.
const MOST_LINE: usize = 4096;
