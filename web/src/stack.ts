// Where a state lies in the stack, and which state lies at a height: the pile of a category from the ground up.

import { STACK } from "./document.ts";
import { type Column, type Drawn, STACKED, type Stay } from "./series.ts";

/** How many bytes lie under a state in each column: the categories below its own, and what came before it. */
export function heights(drawn: Drawn, stay: Stay, all: Column[], moments: number[]): Float64Array {
  const change = new Float64Array(all.length + 1);
  for (const other of drawn.stays[stay.category]!) {
    if (other === stay) break;
    const [a, b] = [lower(moments, other.first), lower(moments, other.last + 1)];
    if (a < b) {
      change[a]! += other.bytes;
      change[b]! -= other.bytes;
    }
  }
  const under = STACK.slice(0, STACKED[stay.category]!);
  let running = 0;
  return Float64Array.from(all, (column, i) => {
    running += change[i]!;
    return running + under.reduce((sum, category) => sum + (column.byCategory[category] ?? 0), 0);
  });
}

/** The first place in a rising list that is not below a value. */
function lower(list: number[], value: number): number {
  let [lo, hi] = [0, list.length];
  while (lo < hi) {
    const mid = (lo + hi) >> 1;
    if (list[mid]! < value) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

/** Which state lies at a height of a column, if it can be told. */
export function stateAt(drawn: Drawn, column: Column, bytes: number): Stay | null {
  let base = 0;
  for (const category of STACK) {
    const top = base + (column.byCategory[category] ?? 0);
    if (bytes < top) {
      for (const stay of drawn.standing(category, column.moment)) {
        base += stay.bytes;
        if (bytes < base) return stay;
      }
      return null;
    }
    base = top;
  }
  return null;
}
