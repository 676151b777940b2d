// The document that the page draws, as crates/report/src/html/document.rs writes it.

/** Bytes: a number where JavaScript's are exact, else its digits. */
export type Exact = number | string;

export interface Page {
  version: string;
  title: string;
  subtitle: string | null;
  measure: "ledger" | "op_level";
  verdict: Verdict | null;
  device_peak: Exact | null;
  series: Series[];
  series_left_out: number;
  facts: [topic: string, sentence: string][];
  not_counted: string[];
}

export interface Verdict {
  gpu: string;
  fits: boolean;
  needed: Exact;
  /** What the caching allocator reserves, where that is predicted. */
  reserved: Exact | null;
  outside: Exact;
  capacity: Exact;
  headroom: number;
}

export interface Series {
  name: string;
  role: "subject" | "step" | "candidate";
  moments: number;
  phases: Phase[];
  phases_left_out: number;
  peak: Peak;
  levels: Level[];
  /** What the caching allocator reserves from a moment on, at each change, where that is known. */
  reserved: [moment: number, bytes: Exact][];
  states: States;
  contributors: Contributor[];
  contributors_left_out: [count: number, bytes: Exact];
  saving: number | null;
  verdict: Verdict | null;
  moved: Moved[];
}

export interface Phase {
  id: string;
  phase: string;
  micro_batch: number | null;
  first: number;
  last: number;
  moment: number;
  total: Exact;
  end: Exact;
  cpu: Exact;
  device: Exact | null;
  by_category: Exact[];
  op: string | null;
}

export interface Peak {
  phase: string;
  moment: number;
  bytes: Exact;
  by_category: Exact[];
  op: string | null;
}

/** Buckets of `per` moments; columns are differences from one bucket to the next. */
export interface Level {
  first: number;
  per: number;
  count: number;
  at: number[];
  min: number[];
  cpu: number[];
  by_category: number[][];
}

export interface States {
  names: string[];
  categories: number[];
  details: number[];
  bytes: Exact[];
  persistent: number[];
  stays: [state: number, device: number, first: number, last: number][];
  left_out: number;
}

export interface Contributor {
  name: string;
  category: CategoryName;
  detail: string | null;
  bytes: Exact;
  count: number;
}

export interface Moved {
  name: string;
  before: Exact;
  after: Exact;
  change: string;
}

/** In the order of Rust's `Category::ALL`, which is that of every column. */
export const CATEGORIES = [
  "parameter",
  "master_weight",
  "gradient",
  "optimizer_state",
  "activation",
  "workspace",
  "communication_buffer",
] as const;
export type CategoryName = (typeof CATEGORIES)[number];

/** In the order of Rust's `Detail::ALL`. */
export const DETAILS = ["buffer", "input", "saved_tensor", "output", "temporary", "kernel"] as const;

/** From the ground up: what persists lies at the bottom, what passes on top. */
export const STACK = [0, 1, 3, 2, 4, 5, 6];

/** Reads the JSON of an element of the page, if there is any in it. */
export function embedded<T>(id: string): T | null {
  const text = document.getElementById(id)?.textContent?.trim() ?? "";
  return text.startsWith("{") ? (JSON.parse(text) as T) : null;
}
