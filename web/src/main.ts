// The page: puts up the answer, the pictures and the tables of a document: of the one that is in the file, or, where a
// server stands behind it, of what the planner's knobs say.

import "./style.css";
import { embedded, type Page } from "./document.ts";
import { h } from "./dom.ts";
import { Planner, type Settings, settings } from "./planner.ts";
import { Report } from "./report.ts";
import type { Server } from "./server.ts";
import { forget, remember, remembered, setTheme, THEMES, type Theme } from "./theme.ts";
import { preferred, WORDS, type Words } from "./words.ts";

class View {
  private language = preferred();
  private theme: Theme = THEMES.find((theme) => theme === remembered("theme")) ?? "auto";
  private report: Report | null = null;
  /** The words after `peakledger plan` that made the page, if they did. */
  private made: string[] | null = null;
  private readonly settings: Settings | null;
  private planner: Planner | null = null;
  private readonly place = h("div", { id: "report" });

  constructor(
    private readonly root: HTMLElement,
    private page: Page | null,
    private readonly server: Server | null,
  ) {
    this.settings = server ? settings(server) : null;
    setTheme(this.theme);
    this.build();
    if (server && !page) void this.planner?.move();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      forget();
      this.report?.repaint();
    });
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
    if (server) this.takeDrops();
  }

  private get words(): Words {
    return WORDS[this.language];
  }

  private build(): void {
    document.documentElement.lang = this.language === "zh" ? "zh-CN" : "en";
    if (this.server && this.settings) {
      this.planner = new Planner(this.server, this.settings, this.words, {
        show: (page, words) => this.show(page, words),
        move: (page, words) => this.show(page, words, true),
        pin: () => this.page && this.report?.pin(),
      });
    }
    this.root.replaceChildren(this.header(), this.planner?.element ?? "", this.place);
    this.report = new Report(this.place, this.words, this.report?.pins ?? []);
    if (this.page) this.report.show(this.page, this.made);
  }

  private show(page: Page, words: string[] | null, moving = false): void {
    this.page = page;
    document.title = `${page.title} · peakledger`;
    this.made = words;
    if (moving && words) this.report?.move(page, words);
    else this.report?.show(page, words);
  }

  private header(): HTMLElement {
    const language = h("button", { type: "button", id: "language" }, this.words.language);
    language.addEventListener("click", () => {
      this.language = this.language === "zh" ? "en" : "zh";
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
      this.report?.repaint();
    });
    return h("header", {}, h("span", { class: "brand" }, "peakledger"), h("nav", {}, language, theme));
  }

  /** Files that are dropped anywhere. */
  private takeDrops(): void {
    addEventListener("dragover", (event) => event.preventDefault());
    addEventListener("drop", (event) => {
      event.preventDefault();
      const file = event.dataTransfer?.files[0];
      if (file) void this.planner?.open(file);
    });
  }

  /** On paper: light, and with all tables open. */
  private print(begins: boolean): void {
    setTheme(begins ? "light" : this.theme);
    for (const details of document.querySelectorAll("details")) {
      if (details.id !== "all-states") details.open = begins;
    }
    this.report?.repaint();
  }
}

const root = document.getElementById("page");
const page = embedded<Page>("document");
const server = embedded<Server>("server");
if (root && (page || server)) new View(root, page, server);
