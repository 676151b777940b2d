// The answer of one document, with the pictures and tables of it, and beside it what the reader pinned.

import { answer } from "./answer.ts";
import type { Page, Series } from "./document.ts";
import { h } from "./dom.ts";
import { Multiples } from "./multiples.ts";
import { Drawn } from "./series.ts";
import * as tables from "./tables.ts";
import { Timeline } from "./timeline.ts";
import type { Words } from "./words.ts";

export class Report {
  repaint: () => void = () => {};
  private inMotion: ((page: Page) => void) | null = null;
  private later = 0;
  private shown!: Page;
  /** The words after `peakledger plan` that made it. */
  private made: string[] | null = null;

  constructor(
    private readonly place: HTMLElement,
    private readonly words: Words,
    /** Subjects of earlier documents. */
    readonly pins: Series[],
  ) {}

  show(page: Page, words: string[] | null): void {
    this.shown = page;
    this.made = words;
    this.build();
  }

  /** Shows what a knob that moves makes of the same document: what is seen at once, and all of it when it is at rest. */
  move(page: Page, words: string[]): void {
    const names = (series: Series[]) => series.map((one) => one.name).join("\n");
    const isNext = this.inMotion && names(page.series) === names(this.shown.series);
    this.shown = page;
    this.made = words;
    if (isNext) this.inMotion?.(this.page);
    else this.build();
  }

  /** Keeps what is shown, to be compared with what will be. */
  pin(): void {
    const { series, verdict, title } = this.shown;
    const options = (this.made ?? [])
      .slice(1)
      .join(" ")
      .replace(/--gpu \S+ ?/, "")
      .replaceAll("--", "");
    const name = options ? `${title}: ${options}` : title;
    this.pins.push({ ...series[0]!, name, role: "candidate", verdict });
    this.build();
  }

  /** The document and the pins. */
  private get page(): Page {
    const subject = this.shown.series[0]!;
    const pins = this.pins.map((pin) => ({
      ...pin,
      saving: Number(subject.peak.bytes) - Number(pin.peak.bytes),
    }));
    return { ...this.shown, series: [...this.shown.series, ...pins] };
  }

  private build(): void {
    const { words } = this;
    let { page } = this;
    let drawn = page.series.map((series) => new Drawn(series));
    clearTimeout(this.later);
    this.place.removeAttribute("aria-busy");
    const timeline = new Timeline(page, drawn, words);
    const find = (state: number) => {
      timeline.find(state);
      timeline.element.scrollIntoView({ block: "center" });
    };
    const twin = h("div");
    const found = h("div");
    const opened = this.place.querySelector<HTMLDetailsElement>("#all-states")?.open ?? false;
    const states = h(
      "details",
      { id: "all-states", open: opened },
      h("summary", {}, h("h2", {}, words.states)),
      found,
    );
    let chosen = 0;
    // a table of thousands is made when it is looked at
    const fill = () => states.open && found.replaceChildren(tables.states(page.series[chosen]!, words, find));
    states.addEventListener("toggle", fill);
    const phases = () => twin.replaceChildren(tables.phases(drawn[chosen]!, words));
    const choose = (index: number) => {
      chosen = index;
      timeline.select(index);
      phases();
      fill();
    };
    choose(0);
    const name = (series: Series) => this.name(series);
    let multiples: Multiples | null = null;
    const others = h("div");
    const beside = () => {
      if (page.series.length < 2) return;
      multiples = new Multiples(page, drawn, words, name, choose, chosen);
      others.replaceChildren(this.beside(multiples, page, name));
    };
    beside();
    this.repaint = () => {
      timeline.paint();
      multiples?.paint();
    };
    let said = answer(page, words);
    const seen = (element: HTMLElement) => {
      const { top, bottom } = element.getBoundingClientRect();
      return top < innerHeight && bottom > 0;
    };
    this.inMotion = (next) => {
      page = next;
      drawn = page.series.map((series) => new Drawn(series));
      this.place.setAttribute("aria-busy", "true");
      const before = said;
      said = answer(page, words);
      before.replaceWith(said);
      timeline.move(page, drawn);
      // the tables come after the picture, those that are looked at
      clearTimeout(this.later);
      requestAnimationFrame(() => {
        this.later = window.setTimeout(() => {
          if (seen(others)) beside();
          if (seen(twin)) phases();
        }, 0);
      });
    };
    const section = (title: string, id: string, ...content: (Node | string)[]) =>
      h("section", { id }, h("h2", {}, title), ...content);
    this.place.replaceChildren(
      h("h1", {}, page.title, page.subtitle ? h("small", {}, page.subtitle) : ""),
      said,
      h("section", { class: "plot" }, h("h2", {}, words.timeline), timeline.element),
      multiples ? section(words.beside, "beside", others) : "",
      section(words.phases, "of-phases", twin),
      page.facts.length > 0 ? section(words.notes, "facts", this.facts()) : "",
      page.not_counted.length > 0
        ? section(
            words.not_counted,
            "not-counted",
            h(
              "ul",
              {},
              page.not_counted.map((line) => h("li", {}, line)),
            ),
          )
        : "",
      h("section", {}, states),
      h("footer", {}, words.made_by(page.version), " ", words.binary),
    );
  }

  private beside(multiples: Multiples, page: Page, name: (series: Series) => string): HTMLElement {
    const { words } = this;
    const clear = () => {
      this.pins.length = 0;
      this.build();
    };
    return h(
      "div",
      {},
      h("p", { class: "hint" }, words.beside_hint),
      multiples.element,
      tables.candidates(page, words, name),
      this.pins.length > 0 ? h("button", { type: "button", id: "unpin", click: clear }, words.unpin) : "",
    );
  }

  /** The series' name as people say it. */
  private name(series: Series): string {
    return series.role !== "candidate" && this.shown.measure === "op_level"
      ? this.words.step_tab(this.words.steps[series.name] ?? series.name)
      : series.name;
  }

  private facts(): HTMLElement {
    const rows = this.shown.facts.map(([topic, sentence]) => [h("dt", {}, topic), h("dd", {}, sentence)]);
    return h("dl", {}, rows.flat());
  }
}
