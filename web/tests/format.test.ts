// What the page computes by itself: sizes, ticks, axes, buckets.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Level, Series } from "../src/document.ts";
import { exact, percent, size, ticks } from "../src/format.ts";
import { Axis, Drawn } from "../src/series.ts";
import { stateAt } from "../src/stack.ts";

test("sizes are written as peakledger writes them", () => {
  assert.deepEqual([0, 512, 1536, -(2 ** 31)].map(size), ["0 B", "512 B", "1.50 KiB", "-2.00 GiB"]);
  assert.equal(exact("18446744073709551615"), "18,446,744,073,709,551,615 B");
  assert.deepEqual([percent(1, 3), percent(0, 0)], ["33.3 %", "0.0 %"]);
});

test("ticks are round and reach the top", () => {
  const labels = (most: number, count: number) => ticks(most, count).map((tick) => tick.label);
  assert.deepEqual(labels(10 * 2 ** 30, 5), ["0", "2 GiB", "4 GiB", "6 GiB", "8 GiB", "10 GiB"]);
  assert.deepEqual(labels(1.5 * 2 ** 30, 3), ["0", "0.5 GiB", "1.0 GiB", "1.5 GiB"]);
  assert.deepEqual(labels(3, 5), ["0", "1 B", "2 B", "3 B"]);
  assert.deepEqual(labels(0, 5), ["0"]);
});

const level = (over: Partial<Level>): Level => ({
  first: 0,
  per: 1,
  count: 0,
  at: [],
  min: [],
  cpu: [],
  by_category: [[], [], [], [], [], [], []],
  ...over,
});

/** Ten moments: 5 bytes of parameters, and 3 of an activation at moments 4 to 6. */
function drawn(): Drawn {
  const phase = (id: string, first: number, last: number) => ({ id, first, last, moment: first });
  const series = {
    moments: 10,
    phases: [phase("load", 0, 0), phase("forward", 1, 9)],
    phases_left_out: 0,
    peak: { moment: 4, bytes: 8 },
    reserved: [
      [0, 6],
      [4, 10],
      [7, 8],
    ],
    levels: [
      level({ per: 5, count: 2, at: [4, 0], min: [5, 0], by_category: [[5, 0], [], [], [], [3, 0], [], []] }),
      level({ first: 3, count: 4, by_category: [[5, 0, 0, 0], [], [], [], [0, 3, 0, 0], [], []] }),
    ],
    states: {
      names: ["weight", "mul"],
      categories: [0, 4],
      bytes: [5, 3],
      stays: [
        [0, 0, 0, 9],
        [1, 0, 4, 6],
        [1, 1, 7, 9],
      ],
    },
  };
  return new Drawn(series as unknown as Series);
}

test("a column is the largest moment in it, as fine as it is known", () => {
  const it = drawn();
  assert.deepEqual([it.column(0, 10).total, it.column(0, 10).moment, it.column(0, 10).min], [8, 4, 5]);
  assert.deepEqual([it.column(3, 4).total, it.column(3, 4).moments], [5, 1], "in the window, to the moment");
  assert.deepEqual([it.column(0, 1).total, it.column(0, 1).moments], [8, 5], "outside, its bucket");
  assert.equal(it.column(9.5, 99).moment, 5, "past the end, the last");
});

test("what is reserved at a moment is what it was at the last change", () => {
  const it = drawn();
  const most = (from: number, to: number) => it.reserved(from, to);
  assert.deepEqual(
    [most(0, 1), most(3, 4), most(3, 5), most(6, 7), most(5, 99), most(8, 9)],
    [6, 6, 10, 10, 10, 8],
  );
  assert.equal(it.mostReserved, 10);
});

test("every height of a column is a state", () => {
  const it = drawn();
  const at = (bytes: number) => stateAt(it, it.column(4, 5), bytes)?.state;
  assert.deepEqual([at(0), at(4.9), at(5), at(7.9), at(8)], [0, 0, 1, 1, undefined]);
});

test("places on an axis lead back, and no phase is too short to be seen", () => {
  const { series } = drawn();
  const axis = Axis.of(series);
  for (const moment of [0, 0.5, 1, 4, 9.5, 10])
    assert.ok(Math.abs(axis.moment(axis.place(moment)) - moment) < 1e-9);
  assert.deepEqual([axis.place(0), axis.place(10)], [0, 1]);
  const long = {
    ...series,
    moments: 10_000,
    phases: [series.phases[0]!, { ...series.phases[1]!, last: 9_999 }],
  };
  assert.ok(Axis.of(long).place(1) > 0.04);
  assert.ok(Math.abs(Axis.under(long, series).place(1) - axis.place(1)) < 1e-9, "phase under phase");
});
