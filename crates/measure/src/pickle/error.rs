//! What is wrong with a pickle, before the file's name is put to it.

use crate::snapshot::TextId;
use peakledger_input::{Place, Problem};

/// A fault of the file.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) offset: u64,
    pub(crate) path: String,
    pub(crate) cause: String,
    pub(crate) mend: &'static str,
    /// Whether what came before it can be kept.
    pub(crate) salvage: bool,
    /// What reading itself ran into, which says more.
    pub(crate) reading: Option<Problem>,
}

impl Fault {
    /// The problem of that file.
    pub(crate) fn problem(self, file: &str) -> Problem {
        if let Some(problem) = self.reading {
            return problem;
        }
        let place = Place::Byte { offset: self.offset, path: self.path };
        Problem::in_file(file, self.cause).at(place).mend(self.mend)
    }
}

/// A fault whose place is not known yet. Small, since every opcode may end in one and hardly any does.
#[derive(Clone, Debug)]
pub(crate) struct Wrong(Box<Details>);

/// What is wrong.
#[derive(Clone, Debug)]
pub(crate) struct Details {
    pub(crate) cause: String,
    pub(crate) mend: &'static str,
    pub(crate) salvage: bool,
    /// The key of the dict whose value it is.
    pub(crate) key: Option<TextId>,
}

/// What to do about a file that was not written by PyTorch's own functions, or was changed after.
pub(crate) const DUMP: &str =
    "write the snapshot with `torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")`";
/// What to do about a file that is damaged from some place on.
pub(crate) const SALVAGE: &str = "record or copy it again, or keep the sound part: `peakledger read --salvage --save LEDGER` (it is marked incomplete)";

impl std::ops::Deref for Wrong {
    type Target = Details;

    fn deref(&self) -> &Details {
        &self.0
    }
}

impl Wrong {
    /// What no part of the file can be trusted after.
    pub(crate) fn new(cause: impl Into<String>) -> Wrong {
        Wrong(Box::new(Details { cause: cause.into(), mend: DUMP, salvage: false, key: None }))
    }

    /// What leaves the part before it sound.
    pub(crate) fn damaged(cause: impl Into<String>) -> Wrong {
        Wrong(Box::new(Details { cause: cause.into(), mend: SALVAGE, salvage: true, key: None }))
    }

    pub(crate) fn mend(mut self, mend: &'static str) -> Wrong {
        self.0.mend = mend;
        self
    }

    pub(crate) fn of(mut self, key: TextId) -> Wrong {
        self.0.key = Some(key);
        self
    }
}
