// The tables: the twin of each picture, for eyes that would rather read and for screen readers.

import { CATEGORIES, type Page, type Series } from "./document.ts";
import { bar, download, h, named, swatch } from "./dom.ts";
import { exact, grouped, size } from "./format.ts";
import { type Drawn, intervals } from "./series.ts";
import type { Words } from "./words.ts";

const figure = (bytes: number | string) => h("td", { class: "figure", title: exact(bytes) }, size(bytes));

/** The phases of a series by category: the timeline's twin. */
export function phases(drawn: Drawn, words: Words): HTMLElement {
  const { series } = drawn;
  const reserved = series.reserved.length > 0;
  const held = CATEGORIES.map((_, i) => i).filter((i) =>
    series.phases.some((p) => Number(p.by_category[i]) > 0),
  );
  const device = series.phases.some((phase) => phase.device !== null);
  const host = series.phases.some((phase) => Number(phase.cpu) > 0);
  const titles = [
    h("th", { scope: "col" }, words.phase),
    h("th", { scope: "col", class: "figure" }, words.largest),
    h("th", { class: "bars" }),
    held.map((i) => h("th", { scope: "col", class: "figure" }, swatch(i), " ", words.categories[i]!)),
    h("th", { scope: "col", class: "figure" }, words.at_end),
    device ? h("th", { scope: "col", class: "figure" }, words.device) : "",
    reserved ? h("th", { scope: "col", class: "figure" }, words.reserved) : "",
    host ? h("th", { scope: "col", class: "figure" }, words.host) : "",
    h("th", { scope: "col" }, words.at),
  ].flat();
  const most = Math.max(Number(series.peak.bytes), 1);
  const rows = series.phases.map((phase) => {
    const isPeak = phase.moment === series.peak.moment;
    return h(
      "tr",
      { class: isPeak ? "chosen" : null },
      h("th", { scope: "row" }, isPeak ? "▶ " : "", phase.id),
      figure(phase.total),
      h("td", { class: "bars" }, stackedBar(phase.by_category.map(Number), most)),
      held.map((i) => figure(phase.by_category[i]!)),
      figure(phase.end),
      device ? figure(phase.device ?? 0) : "",
      reserved ? figure(drawn.reserved(phase.first, phase.last + 1)) : "",
      host ? figure(phase.cpu) : "",
      h("td", { class: "op" }, phase.op ?? ""),
    );
  });
  const left = series.phases_left_out;
  return h(
    "div",
    { class: "wide" },
    h("table", { class: "phases", id: "phases" }, h("thead", {}, h("tr", {}, titles)), h("tbody", {}, rows)),
    left > 0 ? h("p", { class: "faint" }, words.more_rows(grouped(left))) : "",
    h("p", {}, h("button", { type: "button", click: () => csv(series) }, words.save_csv)),
  );
}

function stackedBar(byCategory: number[], most: number): HTMLElement {
  const parts = [0, 1, 3, 2, 4, 5, 6].map((category) => {
    const part = h("span", { class: `c${category}` });
    part.style.width = `${((byCategory[category] ?? 0) / most) * 100}%`;
    return part;
  });
  return h("span", { class: "bar", "aria-hidden": "true" }, parts);
}

/** A cell of CSV that no spreadsheet takes for a formula. */
function cell(text: string): string {
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csv(series: Series): void {
  const rows = [["phase", "total_bytes", "end_bytes", "host_bytes", ...CATEGORIES, "at"]];
  for (const phase of series.phases) {
    const figures = [phase.total, phase.end, phase.cpu, ...phase.by_category].map(String);
    rows.push([cell(phase.id), ...figures, cell(phase.op ?? "")]);
  }
  const text = rows.map((row) => row.join(",")).join("\n");
  download("peakledger.csv", new Blob([`${text}\n`], { type: "text/csv" }));
}

/** What each series needs, and what it saves: the twin of the small pictures. */
export function candidates(page: Page, words: Words, name: (series: Series) => string): HTMLElement {
  const most = Math.max(...page.series.map((series) => Number(series.peak.bytes)), 1);
  const verdicts = page.series.some((series) => series.verdict);
  const ops = page.series.some((series) => series.peak.op);
  const rows = page.series.map((series, i) => {
    const said = i === 0 ? page.verdict : series.verdict;
    const room = said
      ? said.headroom < 0
        ? words.too_much(size(-said.headroom))
        : words.spare(size(said.headroom))
      : "";
    return h(
      "tr",
      {},
      h("th", { scope: "row", class: "name" }, name(series)),
      figure(series.peak.bytes),
      h("td", { class: "bars" }, stackedBar(series.peak.by_category.map(Number), most)),
      verdicts ? h("td", {}, said ? `${said.fits ? `✓ ${words.yes}` : `✕ ${words.no}`}: ${room}` : "") : "",
      h("td", { class: "figure" }, series.saving === null ? "" : size(series.saving)),
      h("td", {}, series.peak.phase),
      ops ? h("td", { class: "op" }, series.peak.op ?? "") : "",
    );
  });
  const peak = words.peak.toLowerCase();
  const figures = [peak, words.saves_title];
  const fits = verdicts ? words.fits_title : null;
  const titles = [words.name, peak, "", fits, words.saves_title, words.phase, ops ? words.at : null];
  const head = titles
    .filter((title) => title !== null)
    .map((title) =>
      h(
        "th",
        { scope: "col", class: title === "" ? "bars" : figures.includes(title!) ? "figure" : null },
        title!,
      ),
    );
  return h(
    "div",
    { class: "wide" },
    h("table", { id: "candidates" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)),
    page.series_left_out > 0
      ? h("p", { class: "faint" }, words.more_rows(grouped(page.series_left_out)))
      : "",
    page.series.filter((series) => series.moved.length > 0).map((series) => moved(series, words)),
  );
}

export function saving(bytes: number, words: Words): string {
  if (bytes === 0) return words.same_peak;
  return bytes > 0 ? words.saves(size(bytes)) : words.needs_more(size(-bytes));
}

function moved(series: Series, words: Words): HTMLElement {
  const rows = series.moved.map((one) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", class: "name" }, one.name),
      figure(one.before),
      figure(one.after),
      h("td", {}, one.change),
    ),
  );
  const titles = [words.name, words.before, words.after, words.change].map((t) =>
    h("th", { scope: "col" }, t),
  );
  return h(
    "details",
    {},
    h("summary", {}, words.moved(series.name)),
    h("table", {}, h("thead", {}, h("tr", {}, titles)), h("tbody", {}, rows)),
  );
}

/** All states that are told apart, found by name; choosing one shows it in the timeline. */
export function states(series: Series, words: Words, show: (state: number) => void): HTMLElement {
  const MOST = 100;
  const { states } = series;
  const order = states.bytes.map((bytes, i) => [Number(bytes), i] as const);
  order.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  const lower = states.names.map((name) => name.toLowerCase());
  const body = h("tbody");
  const count = h("p", { class: "faint", "aria-live": "polite" });
  const largest = Math.max(order[0]?.[0] ?? 0, 1);
  const fill = (part: string) => {
    const found = order.filter(([, i]) => lower[i]!.includes(part));
    body.replaceChildren(
      ...found.slice(0, MOST).map(([bytes, i]) => {
        const stays = intervals(states, i);
        const span = stays.map(
          ({ device, first, last }) => `${device} ${grouped(first + 1)}–${grouped(last + 1)}`,
        );
        return h(
          "tr",
          {},
          h(
            "td",
            {},
            swatch(states.categories[i]!),
            " ",
            h("button", { type: "button", class: "link", click: () => show(i) }, named(states.names[i]!)),
          ),
          figure(states.bytes[i]!),
          h("td", { class: "bars" }, bar(bytes / largest, states.categories[i]!)),
          h("td", {}, words.categories[states.categories[i]!]!),
          h("td", { class: "figure" }, span.join(", ")),
        );
      }),
    );
    count.textContent = words.states_shown(grouped(Math.min(MOST, found.length)), grouped(found.length));
  };
  const search = h("input", {
    type: "search",
    id: "search",
    placeholder: words.search,
    "aria-label": words.search,
    input: () => fill(search.value.toLowerCase()),
  });
  fill("");
  const titles = [words.name, words.size, "", words.category, words.from_to].map((title) =>
    h("th", { scope: "col", class: title === "" ? "bars" : null }, title),
  );
  return h(
    "div",
    { class: "wide" },
    h("p", { class: "hint" }, words.states_hint),
    search,
    count,
    h("table", { id: "states" }, h("thead", {}, h("tr", {}, titles)), body),
    states.left_out > 0 ? h("p", { class: "faint" }, words.states_left(grouped(states.left_out))) : "",
  );
}
