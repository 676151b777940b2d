// The first screen: the peak, when it is, who forms it, and whether it fits.

import { CATEGORIES, type Page, type Verdict } from "./document.ts";
import { bar, h, named, swatch } from "./dom.ts";
import { exact, grouped, percent, size } from "./format.ts";
import type { Words } from "./words.ts";

const MOST = 8;

export function answer(page: Page, words: Words): HTMLElement {
  const subject = page.series[0]!;
  const { peak } = subject;
  const step = page.measure === "op_level" ? (words.steps[subject.name] ?? "") : "";
  return h(
    "section",
    { class: "answer" },
    h(
      "div",
      { class: "peak" },
      h("p", { class: "label" }, words.peak),
      h("p", { class: "figure", id: "peak", title: exact(peak.bytes) }, size(peak.bytes)),
      h("p", { class: "when" }, words.in_phase(peak.phase, step)),
      peak.op ? h("p", { class: "op" }, words.at_op(peak.op)) : "",
      page.verdict ? verdict(page, page.verdict, words) : "",
      page.device_peak && page.measure === "op_level"
        ? h("p", { class: "faint" }, `${words.op_level}; ${words.device_peak(size(page.device_peak))}`)
        : "",
    ),
    who(page, words),
  );
}

function verdict(page: Page, said: Verdict, words: Words): HTMLElement {
  const headroom = said.headroom;
  const left = headroom < 0 ? words.too_much(size(-headroom)) : words.spare(size(headroom));
  const counted = said.reserved ?? page.device_peak;
  const made =
    counted === null ? "" : words.made_of(size(counted), said.reserved !== null, size(said.outside));
  return h(
    "div",
    { class: `verdict ${said.fits ? "good" : "bad"}`, id: "verdict" },
    h(
      "p",
      {},
      h(
        "strong",
        {},
        `${said.fits ? "✓" : "✕"} ${said.fits ? words.fits(said.gpu) : words.fits_not(said.gpu)}`,
      ),
      `: ${left}`,
    ),
    h("p", { class: "faint" }, `${words.needs(size(said.needed), size(said.capacity))}: ${made}`),
  );
}

function who(page: Page, words: Words): HTMLElement {
  const subject = page.series[0]!;
  const total = subject.peak.bytes;
  if (Number(total) === 0) return h("div", { class: "who" }, h("p", {}, words.zero));
  const [more, rest] = subject.contributors_left_out;
  const largest = Math.max(Number(subject.contributors[0]?.bytes ?? 0), 1);
  const rows = (list: typeof subject.contributors) =>
    list.map((one) => {
      const category = CATEGORIES.indexOf(one.category);
      return h(
        "tr",
        {},
        h(
          "td",
          {},
          swatch(category),
          " ",
          named(one.name, words.categories[category]),
          one.count > 1 ? h("span", { class: "faint" }, ` × ${grouped(one.count)}`) : "",
        ),
        h("td", { class: "figure", title: exact(one.bytes) }, size(one.bytes)),
        h("td", { class: "figure faint" }, percent(one.bytes, total)),
        h("td", { class: "bars" }, bar(Number(one.bytes) / largest, category)),
      );
    });
  const { contributors } = subject;
  const shown = contributors.length <= MOST + 1 ? contributors.length : MOST;
  const head = h(
    "thead",
    { class: "unseen" },
    h(
      "tr",
      {},
      [words.name, words.size, words.share, ""].map((t) => h("th", {}, t)),
    ),
  );
  return h(
    "div",
    { class: "who", id: "who" },
    h("h2", {}, words.who),
    h("table", {}, head, h("tbody", {}, rows(contributors.slice(0, shown)))),
    shown < contributors.length
      ? h(
          "details",
          {},
          h("summary", {}, words.more_rows(grouped(contributors.length - shown))),
          h("table", {}, h("tbody", {}, rows(contributors.slice(shown)))),
        )
      : "",
    more > 0 ? h("p", { class: "faint" }, words.more(grouped(more), size(rest))) : "",
  );
}
