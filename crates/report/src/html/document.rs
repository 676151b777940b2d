//! What the page draws: a plain document of series on a time axis, and the words and tables around them.
//!
//! A plan, a ledger and a comparison all become one, and so may whatever else has series of bytes over moments: the page does
//! not know where they come from. Figures are exact: what JavaScript's numbers cannot hold is a string of digits.

use serde::{Serialize, Serializer};

/// The page of one answer.
#[derive(Debug, Default, Serialize)]
pub struct Page {
    /// The version of peakledger that wrote it.
    pub version: &'static str,
    /// What it is about: the name of a model or a file.
    pub title: String,
    /// A line under the title.
    pub subtitle: Option<String>,
    /// What the bytes are, in words: allocated at op level, as a ledger says.
    pub measure: Measure,
    /// Whether it fits a card.
    pub verdict: Option<Verdict>,
    /// The largest total at device level, where it is known beside op level.
    pub device_peak: Option<Exact>,
    /// The series: the first is the subject, the others are its other steps and what it is compared with.
    pub series: Vec<Series>,
    /// How many more candidates there are.
    pub series_left_out: usize,
    /// What is assumed or said of it, each a topic and a sentence.
    pub facts: Vec<(String, String)>,
    /// What the figures leave out.
    pub not_counted: Vec<String>,
}

/// What the bytes of a page are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// As a ledger file says.
    #[default]
    Ledger,
    /// Allocated bytes as the dispatcher hands them out.
    OpLevel,
}

/// Whether a step fits a card.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Verdict {
    pub gpu: String,
    pub fits: bool,
    pub needed: Exact,
    /// What the caching allocator reserves, where that is predicted; else the device peak is compared.
    pub reserved: Option<Exact>,
    pub outside: Exact,
    pub capacity: Exact,
    /// What is left, negative where it does not fit.
    pub headroom: i128,
}

/// Bytes by category over the moments of a timeline.
#[derive(Debug, Serialize)]
pub struct Series {
    /// Its name: a step's, a candidate's.
    pub name: String,
    /// What it is to the page.
    pub role: Role,
    /// How many moments it has.
    pub moments: u32,
    /// Its phases in order.
    pub phases: Vec<Phase>,
    /// How many more phases there are.
    pub phases_left_out: usize,
    /// Where it is largest.
    pub peak: Peak,
    /// The picture: the whole timeline first, then finer and finer windows around the peak.
    pub levels: Vec<Level>,
    /// What the caching allocator reserves from a moment on, at each change, where that is known.
    pub reserved: Vec<(u32, Exact)>,
    /// The states that can be told apart.
    pub states: States,
    /// Who forms the peak, largest first.
    pub contributors: Vec<Contributor>,
    /// How many more contributors there are, and their bytes.
    pub contributors_left_out: (usize, Exact),
    /// What a candidate does to the subject.
    pub saving: Option<i128>,
    /// Whether a candidate fits the card.
    pub verdict: Option<Verdict>,
    /// The states that hold other bytes than the subject's where that peaks.
    pub moved: Vec<Moved>,
}

/// What a series is to the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// What the page is about.
    Subject,
    /// Another step of it.
    Step,
    /// What it is compared with.
    Candidate,
}

/// One phase.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Phase {
    /// `update`, `forward.0`.
    pub id: String,
    pub phase: String,
    pub micro_batch: Option<u32>,
    pub first: u32,
    pub last: u32,
    /// The moment at which it is largest.
    pub moment: u32,
    pub total: Exact,
    pub end: Exact,
    pub cpu: Exact,
    pub device: Option<Exact>,
    /// In the order of `Category::ALL`.
    pub by_category: Vec<Exact>,
    /// What runs then.
    pub op: Option<String>,
}

/// The largest moment.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Peak {
    pub phase: String,
    pub moment: u32,
    pub bytes: Exact,
    pub by_category: Vec<Exact>,
    pub op: Option<String>,
}

/// Moments in buckets of `per`, each shown as it is at its largest moment, so that no peak is lost. Columns are differences
/// from one bucket to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Level {
    /// The first moment of the first bucket.
    pub first: u32,
    /// Moments in a bucket.
    pub per: u32,
    /// How many buckets there are.
    pub count: usize,
    /// The largest moment of each bucket, counted from the bucket's first; empty where a bucket is one moment.
    pub at: Vec<u32>,
    /// The smallest total of each bucket; empty where a bucket is one moment.
    pub min: Vec<i128>,
    /// The largest total on the cpu of each bucket; empty where there is nothing.
    pub cpu: Vec<i128>,
    /// The bytes by category, in the order of `Category::ALL`; empty where there is nothing.
    pub by_category: Vec<Vec<i128>>,
}

/// States as columns, in file order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct States {
    pub names: Vec<String>,
    /// Their places in `Category::ALL`.
    pub categories: Vec<usize>,
    /// Their places in `Detail::ALL`, or -1.
    pub details: Vec<i8>,
    pub bytes: Vec<Exact>,
    pub persistent: Vec<u8>,
    /// Residencies: the place of the state in these columns, 0 for the gpu or 1 for the cpu, first and last moment.
    pub stays: Vec<[u32; 4]>,
    /// How many smaller states are left out.
    pub left_out: usize,
}

/// Who is there at the peak.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Contributor {
    pub name: String,
    pub category: &'static str,
    pub detail: Option<&'static str>,
    pub bytes: Exact,
    /// How many states it is.
    pub count: u32,
}

/// A state that a candidate moves.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Moved {
    pub name: String,
    pub before: Exact,
    pub after: Exact,
    pub change: &'static str,
}

/// An exact number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exact(pub u64);

impl Exact {
    /// The largest whole number up to which JavaScript's numbers are exact.
    const LARGEST_NUMBER: u64 = (1 << 53) - 1;
}

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            small @ ..=Exact::LARGEST_NUMBER => serializer.serialize_u64(small),
            large => serializer.collect_str(&large),
        }
    }
}
