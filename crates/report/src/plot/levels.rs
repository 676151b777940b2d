//! What a device did hold over its events: allocated bytes, and over them what the allocator reserves.

use super::{Axes, Cell, block};
use crate::Look;
use crate::table::prose;
use anstyle::Style;
use peakledger_core::Bytes;
use peakledger_measure::Levels;
use std::io;

/// Draws what was held from the first moment to the last, with names at moments below.
pub(crate) fn levels(
    levels: &Levels,
    names: &[(u32, String)],
    out: &mut dyn io::Write,
    look: &Look,
) -> io::Result<()> {
    let most = levels.largest(0..levels.moments());
    let Some(axes) = Axes::of(Bytes::new(most.allocated.max(most.reserved)), look) else { return Ok(()) };
    let columns: Vec<_> = (0..axes.columns).map(|at| levels.largest(moments(&axes, levels, at))).collect();
    let cell = |at: usize, row: usize| -> Cell {
        let level = columns.get(at)?;
        let above = |bytes: u64| axes.eighths(u128::from(bytes)).saturating_sub(row * 8).min(8);
        match (above(level.allocated), above(level.reserved)) {
            (0, 0) => None,
            (0, _) => Some((reserved(look), look.faint())),
            (allocated, _) => Some((block(allocated, look), Style::new())),
        }
    };
    let column = |moment: u32| u64::from(moment) * axes.columns as u64 / u64::from(levels.moments()).max(1);
    let named = |(moment, name): &(u32, String)| {
        (usize::try_from(column(*moment)).unwrap_or(usize::MAX), name.clone())
    };
    axes.draw(out, look, &names.iter().map(named).collect::<Vec<_>>(), cell)?;
    let legend = |mark: &str, what: &str, bytes: u64| format!("{mark} {what}, up to {}", Bytes::new(bytes));
    let mut legends = vec![legend(block(8, look), "allocated", most.allocated)];
    // a trace of the cpu has no cache to tell of
    legends.extend((most.reserved > 0).then(|| legend(reserved(look), "reserved", most.reserved)));
    prose(out, look, look.faint(), &legends.join("; "))
}

/// What is reserved and not allocated.
fn reserved(look: &Look) -> &'static str {
    if look.ascii { "." } else { "░" }
}

/// The moments that a column stands for, one or more.
fn moments(axes: &Axes, levels: &Levels, column: usize) -> std::ops::Range<u32> {
    let at = |column: usize| {
        let moment = column as u64 * u64::from(levels.moments()) / axes.columns.max(1) as u64;
        u32::try_from(moment).unwrap_or(u32::MAX)
    };
    let (first, next) = (at(column), at(column + 1));
    first..next.max(first.saturating_add(1))
}
