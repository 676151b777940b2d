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
    const { page, words } = this;
    const drawn = page.series.map((series) => new Drawn(series));
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
    let chosen = page.series[0]!;
    // a table of thousands is made when it is looked at
    const fill = () => states.open && found.replaceChildren(tables.states(chosen, words, find));
    states.addEventListener("toggle", fill);
    const choose = (index: number) => {
      chosen = page.series[index]!;
      timeline.select(index);
      twin.replaceChildren(tables.phases(drawn[index]!, words));
      fill();
    };
    choose(0);
    const name = (series: Series) => this.name(series);
    const multiples = page.series.length > 1 ? new Multiples(page, drawn, words, name, choose) : null;
    this.repaint = () => {
      timeline.paint();
      multiples?.paint();
    };
    const section = (title: string, id: string, ...content: (Node | string)[]) =>
      h("section", { id }, h("h2", {}, title), ...content);
    this.place.replaceChildren(
      h("h1", {}, page.title, page.subtitle ? h("small", {}, page.subtitle) : ""),
      answer(page, words),
      h("section", { class: "plot" }, h("h2", {}, words.timeline), timeline.element),
      multiples ? section(words.beside, "beside", this.beside(multiples, page, name)) : "",
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
