//! Call stacks: lists of frames, innermost first, each list and each frame kept once.

use super::texts::{TextId, Texts};
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// A line of code in a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub(crate) u32);

impl FrameId {
    /// As an index into a column of frames.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub(crate) u32);

impl StackId {
    /// No stack was recorded.
    pub const NONE: StackId = StackId(0);
}

/// Where a stack passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The file; nothing where the snapshot has none.
    pub file: Option<TextId>,
    /// The function.
    pub name: Option<TextId>,
    /// The line. C++ frames without one have 2^64 − 1 or 0.
    pub line: Option<u64>,
}

/// All stacks and their frames.
#[derive(Clone, Debug)]
pub struct Stacks {
    frames: Vec<Frame>,
    lists: Vec<FrameId>,
    ends: Vec<usize>,
    known_frames: HashTable<u32>,
    known_stacks: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Default for Stacks {
    fn default() -> Self {
        let (known_frames, known_stacks) = Default::default();
        let hasher = DefaultHashBuilder::default();
        let (frames, lists) = (Vec::new(), Vec::new());
        let mut stacks = Stacks { frames, lists, ends: Vec::new(), known_frames, known_stacks, hasher };
        let _none = stacks.intern(&[]); // the first is the empty one: `StackId::NONE`
        stacks
    }
}

impl Stacks {
    pub(crate) fn frame_of(&mut self, frame: Frame) -> Option<FrameId> {
        let Stacks { frames, known_frames, hasher, .. } = self;
        let hash = hasher.hash_one(frame);
        if let Some(found) = known_frames.find(hash, |id| frames.get(*id as usize) == Some(&frame)) {
            return Some(FrameId(*found));
        }
        let id = u32::try_from(frames.len()).ok().filter(|id| *id < crate::pickle::MOST_ROWS)?;
        frames.push(frame);
        known_frames.insert_unique(hash, id, |id| frames.get(*id as usize).map_or(0, |f| hasher.hash_one(f)));
        Some(FrameId(id))
    }

    pub(crate) fn intern(&mut self, stack: &[FrameId]) -> Option<StackId> {
        let Stacks { lists, ends, known_stacks, .. } = self;
        let hash = hash(stack);
        if let Some(found) = known_stacks.find(hash, |id| same(slice(lists, ends, *id), stack)) {
            return Some(StackId(*found));
        }
        let id = u32::try_from(ends.len()).ok().filter(|id| *id < crate::pickle::MOST_ROWS)?;
        lists.extend_from_slice(stack);
        ends.push(lists.len());
        known_stacks.insert_unique(hash, id, |id| self::hash(slice(lists, ends, *id)));
        Some(StackId(id))
    }

    /// The frames of a stack, innermost first.
    pub fn frames(&self, id: StackId) -> impl ExactSizeIterator<Item = &Frame> + DoubleEndedIterator {
        self.ids(id).iter().map(|frame| self.frame(*frame))
    }

    pub(crate) fn ids(&self, id: StackId) -> &[FrameId] {
        slice(&self.lists, &self.ends, id.0)
    }

    pub(crate) fn frame(&self, id: FrameId) -> &Frame {
        const NOWHERE: Frame = Frame { file: None, name: None, line: None };
        self.frames.get(id.0 as usize).unwrap_or(&NOWHERE)
    }

    /// Every frame, in the order of the file.
    pub(crate) fn all_frames(&self) -> &[Frame] {
        &self.frames
    }

    /// How many different stacks there are, the empty one among them.
    pub fn count(&self) -> usize {
        self.ends.len()
    }
}

impl Frame {
    /// `file:line:function`, with `?` for what the snapshot does not say.
    pub fn place(&self, texts: &Texts) -> String {
        let word = |id: Option<TextId>| id.map_or_else(|| "?".to_owned(), |id| texts.text(id));
        let line = self.line.map_or_else(|| "?".to_owned(), |line| line.to_string());
        format!("{}:{line}:{}", word(self.file), word(self.name))
    }
}

/// Stacks are hashed two million times in a large file, so two frames by a multiplication, in two sums that do not wait for
/// each other. Frames are small numbers of our own, but which of them follow each other is the file's choice, so the table
/// compares, and never trusts the hash.
fn hash(stack: &[FrameId]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(ODD);
    let pair = |one: FrameId, two: FrameId| u64::from(one.0) << 32 | u64::from(two.0);
    let (fours, last) = stack.as_chunks::<4>();
    let hash = last.iter().fold(stack.len() as u64, |hash, frame| mix(hash, u64::from(frame.0)));
    let (one, two) = fours
        .iter()
        .fold((hash, ODD), |(one, two), [a, b, c, d]| (mix(one, pair(*a, *b)), mix(two, pair(*c, *d))));
    let mixed = mix(one, two);
    mixed ^ (mixed >> 32)
}

/// Whether two stacks are the same: all frames are looked at, many at a time.
fn same(one: &[FrameId], other: &[FrameId]) -> bool {
    let differ = |differ, (a, b): (&FrameId, &FrameId)| differ | (a.0 ^ b.0);
    one.len() == other.len() && one.iter().zip(other).fold(0, differ) == 0
}

fn slice<'a>(lists: &'a [FrameId], ends: &[usize], id: u32) -> &'a [FrameId] {
    let at = id as usize;
    let start = at.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
    let end = ends.get(at).copied().unwrap_or(start);
    lists.get(start..end).unwrap_or_default()
}
