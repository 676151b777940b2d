"""Phases and contributors for a notebook: two tables with bars, no script and no style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

COLORS = {
    "parameter": "#4c78a8",
    "master_weight": "#79a6d2",
    "activation": "#59a14f",
    "gradient": "#edc948",
    "optimizer_state": "#b07aa1",
    "workspace": "#e15759",
    "communication_buffer": "#76b7b2",
}
"""A colour for each category."""

MOST_CONTRIBUTORS = 10


def page(title: str, phases: Sequence[Mapping[str, Any]], contributors: Sequence[Mapping[str, Any]]) -> str:
    """The title, a bar for each phase, the legend of its categories, and the largest contributors."""
    totals = [_total(phase) for phase in phases]
    full = max(totals, default=0) or 1
    rows = "".join(
        f"<tr><td>{escape(_name(phase))}</td><td style='text-align:right'>{size(total)}</td>"
        f"<td style='width:24em'>{_bar(phase.get('by_category') or {}, full)}</td></tr>"
        for phase, total in zip(phases, totals, strict=True)
    )
    there = [name for name in COLORS if any((phase.get("by_category") or {}).get(name) for phase in phases)]
    legend = " ".join(f"<span style='color:{COLORS[name]}'>&#9632;</span>&nbsp;{name}" for name in there)
    shown = contributors[:MOST_CONTRIBUTORS]
    names = "".join(
        f"<tr><td>{escape(str(one['name']))}</td><td style='text-align:right'>{size(one['bytes'])}</td>"
        f"<td>{escape(str(one['category']))}</td></tr>"
        for one in shown
    )
    more = len(contributors) - len(shown)
    rest = f"<tr><td colspan='3'>and {more} more</td></tr>" if more else ""
    return (
        f"<p><b>{escape(title)}</b></p>"
        f"<table><thead><tr><th>phase</th><th>total</th><th></th></tr></thead><tbody>{rows}</tbody></table>"
        f"<p>{legend}</p>"
        f"<table><thead><tr><th>at the peak</th><th>size</th><th>category</th></tr></thead>"
        f"<tbody>{names}{rest}</tbody></table>"
    )


def size(count: int) -> str:
    """Bytes as people read them, in powers of two: ``1.50 GiB``."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{count} B" if unit == "B" else f"{amount:.2f} {unit}"


def _total(phase: Mapping[str, Any]) -> int:
    return int(phase["peak_bytes"] if "peak_bytes" in phase else phase["total_bytes"])


def _name(phase: Mapping[str, Any]) -> str:
    batch = phase.get("micro_batch")
    return f"{phase['phase']}.{batch}" if batch else str(phase["phase"])


def _bar(by_category: Mapping[str, int], full: int) -> str:
    parts = (
        f"<span title='{name}: {size(bytes_)}' style='display:inline-block;height:0.8em;"
        f"width:{100 * bytes_ / full:.2f}%;background:{COLORS.get(name, '#999')}'></span>"
        for name, bytes_ in by_category.items()
        if bytes_
    )
    return "".join(parts)
