//! Where a run passes through the decoder layers: kept where some of them are left out, to be written down afterwards
//! ([`crate::repeat`]).

use super::hooks::Carried;
use super::{Costs, Torch};
use std::ops::Range;

/// The layers that are not run, and where the run was. Layers that are run are numbered as they follow each other.
#[derive(Debug)]
pub(crate) struct Trail {
    /// The layers that are not run, as the model numbers them.
    pub(crate) left_out: Range<usize>,
    /// The layers before them, that these are written down from.
    unit: usize,
    /// Whether something was seen that cannot be written down.
    pub(crate) is_lost: bool,
    pub(crate) entries: Vec<Entry>,
    /// The first node of the graph that is made in each part of a forward pass.
    nodes: Vec<(u32, Part)>,
}

/// From here on the run is in that part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) part: Part,
    /// Which pass through the layers this is, or was last; forward and backward are two.
    pub(crate) pass: usize,
    /// The moment and the storage that come next.
    pub(crate) moment: u32,
    pub(crate) stored: usize,
    /// What the phase has cost so far.
    pub(crate) costs: Costs,
    /// What hooks bring into it.
    pub(crate) carried: Carried,
}

/// A part of the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Outside the layers.
    Between,
    /// In a layer that is run, or in those that are one checkpoint from that one on.
    Layer(usize),
    /// Outside them too, but done for them: what was postponed.
    Postponed,
    /// No part of a step: what stands for the gradients of layers that are not run.
    StandIns,
}

impl Trail {
    /// The trail of a run without these layers, each so many of which are like as many before them.
    pub(crate) fn without(left_out: Range<usize>, unit: usize) -> Trail {
        Trail {
            left_out,
            unit,
            is_lost: false,
            entries: Vec::with_capacity(64),
            nodes: Vec::with_capacity(64),
        }
    }

    /// Whether anything was postponed, and done outside the layers.
    pub(crate) fn was_postponed(&self) -> bool {
        self.entries.iter().any(|entry| entry.part == Part::Postponed)
    }

    fn part(&self) -> Part {
        self.entries.last().map_or(Part::Between, |entry| entry.part)
    }
}

impl Torch {
    /// The layers that are not run, as the model numbers them.
    pub(crate) fn left_out(&self) -> Range<usize> {
        self.trail.borrow().as_ref().map_or(0..0, |trail| trail.left_out.clone())
    }

    /// How the model numbers the layer that is run as that one.
    pub(crate) fn in_model(&self, layer: usize) -> usize {
        let left_out = self.left_out();
        if layer < left_out.start { layer } else { layer + left_out.len() }
    }

    /// The number that a layer is run as which the model has at that place.
    pub(crate) fn as_run(&self, layer: usize) -> usize {
        let left_out = self.left_out();
        if layer < left_out.end { layer } else { layer - left_out.len() }
    }

    /// What came of layers in a backward pass, with what would have come of those that are not run: each with how many layers later
    /// it is than what came.
    pub(crate) fn with_left_out<T: Clone>(&self, came: Vec<(Option<usize>, T)>) -> Vec<(usize, T)> {
        let mut trail = self.trail.borrow_mut();
        let as_it_came = |came: Vec<(Option<usize>, T)>| came.into_iter().map(|(_, it)| (0, it)).collect();
        let Some(trail) = &mut *trail else { return as_it_came(came) };
        let again = trail.left_out.start - trail.unit..trail.left_out.start;
        let is_again = |(layer, _): &(Option<usize>, T)| layer.is_some_and(|layer| again.contains(&layer));
        let (from, to) = (came.iter().position(is_again), came.iter().rposition(is_again));
        let copies = trail.left_out.len() / trail.unit;
        let (Some(from), Some(to)) = (from, to) else {
            return as_it_came(came);
        };
        trail.is_lost |= !came.iter().take(to).skip(from).all(is_again);
        let unit = trail.unit;
        let later = (1..=copies).rev().flat_map(|copy| (from..to + 1).map(move |at| (copy * unit, at)));
        let as_it_came = |range: Range<usize>| range.map(|at| (0, at));
        let all = as_it_came(0..from).chain(later).chain(as_it_came(from..came.len()));
        all.filter_map(|(later, at)| came.get(at).map(|(_, it)| (later, it.clone()))).collect()
    }

    /// A forward pass comes to that part.
    pub(crate) fn enters(&self, part: Part) {
        if let Some(trail) = &mut *self.trail.borrow_mut() {
            trail.nodes.push((self.sequence.get(), part));
        }
        self.comes_to(part);
    }

    /// The run comes to that part.
    pub(crate) fn comes_to(&self, part: Part) {
        let Some(trail) = &mut *self.trail.borrow_mut() else { return };
        let tape = self.tape.borrow();
        let passes = trail.entries.last().map_or(0, |entry| entry.pass);
        let begins = trail.part() == Part::Between && part != Part::Between;
        trail.entries.push(Entry {
            part,
            pass: passes + usize::from(begins),
            moment: tape.next().0,
            stored: tape.stored.len(),
            costs: self.costs_so_far(),
            carried: self.module_hooks.borrow().as_ref().map_or(Carried::default(), |hooks| hooks.carried()),
        });
    }

    /// Runs `body` off the trail.
    pub(super) fn off_the_trail(&self, body: impl FnOnce()) {
        let length = |trail: &Trail| (trail.entries.len(), trail.nodes.len());
        let before = self.trail.borrow().as_ref().map(length);
        body();
        if let (Some(trail), Some((entries, nodes))) = (&mut *self.trail.borrow_mut(), before) {
            trail.entries.truncate(entries);
            trail.nodes.truncate(nodes);
        }
    }

    /// Backward has ended.
    pub(super) fn comes_out(&self) {
        let inside = self.trail.borrow().as_ref().is_some_and(|trail| trail.part() != Part::Between);
        if inside {
            self.comes_to(Part::Between);
        }
    }

    /// Backward comes to the node of that number, and so to the part in which it was made.
    pub(super) fn comes_back_to_node(&self, node: u32) {
        let part = self.trail.borrow().as_ref().map(|trail| {
            let at = trail.nodes.partition_point(|(first, _)| *first <= node);
            let part = at.checked_sub(1).and_then(|at| trail.nodes.get(at));
            part.map_or(Part::Between, |(_, part)| *part)
        });
        if let Some(part) = part {
            self.comes_back_to(part);
        }
    }

    /// Backward comes to that part, if it is not there yet.
    pub(super) fn comes_back_to(&self, part: Part) {
        if self.trail.borrow().as_ref().is_some_and(|trail| trail.part() != part) {
            self.comes_to(part);
        }
    }

    /// The part that the run is in.
    pub(super) fn part(&self) -> Part {
        self.trail.borrow().as_ref().map_or(Part::Between, Trail::part)
    }
}
