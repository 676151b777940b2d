// A series as a trace that Perfetto and chrome://tracing open: phases as slices, categories as counters. A moment is a
// microsecond there.

import { CATEGORIES, type Series } from "./document.ts";
import type { Drawn } from "./series.ts";

export function trace(drawn: Drawn): string {
  const { series } = drawn;
  const at = { pid: 1, tid: 1 };
  const events: object[] = [
    { name: "process_name", ph: "M", ...at, args: { name: `peakledger: ${series.name}` } },
    ...series.phases.map((phase) => ({
      name: phase.id,
      ph: "X",
      ...at,
      ts: phase.first,
      dur: phase.last - phase.first + 1,
      args: { total_bytes: String(phase.total), at: phase.op ?? "" },
    })),
  ];
  const { count, per, first } = series.levels[0]!;
  for (let i = 0; i < count; i++) {
    const column = drawn.column(first + i * per, first + (i + 1) * per);
    const args = Object.fromEntries(held(series).map((c) => [CATEGORIES[c]!, column.byCategory[c] ?? 0]));
    events.push({ name: "bytes", ph: "C", ...at, ts: column.moment, args });
  }
  return JSON.stringify({ displayTimeUnit: "ms", traceEvents: events });
}

/** The categories that hold anything. */
function held(series: Series): number[] {
  return CATEGORIES.map((_, i) => i).filter((i) => (series.levels[0]!.by_category[i]?.length ?? 0) > 0);
}
