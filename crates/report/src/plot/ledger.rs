//! The timeline of a ledger, in the colours of the categories.

use super::{Axes, Cell, ROWS, block};
use crate::Look;
use peakledger_core::sweep::{Stay, by_category_at};
use peakledger_core::{ByCategory, Category, Ledger, Moment, Slot};
use std::io;

/// No phase is narrower, where there is room.
const NARROWEST_PHASE: usize = 5;
/// What persists lies at the bottom.
const STACK: [Category; 7] = [
    Category::Parameter,
    Category::MasterWeight,
    Category::OptimizerState,
    Category::Gradient,
    Category::Activation,
    Category::Workspace,
    Category::CommunicationBuffer,
];

/// Draws the timeline of a ledger with its peak on the left and its phases below.
pub(crate) fn ledger(ledger: &Ledger, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
    let Some(mut axes) = Axes::of(ledger.peak().bytes, look) else { return Ok(()) };
    let spans = spans(ledger.timeline().slots(), axes.columns);
    let columns = columns(ledger, &spans);
    axes.columns = columns.len();
    let cell = |at: usize, row: usize| columns.get(at).and_then(|column| cell(&axes, column, row, look));
    axes.draw(out, look, &names(&spans), cell)
}

/// A phase and the columns that it takes.
struct Span<'a> {
    slot: &'a Slot,
    first: usize,
    columns: usize,
}

/// The phases over so many columns, by their moments, and none too narrow to be seen where all have room.
fn spans(slots: &[Slot], room: usize) -> Vec<Span<'_>> {
    let least = if slots.len() * NARROWEST_PHASE <= room { NARROWEST_PHASE } else { 0 };
    let spare = (room - slots.len() * least) as u128;
    let all: u128 = slots.iter().map(|slot| u128::from(slot.moments())).sum::<u128>().max(1);
    let (mut before, mut first) = (0u128, 0);
    let span = |(at, slot): (usize, &'_ Slot)| {
        before += u128::from(slot.moments());
        let end = least * (at + 1) + usize::try_from(spare * before / all).unwrap_or(0);
        (std::mem::replace(&mut first, end), end)
    };
    let ends: Vec<(usize, usize)> = slots.iter().enumerate().map(span).collect();
    slots.iter().zip(ends).map(|(slot, (first, end))| Span { slot, first, columns: end - first }).collect()
}

/// What each column shows: the largest of its moments, by category.
fn columns(ledger: &Ledger, spans: &[Span<'_>]) -> Vec<ByCategory> {
    let mut largest: Vec<Moment> = Vec::new();
    for Span { slot, columns, .. } in spans {
        let moments = u64::from(slot.moments());
        let at = |column: usize| {
            let offset = moments * column as u64 / (*columns).max(1) as u64;
            Moment(slot.first.0 + u32::try_from(offset).unwrap_or(0))
        };
        largest.extend((0..*columns).map(|column| {
            let (first, next) = (at(column), at(column + 1));
            let last = Moment(next.0.saturating_sub(1).max(first.0).min(slot.last.0));
            ledger.totals().peak_between(first, last).0
        }));
    }
    let stays = ledger.states().iter().flat_map(Stay::all_of);
    let mut order: Vec<Moment> = largest.clone();
    order.dedup();
    let sums = by_category_at(ledger.timeline().moments(), &order, stays);
    let found = |moment: &Moment| sums.get(order.binary_search(moment).ok()?).copied();
    largest.iter().map(|moment| found(moment).unwrap_or_default()).collect()
}

/// The block of a column in a row counted from the ground, with the colour of what lies there.
fn cell(axes: &Axes, column: &ByCategory, row: usize, look: &Look) -> Cell {
    let total: u128 = Category::ALL.iter().map(|c| u128::from(column.get(*c).get())).sum();
    let here = axes.eighths(total).saturating_sub(row * 8).min(8);
    if here == 0 {
        return None;
    }
    // the category at the middle of what is drawn in this cell
    let middle = (row * 16 + here) as u128 * u128::from(axes.full.get());
    let mut sum = 0u128;
    let of = STACK.into_iter().find(|category| {
        sum += u128::from(column.get(*category).get());
        sum * 16 * ROWS as u128 >= middle
    });
    Some((block(here, look), of.map(|category| look.category(category)).unwrap_or_default()))
}

/// The names of the phases, each where it begins.
fn names(spans: &[Span<'_>]) -> Vec<(usize, String)> {
    let single = spans.iter().all(|span| span.slot.micro_batch.is_none_or(|number| number == 0));
    let id = |slot: &Slot| if single { slot.phase.to_string() } else { slot.id() };
    spans.iter().map(|span| (span.first, id(span.slot))).collect()
}
