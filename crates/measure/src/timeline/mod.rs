//! The memory timeline that `torch.profiler` exports: bytes by category over time, and where they are most.
//!
//! Two forms have figures in them: `.json` (`export_memory_timeline("x.json")`), with a row of nine numbers for each time,
//! and `.raw.json.gz`, with a row for each event. `.html` is a picture. Source: `torch/profiler/_memory_profiler.py`
//! (`MemoryProfileTimeline`), which is deprecated in 2.15 and whose categories are at a loss with mixed precision, compiled
//! and distributed steps: much of those is `unknown` then.

mod ledger;

use crate::elements::Elements;
use peakledger_core::{Bytes, Category, Detail};
use peakledger_input::{Binary, Problem};

/// torch's categories in the order of its columns, and what they are called here.
pub const CATEGORIES: [TorchCategory; 8] = [
    TorchCategory { name: "parameter", category: Some(Category::Parameter), detail: None },
    TorchCategory { name: "optimizer_state", category: Some(Category::OptimizerState), detail: None },
    TorchCategory { name: "input", category: Some(Category::Activation), detail: Some(Detail::Input) },
    TorchCategory { name: "temporary", category: Some(Category::Workspace), detail: Some(Detail::Temporary) },
    TorchCategory { name: "activation", category: Some(Category::Activation), detail: None },
    TorchCategory { name: "gradient", category: Some(Category::Gradient), detail: None },
    TorchCategory { name: "autograd_detail", category: Some(Category::Workspace), detail: None },
    TorchCategory { name: "unknown", category: None, detail: None },
];

/// A category of torch's and ours that it falls into; its `unknown` falls into none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TorchCategory {
    /// torch's name, in small letters.
    pub name: &'static str,
    /// Ours.
    pub category: Option<Category>,
    /// Our finer word.
    pub detail: Option<Detail>,
}

/// What a timeline tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryTimeline {
    /// Which of the two forms it was read from.
    pub form: TimelineForm,
    /// How many rows it has.
    pub rows: usize,
    /// From its first time to its last, in nanoseconds.
    pub lasts: i64,
    /// What is there before its first event; the form `.json` does not tell it apart.
    pub opening: Option<Totals>,
    /// The row with the most bytes, the earliest of several.
    pub peak: TimelinePeak,
    /// The last row.
    pub end: Totals,
    /// What was passed over or found at odds.
    pub notes: Vec<String>,
}

/// The form of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimelineForm {
    /// `[times, sizes]`.
    Totals,
    /// `[[time, action, bytes, category], …]`.
    Events,
}

/// Where a timeline has most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimelinePeak {
    /// The row, from 0.
    pub row: usize,
    /// How long after the first time, in nanoseconds.
    pub after: i64,
    /// The bytes.
    pub totals: Totals,
}

/// The bytes of each of torch's [`CATEGORIES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals(pub [u64; CATEGORIES.len()]);

impl Totals {
    /// All of them together, where that is less than 2^64.
    pub fn sum(&self) -> Option<Bytes> {
        self.0.iter().try_fold(Bytes::ZERO, |sum, bytes| sum.checked_add(Bytes::new(*bytes)))
    }

    /// Each category with its bytes.
    pub fn iter(&self) -> impl Iterator<Item = (TorchCategory, Bytes)> + '_ {
        CATEGORIES.into_iter().zip(self.0.iter().copied().map(Bytes::new))
    }

    /// By our categories, and what torch could not place. The sum is one that fits.
    pub fn by_category(&self) -> (Vec<(Category, Bytes)>, Bytes) {
        let of = |wanted: Option<Category>| {
            let those = self.iter().filter(|(torch, _)| torch.category == wanted);
            Bytes::new(those.map(|(_, bytes)| bytes.get()).fold(0, u64::saturating_add))
        };
        (Category::ALL.into_iter().map(|category| (category, of(Some(category)))).collect(), of(None))
    }
}

/// Whether a file with these first bytes looks like a memory timeline, or like its picture.
pub fn is_timeline(head: &[u8]) -> bool {
    let head = head.trim_ascii_start();
    match head {
        [b'[', rest @ ..] => rest.trim_ascii_start().starts_with(b"["),
        _ => is_picture(head),
    }
}

/// Whether it is the page that `export_memory_timeline("x.html")` writes: a title, and a picture in text.
fn is_picture(head: &[u8]) -> bool {
    let has = |word: &[u8]| head.windows(word.len()).any(|part| part == word);
    head.starts_with(b"<") && (has(b"Memory Timeline") || has(b"data:image/png;base64"))
}

/// Reads a timeline of either form. `progress` is told how many bytes of the file were read.
///
/// # Errors
/// The file is a picture, not JSON, of another shape, cut off, or a sum passes 64 bits. Each says what to do.
pub fn read(file: &mut Binary, progress: &mut dyn FnMut(u64)) -> Result<MemoryTimeline, Problem> {
    if is_picture(file.head().trim_ascii_start()) {
        let problem = file.problem("only a picture: the `.html` of a memory timeline has no figures in it");
        return Err(
            problem.mend("export it again as `.json`: `prof.export_memory_timeline(\"timeline.json\")`")
        );
    }
    let mut file = Elements::new(file, progress);
    let is_list = |file: &mut Elements<'_>| Ok(file.peek()? == Some(b'['));
    if !is_list(&mut file)? {
        return Err(other_shape(&file));
    }
    file.enter()?;
    if !file.next_in_list(true)? || !is_list(&mut file)? {
        return Err(other_shape(&file));
    }
    // both forms begin with a list of numbers: the times of one, the first row of the other
    file.enter()?;
    let first = numbers(&mut file, Vec::new())?;
    let mut running = Running::default();
    if !file.next_in_list(false)? {
        running.event(&first, &file)?;
    } else if !is_list(&mut file)? {
        return Err(other_shape(&file));
    } else {
        file.enter()?;
        let has_rows = file.next_in_list(true)?;
        if !has_rows || is_list(&mut file)? {
            totals(&mut file, &first, has_rows, &mut running)?;
        } else {
            running.event(&first, &file)?;
            let second = vec![number(&mut file)?];
            running.event(&numbers(&mut file, second)?, &file)?;
            while file.next_in_list(false)? {
                if !is_list(&mut file)? {
                    return Err(other_shape(&file));
                }
                file.enter()?;
                running.event(&numbers(&mut file, Vec::new())?, &file)?;
            }
        }
    }
    let found = running.end(&file)?;
    file.end()?;
    Ok(found)
}

/// The numbers of a list that was entered, after those that were read of it already.
fn numbers(file: &mut Elements<'_>, mut numbers: Vec<i64>) -> Result<Vec<i64>, Problem> {
    while file.next_in_list(numbers.is_empty())? {
        numbers.push(number(file)?);
    }
    Ok(numbers)
}

fn number(file: &mut Elements<'_>) -> Result<i64, Problem> {
    file.hold()?;
    serde_json::from_slice(file.held()).map_err(|_| {
        let problem = file.faulty("");
        Problem {
            cause: format!("no whole number where the timeline has one ({})", problem.cause),
            ..problem
        }
    })
}

/// The rows of `[times, sizes]`, the first of which is next.
fn totals(
    file: &mut Elements<'_>,
    times: &[i64],
    mut more: bool,
    running: &mut Running,
) -> Result<(), Problem> {
    running.form = Some(TimelineForm::Totals);
    while more {
        file.hold()?;
        // the first number is always 0: the ground of the picture
        let [_, sizes @ ..] = serde_json::from_slice::<[i64; CATEGORIES.len() + 1]>(file.held()).map_err(|_| {
            let problem = file.problem("a row of sizes that is not nine whole numbers");
            problem.mend("this is no memory timeline, or one of another version of torch: export it again as `.json`")
        })?;
        let time = times.get(running.rows).and_then(|time| time.checked_mul(1000)); // microseconds
        let Some(time) = time else { return Err(uneven(file, times.len())) };
        running.totals = sizes.map(i128::from);
        running.row(time, file)?;
        more = file.next_in_list(false)?;
    }
    match file.next_in_list(false)? {
        true => Err(other_shape(file)),
        false if running.rows < times.len() => Err(uneven(file, times.len())),
        false => Ok(()),
    }
}

/// The rows as they are added up.
#[derive(Default)]
struct Running {
    form: Option<TimelineForm>,
    rows: usize,
    totals: [i128; CATEGORIES.len()],
    opening: Option<Totals>,
    first: Option<i64>,
    last: i64,
    peak: Option<(Bytes, TimelinePeak)>,
    below_zero: usize,
    backwards: usize,
    strange: usize,
}

/// What is there before the events (`Action.PREEXISTING`).
const PREEXISTING: i64 = 1;

impl Running {
    /// A row `[time, action, bytes, category]`.
    fn event(&mut self, row: &[i64], file: &Elements<'_>) -> Result<(), Problem> {
        let [time, action, bytes, category] = row else { return Err(other_shape(file)) };
        self.form = Some(TimelineForm::Events);
        let unknown = CATEGORIES.len() - 1;
        let category = usize::try_from(*category).ok().filter(|category| *category <= unknown);
        self.strange += usize::from(category.is_none() || !(PREEXISTING..=4).contains(action));
        if let Some(total) = self.totals.get_mut(category.unwrap_or(unknown)) {
            *total += i128::from(*bytes);
        }
        if *action == PREEXISTING {
            self.opening = Some(self.now(file)?);
        }
        // what is older than the recording has the time −1
        let time = if *action == PREEXISTING { self.first } else { Some(*time) };
        match time {
            Some(time) => self.row(time, file),
            None => self.higher(0, file),
        }
    }

    /// Takes the row in that `totals` holds now.
    fn row(&mut self, time: i64, file: &Elements<'_>) -> Result<(), Problem> {
        let first = *self.first.get_or_insert(time);
        self.backwards += usize::from(self.rows > 0 && time < self.last);
        self.last = self.last.max(time);
        self.higher(time.saturating_sub(first).max(0), file)
    }

    fn higher(&mut self, after: i64, file: &Elements<'_>) -> Result<(), Problem> {
        self.below_zero += usize::from(self.totals.iter().any(|total| *total < 0));
        let totals = self.now(file)?;
        let sum = totals.sum().ok_or_else(|| overflow(file, self.rows))?;
        if self.peak.is_none_or(|(most, _)| sum > most) {
            self.peak = Some((sum, TimelinePeak { row: self.rows, after, totals }));
        }
        self.rows += 1;
        Ok(())
    }

    fn now(&self, file: &Elements<'_>) -> Result<Totals, Problem> {
        let mut totals = Totals::default();
        for (to, from) in totals.0.iter_mut().zip(self.totals) {
            *to = u64::try_from(from.max(0)).map_err(|_| overflow(file, self.rows))?;
        }
        Ok(totals)
    }

    fn end(self, file: &Elements<'_>) -> Result<MemoryTimeline, Problem> {
        let (Some((_, peak)), Some(form)) = (self.peak, self.form) else {
            let problem = file.file().problem("a memory timeline without a row");
            return Err(problem.mend(
                "record a whole step with `profile_memory=True, record_shapes=True, with_stack=True`",
            ));
        };
        let mut notes = Vec::new();
        let mut note = |times: usize, what: &str| {
            if times > 0 {
                notes.push(format!("{what} in {times} of {} rows", self.rows));
            }
        };
        note(self.below_zero, "a category falls below nothing, which is taken for nothing,");
        note(self.backwards, "the clock runs backwards; the order of the rows is kept");
        note(self.strange, "an action or a category that torch does not have");
        Ok(MemoryTimeline {
            form,
            rows: self.rows,
            lasts: self.first.map_or(0, |first| self.last.saturating_sub(first)),
            opening: self.opening,
            peak,
            end: self.now(file)?,
            notes,
        })
    }
}

fn other_shape(file: &Elements<'_>) -> Problem {
    let problem =
        file.problem("not the shape of a memory timeline, which is `[times, sizes]` or rows of four numbers");
    problem.mend("write one with `prof.export_memory_timeline(\"timeline.json\")`")
}

fn uneven(file: &Elements<'_>, times: usize) -> Problem {
    let problem = file.problem(format!("not as many rows of sizes as times ({times})"));
    problem.mend("the file is damaged: export it again")
}

fn overflow(file: &Elements<'_>, row: usize) -> Problem {
    let problem = file.problem(format!("the bytes of row {row} pass 64 bits"));
    problem.mend("no machine holds so much: the file is damaged, export it again")
}
