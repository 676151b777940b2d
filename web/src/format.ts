// Sizes as people read them, in binary units, with the exact bytes beside.

import type { Exact } from "./document.ts";

const UNITS: [string, number][] = [
  ["PiB", 2 ** 50],
  ["TiB", 2 ** 40],
  ["GiB", 2 ** 30],
  ["MiB", 2 ** 20],
  ["KiB", 2 ** 10],
];

/** `1.50 GiB`, as peakledger prints everywhere. */
export function size(bytes: Exact): string {
  const number = Number(bytes);
  const [sign, magnitude] = number < 0 ? ["-", -number] : ["", number];
  const unit = UNITS.find(([, scale]) => magnitude >= scale);
  return unit ? `${sign}${(magnitude / unit[1]).toFixed(2)} ${unit[0]}` : `${sign}${magnitude} B`;
}

/** The bytes to the last one, in groups of three. */
export function exact(bytes: Exact): string {
  return `${grouped(bytes)} B`;
}

export function grouped(number: Exact): string {
  return String(number).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

export function percent(part: Exact, whole: Exact): string {
  const of = Number(whole);
  return `${of === 0 ? "0.0" : ((Number(part) / of) * 100).toFixed(1)} %`;
}

/** Round steps for an axis up to `most`, about `count` of them, in one unit. */
export function ticks(most: number, count: number): { at: number; label: string }[] {
  if (most <= 0) return [{ at: 0, label: "0" }];
  const [unit, scale] = UNITS.find(([, scale]) => most >= scale) ?? ["B", 1];
  const rough = most / scale / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max([1, 2, 5, 10].find((s) => s * power >= rough)! * power, scale === 1 ? 1 : 0);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const all = [];
  for (let n = 0; n * step * scale <= most * 1.0001; n++) {
    all.push({ at: n * step * scale, label: n === 0 ? "0" : `${(n * step).toFixed(digits)} ${unit}` });
  }
  return all;
}
