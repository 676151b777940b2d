//! Where memory was taken: the op, module and range that ran on its thread at that time.

use super::record::{Kind, Memory, Names, Range, Recorded};
use std::collections::HashMap;

/// What ran when a block was taken, by the numbers of names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) op: Option<u32>,
    pub(super) node: Option<u32>,
    pub(super) module: Option<u32>,
    pub(super) annotation: Option<u32>,
    pub(super) function: Option<u32>,
}

/// Ops that only take memory for the op that they run in.
const TAKERS: [&str; 7] = [
    "aten::empty",
    "aten::empty_strided",
    "aten::empty_like",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::resize_",
    "aten::to",
];

/// The origin of every event of `order`, in that order.
pub(super) fn origins(recorded: &Recorded, order: &[usize]) -> Vec<Origin> {
    let mut ranges: Vec<&Range> = recorded.ranges.iter().collect();
    // of two that begin together the longer is outside
    ranges.sort_by_key(|range| (range.start, std::cmp::Reverse(range.end)));
    let mut threads: HashMap<u32, Stacks> = HashMap::new();
    let mut coming = ranges.into_iter().peekable();
    let at = |index: &usize| recorded.memory.get(*index);
    let origin = |event: &Memory| {
        while let Some(range) = coming.next_if(|range| range.start <= event.time) {
            threads.entry(range.thread).or_default().enter(range, &recorded.names);
        }
        threads.get_mut(&event.thread).map(|stacks| stacks.origin(event.time)).unwrap_or_default()
    };
    order.iter().filter_map(at).map(origin).collect()
}

/// The ranges that are open on a thread, each kind on a stack of its own: only the innermost is asked for.
#[derive(Default)]
struct Stacks {
    op: Stack,
    taker: Stack,
    node: Stack,
    module: Stack,
    annotation: Stack,
    function: Stack,
}

#[derive(Default)]
struct Stack(Vec<(i64, u32)>);

impl Stack {
    fn enter(&mut self, range: &Range) {
        self.innermost(range.start); // what is over is let go of
        self.0.push((range.end, range.name));
    }

    fn innermost(&mut self, time: i64) -> Option<u32> {
        while self.0.last().is_some_and(|(end, _)| *end < time) {
            self.0.pop();
        }
        self.0.last().map(|(_, name)| *name)
    }
}

impl Stacks {
    fn enter(&mut self, range: &Range, names: &Names) {
        match range.kind {
            Kind::Op if TAKERS.contains(&names.get(range.name)) => self.taker.enter(range),
            Kind::Op => self.op.enter(range),
            Kind::Node => self.node.enter(range),
            Kind::Module => self.module.enter(range),
            Kind::Annotation => self.annotation.enter(range),
            Kind::Function if is_of_torch(names.get(range.name)) => {}
            Kind::Function => self.function.enter(range),
        }
    }

    fn origin(&mut self, time: i64) -> Origin {
        Origin {
            op: self.op.innermost(time).or(self.taker.innermost(time)),
            node: self.node.innermost(time),
            module: self.module.innermost(time),
            annotation: self.annotation.innermost(time),
            function: self.function.innermost(time),
        }
    }
}

fn is_of_torch(function: &str) -> bool {
    function.starts_with("torch/")
        || function.starts_with('<')
        || function.contains("/torch/")
        || function.contains("site-packages/")
}
