// What is there at a moment, in words and figures; read out as it changes.

import { CATEGORIES, DETAILS, STACK } from "./document.ts";
import { bar, h, named, swatch } from "./dom.ts";
import { exact, grouped, percent, size } from "./format.ts";
import { type Drawn, intervals } from "./series.ts";
import type { Words } from "./words.ts";

const MOST = 8;

export class Inspector {
  readonly element: HTMLElement;
  private drawn: Drawn | null = null;

  constructor(private readonly words: Words) {
    this.element = h("div", { class: "inspector", "aria-live": "polite", id: "inspector" });
  }

  of(drawn: Drawn): void {
    this.drawn = drawn;
    const rows = Math.min(MOST, drawn.series.contributors.length + drawn.series.contributors_left_out[0]);
    this.element.style.setProperty("--rows", String(rows));
  }

  /** What it shows is of a picture before. */
  wait(): void {
    this.drawn = null;
    this.element.setAttribute("aria-busy", "true");
  }

  /** Shows a moment, and of the states one. */
  moment(moment: number, state: number | null): void {
    const { drawn, words } = this;
    if (!drawn) return;
    const { series } = drawn;
    const column = drawn.column(moment, moment + 1);
    const known = column.moment === moment;
    const phase = drawn.phaseAt(moment);
    const there = STACK.flatMap((category) => drawn.standing(category, moment));
    there.sort((a, b) => b.bytes - a.bytes || a.state - b.state);
    const total = known ? column.total : there.reduce((sum, stay) => sum + stay.bytes, 0);
    const op = phase && phase.moment === moment ? phase.op : null;
    const heading = h(
      "div",
      { class: "at" },
      h("strong", {}, size(total)),
      " ",
      words.in_phase(phase?.id ?? "", ""),
      op ? ` · ${words.at_op(op)}` : "",
      h(
        "span",
        { class: "faint" },
        ` · ${words.moment(grouped(moment + 1), grouped(series.moments))}`,
        column.moments > 1 && known ? `, ${words.largest_of(grouped(column.moments))}` : "",
      ),
    );
    const row = (name: string, bytes: number, category: number, chosen: boolean) =>
      h(
        "tr",
        { class: chosen ? "chosen" : null },
        h("td", {}, swatch(category), " ", named(name)),
        h("td", { class: "figure" }, size(bytes)),
        h("td", { class: "figure faint" }, percent(bytes, total)),
        h("td", { class: "bars" }, bar(bytes / Math.max(there[0]?.bytes ?? 0, 1), category)),
      );
    const rows = there
      .slice(0, MOST)
      .map((stay) => row(series.states.names[stay.state]!, stay.bytes, stay.category, stay.state === state));
    const rest = total - there.slice(0, MOST).reduce((sum, stay) => sum + stay.bytes, 0);
    const hidden = there.length - MOST;
    this.element.replaceChildren(
      heading,
      this.state(state),
      h("table", {}, h("tbody", {}, rows)),
      hidden > 0 || rest > 0
        ? h("p", { class: "faint" }, words.more(grouped(Math.max(hidden, 0)), size(Math.max(rest, 0))))
        : "",
    );
  }

  /** All that is known of one state. */
  private state(state: number | null): HTMLElement {
    const { drawn, words } = this;
    if (state === null || !drawn) return h("div");
    const { states } = drawn.series;
    const category = states.categories[state]!;
    const detail = DETAILS[states.details[state]!];
    const when = intervals(states, state).map(({ device, first, last }) => {
      const place = (moment: number) => {
        const phase = drawn.phaseAt(moment);
        if (!phase) return grouped(moment + 1);
        return phase.first === phase.last ? phase.id : `${phase.id} ${grouped(moment - phase.first + 1)}`;
      };
      const [a, b] = [place(first), place(last)];
      return `${device}: ${a === b ? a : `${a} – ${b}`}`;
    });
    return h(
      "div",
      { class: "state", id: "state" },
      swatch(category),
      h("strong", {}, named(states.names[state]!)),
      h("span", {}, `${size(states.bytes[state]!)} (${exact(states.bytes[state]!)})`),
      h("span", {}, words.categories[category] ?? CATEGORIES[category]!, detail ? ` · ${detail}` : ""),
      h("span", {}, when.join(", ")),
      states.persistent[state] ? h("span", {}, words.persistent) : "",
    );
  }
}
