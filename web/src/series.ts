// A series made ready to be drawn: columns added up, an axis on which short phases are seen, and who is where.

import { type Level, type Phase, type Series, STACK, type States } from "./document.ts";

/** A level with its columns added up. */
interface Bands {
  first: number;
  per: number;
  count: number;
  at: number[];
  min: Float64Array;
  total: Float64Array;
  cpu: Float64Array;
  byCategory: Float64Array[];
}

function added(differences: number[], count: number): Float64Array {
  const column = new Float64Array(count);
  let sum = 0;
  for (let i = 0; i < differences.length; i++) {
    sum += differences[i]!;
    column[i] = sum;
  }
  return column;
}

function bands(level: Level): Bands {
  const { first, per, count, at } = level;
  const byCategory = level.by_category.map((column) => added(column, count));
  const total = new Float64Array(count);
  for (const column of byCategory) for (let i = 0; i < count; i++) total[i]! += column[i]!;
  const min = level.min.length > 0 ? added(level.min, count) : total;
  return { first, per, count, at, min, total, cpu: added(level.cpu, count), byCategory };
}

/** What is drawn in one column of pixels: the largest moment in it. */
export interface Column {
  moment: number;
  total: number;
  min: number;
  cpu: number;
  byCategory: number[];
  /** How many moments it stands for. */
  moments: number;
}

/** Moments to a place from 0 to 1 and back: even in each phase, and no phase so short that it is not seen. */
export class Axis {
  private constructor(
    private readonly starts: number[],
    private readonly places: number[],
  ) {}

  static of(series: Series): Axis {
    const { phases, moments } = series;
    if (series.phases_left_out > 0 || phases.length < 2 || phases.length > 64) {
      return new Axis([0, moments], [0, 1]);
    }
    const least = Math.min(0.055, 0.5 / phases.length) * moments;
    const widths = phases.map((phase) => Math.max(phase.last - phase.first + 1, least));
    const sum = widths.reduce((a, b) => a + b, 0);
    let place = 0;
    const places = widths.map((width) => {
      place += width / sum;
      return place;
    });
    places[places.length - 1] = 1;
    return new Axis([0, ...phases.map((phase) => phase.last + 1)], [0, ...places]);
  }

  /** That of a series on the axis of another, phase under phase; its own where the phases are not the same. */
  static under(series: Series, subject: Series): Axis {
    const [own, other] = [Axis.of(series), Axis.of(subject)];
    const ids = (phases: Phase[]) => phases.map((phase) => phase.id).join("\n");
    const same = ids(series.phases) === ids(subject.phases) && own.places.length === other.places.length;
    return same ? new Axis(own.starts, other.places) : own;
  }

  place(moment: number): number {
    return between(this.starts, this.places, moment);
  }

  moment(place: number): number {
    return between(this.places, this.starts, place);
  }
}

function between(from: number[], to: number[], at: number): number {
  let i = 0;
  while (i < from.length - 2 && at >= from[i + 1]!) i++;
  const share = (at - from[i]!) / (from[i + 1]! - from[i]!);
  return to[i]! + share * (to[i + 1]! - to[i]!);
}

/** The place of each category in the stack. */
export const STACKED = STACK.map((_, category) => STACK.indexOf(category));

/** A residency of a state on the gpu. */
export interface Stay {
  state: number;
  first: number;
  last: number;
  bytes: number;
  category: number;
}

export class Drawn {
  readonly bands: Bands[];
  readonly peak: number;
  readonly mostReserved: number;
  /** By category, in the order in which they are stacked: what lasts longest lies lowest. */
  readonly stays: Stay[][];

  constructor(readonly series: Series) {
    this.bands = series.levels.map(bands);
    this.peak = Number(series.peak.bytes);
    this.mostReserved = this.reserved(-1, Number.POSITIVE_INFINITY);
    const { states } = series;
    this.stays = STACK.map(() => []);
    for (const [state, device, first, last] of states.stays) {
      if (device !== 0) continue;
      const category = states.categories[state]!;
      this.stays[category]!.push({ state, first, last, bytes: Number(states.bytes[state]), category });
    }
    for (const list of this.stays)
      list.sort((a, b) => a.first - b.first || b.last - a.last || a.state - b.state);
  }

  /** The largest moment from `from` to before `to`, as fine as it is known. */
  column(from: number, to: number): Column {
    const last = this.series.moments - 1;
    const [a, b] = [
      Math.max(0, Math.min(last, Math.floor(from))),
      Math.max(0, Math.min(last, Math.ceil(to) - 1)),
    ];
    const end = Math.max(a, b);
    let level = this.bands[0]!;
    for (const finer of this.bands) {
      if (finer.first <= a && end < finer.first + finer.count * finer.per) level = finer;
    }
    const lo = Math.floor((a - level.first) / level.per);
    const hi = Math.min(level.count - 1, Math.floor((end - level.first) / level.per));
    let best = lo;
    let min = Number.POSITIVE_INFINITY;
    let cpu = 0;
    for (let i = lo; i <= hi; i++) {
      if (level.total[i]! > level.total[best]!) best = i;
      min = Math.min(min, level.min[i]!);
      cpu = Math.max(cpu, level.cpu[i]!);
    }
    const moment = level.first + best * level.per + (level.at[best] ?? 0);
    const byCategory = level.byCategory.map((column) => column[best]!);
    return { moment, total: level.total[best]!, min, cpu, byCategory, moments: (hi - lo + 1) * level.per };
  }

  /** The moments beside one: the largest of the buckets before and after it. */
  beside(moment: number, steps: number): number {
    const level = [...this.bands]
      .reverse()
      .find((b) => b.first <= moment && moment < b.first + b.count * b.per)!;
    const bucket = Math.floor((moment - level.first) / level.per) + steps;
    const first = level.first + bucket * level.per;
    if (first < 0) return this.column(0, 1).moment;
    if (first >= this.series.moments) return this.series.moments - 1;
    return this.column(first, first + level.per).moment;
  }

  /** The most that is reserved from `from` to before `to`; nothing where that is not known. */
  reserved(from: number, to: number): number {
    const changes = this.series.reserved;
    let at = 0;
    for (let hi = changes.length; at < hi; ) {
      const mid = (at + hi) >> 1;
      if (changes[mid]![0] <= from) at = mid + 1;
      else hi = mid;
    }
    let most = Number(changes[at - 1]?.[1] ?? 0);
    for (; at < changes.length && changes[at]![0] < to; at++) most = Math.max(most, Number(changes[at]![1]));
    return most;
  }

  phaseAt(moment: number): Phase | undefined {
    return this.series.phases.find((phase) => phase.first <= moment && moment <= phase.last);
  }

  /** The states of a category at a moment, from the ground up. */
  standing(category: number, moment: number): Stay[] {
    return this.stays[category]!.filter((stay) => stay.first <= moment && moment <= stay.last);
  }
}

/** When a state is where, in words of phases. */
export function intervals(
  states: States,
  state: number,
): { device: "gpu" | "cpu"; first: number; last: number }[] {
  return states.stays
    .filter(([of]) => of === state)
    .map(([, device, first, last]) => ({ device: device === 0 ? "gpu" : "cpu", first, last }));
}
