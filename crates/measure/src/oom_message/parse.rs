//! Finding messages in a text, and the figures in them by the words around each.

use super::figures::Rounded;
use super::{Allocator, OomMessage, Process};
use peakledger_core::Bytes;
use peakledger_input::{Limit, Problem, Source};

/// How long a text is read: a log of 64 MiB.
pub const OOM_TEXT_LIMIT: Limit = Limit { what: "a log", bytes: Bytes::new(64 << 20) };

/// How far a message reaches from its first word: the longest, with fifty other processes, has some 4,000 characters.
const LONGEST: usize = 8 << 10;
/// More messages than this in one log are the same trouble told again.
const MOST: usize = 1000;

/// The messages of a text, in its order; the same one told again is counted.
///
/// # Errors
/// There is no such message in it, or only one without figures: which, and what to paste instead.
pub fn read(source: &Source) -> Result<Vec<OomMessage>, Problem> {
    let mut messages: Vec<OomMessage> = Vec::new();
    let mut lines = Lines { text: source.text(), at: 0, line: 1 };
    let starts: Vec<usize> = starts(source.text()).take(MOST).collect();
    for (number, start) in starts.iter().enumerate() {
        let rest = source.text().get(*start..).unwrap_or_default();
        let next = starts.get(number + 1).map_or(rest.len(), |next| next - start);
        let end = (0..=next.min(LONGEST)).rev().find(|at| rest.is_char_boundary(*at)).unwrap_or(0);
        let words: Vec<&str> = rest.get(..end).unwrap_or_default().split_whitespace().collect();
        let Some(message) = message(&words.join(" ")) else { continue };
        let message =
            OomMessage { line: lines.of(*start), rank: rank_before(source.text(), *start), ..message };
        let same = |known: &&mut OomMessage| {
            OomMessage { line: message.line, times: 1, ..(**known).clone() } == message
        };
        match messages.iter_mut().find(same) {
            Some(known) => known.times += 1,
            None => messages.push(message),
        }
    }
    if messages.is_empty() { Err(none_found(source)) } else { Ok(messages) }
}

const CACHING: &str = "Tried to allocate ";
const ASYNC: &str = "Allocation on device ";

fn starts(text: &str) -> impl Iterator<Item = usize> + '_ {
    let mut from = 0;
    std::iter::from_fn(move || {
        let rest = text.get(from..)?;
        // `Tried to` may be the last words of a line
        let at = [CACHING.trim_end(), ASYNC.trim_end()].iter().filter_map(|words| rest.find(words)).min()?;
        from += at + 1;
        Some(from - 1)
    })
}

fn message(text: &str) -> Option<OomMessage> {
    match text.strip_prefix(ASYNC) {
        Some(text) => malloc_async(text),
        None => caching(text.strip_prefix(CACHING)?),
    }
}

fn empty(allocator: Allocator) -> OomMessage {
    OomMessage {
        line: 0,
        times: 1,
        rank: None,
        allocator,
        device: None,
        asked: None,
        capacity: None,
        free: None,
        allocated: None,
        private_pools: None,
        unallocated: None,
        this_process: None,
        processes: Vec::new(),
        limit: None,
    }
}

fn caching(text: &str) -> Option<OomMessage> {
    let asked = match text.strip_prefix("more than 1EB") {
        Some(_) => None,
        None => Some(Rounded::parse(text)?.0?),
    };
    let free = size_before(text, " is free")
        .or_else(|| size_before(text, " free;"))
        .or_else(|| size_before(text, " free)"));
    let allocated =
        size_before(text, " is allocated by PyTorch").or_else(|| size_before(text, " already allocated"));
    // 1.4 to 2.0 say what is reserved in total; before them and after, what of it is not in use
    let unallocated = size_before(text, " is reserved by PyTorch but unallocated")
        .or_else(|| size_before(text, " cached"))
        .or_else(|| {
            let reserved = size_before(text, " reserved in total by PyTorch")?;
            super::figures::Sum::default().plus(Some(reserved)).minus(Some(allocated?)).figure()
        });
    Some(OomMessage {
        asked,
        device: device(text),
        capacity: size_after(text, " total capacity of ")
            .or_else(|| size_after(text, " total capacty of ")) // as 2.1 spells it
            .or_else(|| size_before(text, " total capacity;")),
        free,
        allocated,
        private_pools: size_before(text, " allocated in private pools"),
        unallocated,
        this_process: size_after(text, "this process has ").or_else(|| size_after(text, "This process has ")),
        processes: processes(text),
        limit: size_before(text, " allowed;"),
        ..empty(Allocator::Caching)
    })
}

fn malloc_async(text: &str) -> Option<OomMessage> {
    let (device, rest) = number(text)?;
    rest.strip_prefix(" would exceed allowed memory")?;
    Some(OomMessage {
        device: u32::try_from(device).ok(),
        asked: Some(size_after(text, "Requested : ")?),
        capacity: size_after(text, "Device limit : "),
        free: size_after(text, "Free (according to CUDA): "),
        allocated: size_after(text, "Currently allocated : "),
        limit: size_after(text, "PyTorch limit (set by user-supplied memory fraction) : "),
        ..empty(Allocator::CudaMallocAsync)
    })
}

/// The number of the card: `(GPU 0; …` or `. GPU 0 has …`.
fn device(text: &str) -> Option<u32> {
    let words = ["(GPU ", "GPU ", "(NPU ", "NPU "];
    let (_, after) = words.iter().find_map(|word| text.split_once(word))?;
    u32::try_from(number(after)?.0).ok()
}

fn processes(text: &str) -> Vec<Process> {
    let mut found = Vec::new();
    for part in text.split("Process ").skip(1) {
        let process = number(part).and_then(|(pid, rest)| {
            let (bytes, rest) = Rounded::parse(rest.strip_prefix(" has ")?)?;
            rest.starts_with(" memory in use").then_some(Process { pid, bytes })
        });
        found.extend(process);
    }
    found
}

fn size_after(text: &str, words: &str) -> Option<Rounded> {
    text.split_once(words).and_then(|(_, after)| Rounded::parse(after)?.0)
}

fn size_before(text: &str, words: &str) -> Option<Rounded> {
    let (before, _) = text.split_once(words)?;
    let unit = before.rfind(' ')?;
    let start = before.get(..unit)?.rfind([' ', '(']).map_or(0, |at| at + 1);
    Rounded::parse(before.get(start..)?)?.0
}

fn number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at_checked(end)?;
    Some((digits.parse().ok()?, rest))
}

/// The rank of `[rank3]: torch.OutOfMemoryError: …`, on the line of the message.
fn rank_before(text: &str, start: usize) -> Option<u32> {
    let line = text.get(..start)?.rsplit('\n').next()?;
    let (_, after) = line.rsplit_once("[rank").or_else(|| line.rsplit_once("[Rank "))?;
    u32::try_from(number(after)?.0).ok()
}

/// Counts the lines up to places that come in order.
struct Lines<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

impl Lines<'_> {
    fn of(&mut self, place: usize) -> usize {
        let between = self.text.get(self.at..place).unwrap_or_default();
        self.line += between.bytes().filter(|byte| *byte == b'\n').count();
        self.at = place;
        self.line
    }
}

/// What is in the text instead, if it is known.
fn none_found(source: &Source) -> Problem {
    let text = source.text();
    let has = |words: &str| text.contains(words);
    let (cause, mend) = if has("MPS backend out of memory") {
        (
            "a message of Apple's MPS, whose memory is the machine's",
            "only cards with memory of their own are explained",
        )
    } else if has("CUDA error: out of memory")
        || has("CUDNN_STATUS_ALLOC_FAILED")
        || has("CUBLAS_STATUS_ALLOC_FAILED")
        || has("CUDA_ERROR_OUT_OF_MEMORY")
    {
        (
            "a library's own out-of-memory error, which tells no figures",
            "it was no tensor that found no room: something outside of PyTorch's allocator did; see what `nvidia-smi` shows",
        )
    } else if has("would exceed allowed memory") || has("out of memory") {
        (
            "an out-of-memory error without its figures",
            "paste the whole message: the line from `Tried to allocate` to its end",
        )
    } else {
        (
            "no out-of-memory message in it",
            "paste the lines from `CUDA out of memory. Tried to allocate …` to their end",
        )
    };
    source.problem(cause).mend(mend)
}
