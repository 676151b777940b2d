// The page: reads the document that is in the file and puts up the answer, the pictures and the tables.

import "./style.css";
import { answer } from "./answer.ts";
import { embedded, type Page, type Series } from "./document.ts";
import { h } from "./dom.ts";
import { Multiples } from "./multiples.ts";
import { Drawn } from "./series.ts";
import * as tables from "./tables.ts";
import { remember, remembered, setTheme, THEMES, type Theme } from "./theme.ts";
import { Timeline } from "./timeline.ts";
import { preferred, WORDS, type Words } from "./words.ts";

class View {
  private words: Words = WORDS[preferred()];
  private language = preferred();
  private theme: Theme = THEMES.find((theme) => theme === remembered("theme")) ?? "auto";
  private readonly drawn: Drawn[];
  private repaint: () => void = () => {};

  constructor(
    private readonly root: HTMLElement,
    private readonly page: Page,
  ) {
    this.drawn = page.series.map((series) => new Drawn(series));
    setTheme(this.theme);
    this.build();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
  }

  private build(): void {
    const { page, words } = this;
    document.documentElement.lang = this.language === "zh" ? "zh-CN" : "en";
    const timeline = new Timeline(page, this.drawn, words);
    const twin = h("div", {}, tables.phases(page.series[0]!, words));
    const found = h(
      "div",
      {},
      tables.states(page.series[0]!, words, (state) => this.find(timeline, state)),
    );
    const choose = (index: number) => {
      const series = page.series[index]!;
      timeline.select(index);
      twin.replaceChildren(tables.phases(series, words));
      found.replaceChildren(tables.states(series, words, (state) => this.find(timeline, state)));
    };
    const name = (series: Series) => this.name(series);
    const several = page.series.length > 1;
    const multiples = several ? new Multiples(page, this.drawn, words, name, choose) : null;
    this.repaint = () => {
      timeline.paint();
      multiples?.paint();
    };
    this.root.replaceChildren(
      this.header(),
      h("h1", {}, page.title, page.subtitle ? h("small", {}, page.subtitle) : ""),
      answer(page, words),
      h("section", { class: "plot" }, h("h2", {}, words.timeline), timeline.element),
      multiples
        ? h(
            "section",
            {},
            h("h2", {}, words.beside),
            h("p", { class: "hint" }, words.beside_hint),
            multiples.element,
            tables.candidates(page, words, name),
          )
        : "",
      h("section", {}, h("h2", {}, words.phases), twin),
      page.facts.length > 0 ? this.facts() : "",
      page.not_counted.length > 0
        ? h(
            "section",
            { id: "not-counted" },
            h("h2", {}, words.not_counted),
            h(
              "ul",
              {},
              page.not_counted.map((line) => h("li", {}, line)),
            ),
          )
        : "",
      h(
        "section",
        {},
        h("details", { id: "all-states" }, h("summary", {}, h("h2", {}, words.states)), found),
      ),
      h("footer", {}, words.made_by(page.version), " ", words.binary),
    );
  }

  /** The series' name as people say it. */
  private name(series: Series): string {
    return series.role !== "candidate" && this.page.measure === "op_level"
      ? this.words.step_tab(this.words.steps[series.name] ?? series.name)
      : series.name;
  }

  private find(timeline: Timeline, state: number): void {
    timeline.find(state);
    timeline.element.scrollIntoView({ block: "center" });
  }

  private header(): HTMLElement {
    const language = h("button", { type: "button", id: "language" }, this.words.language);
    language.addEventListener("click", () => {
      this.language = this.language === "zh" ? "en" : "zh";
      this.words = WORDS[this.language];
      remember("language", this.language);
      this.build();
      document.getElementById("language")?.focus();
    });
    const theme = h("button", { type: "button", id: "theme" }, this.words.theme[this.theme]);
    theme.addEventListener("click", () => {
      this.theme = THEMES[(THEMES.indexOf(this.theme) + 1) % THEMES.length]!;
      theme.textContent = this.words.theme[this.theme];
      remember("theme", this.theme);
      setTheme(this.theme);
      this.repaint();
    });
    return h("header", {}, h("span", { class: "brand" }, "peakledger"), h("nav", {}, language, theme));
  }

  private facts(): HTMLElement {
    const rows = this.page.facts.map(([topic, sentence]) => [h("dt", {}, topic), h("dd", {}, sentence)]);
    return h("section", { id: "facts" }, h("h2", {}, this.words.notes), h("dl", {}, rows.flat()));
  }

  /** On paper: light, and with all tables open. */
  private print(begins: boolean): void {
    setTheme(begins ? "light" : this.theme);
    for (const details of document.querySelectorAll("details")) {
      if (details.id !== "all-states") details.open = begins;
    }
    this.repaint();
  }
}

const page = embedded<Page>("document");
const root = document.getElementById("page");
if (page && root) new View(root, page);
