// The series side by side: small pictures with one scale, phase under phase.

import { caption, draw } from "./chart.ts";
import type { Page, Series } from "./document.ts";
import { h } from "./dom.ts";
import { size } from "./format.ts";
import { Axis, type Drawn } from "./series.ts";
import { saving } from "./tables.ts";
import { palette } from "./theme.ts";
import type { Words } from "./words.ts";

export class Multiples {
  readonly element: HTMLElement;
  private readonly canvases: HTMLCanvasElement[] = [];

  constructor(
    page: Page,
    private readonly all: Drawn[],
    private readonly words: Words,
    name: (series: Series) => string,
    choose: (index: number) => void,
    chosen = 0,
  ) {
    const buttons = all.map((drawn, i) => {
      const { series } = drawn;
      const said = i === 0 ? page.verdict : series.verdict;
      const canvas = h("canvas", { "aria-hidden": "true" });
      this.canvases.push(canvas);
      const button: HTMLButtonElement = h(
        "button",
        {
          type: "button",
          class: "small",
          "aria-pressed": String(i === chosen),
          "aria-label": caption(drawn, name(series)),
          click: () => {
            for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
            choose(i);
          },
        },
        h("span", { class: "title name" }, name(series)),
        h("span", { class: "figure" }, said ? `${said.fits ? "✓" : "✕"} ` : "", size(series.peak.bytes)),
        canvas,
        h(
          "span",
          { class: "faint" },
          series.saving === null
            ? series.peak.phase
            : `${saving(series.saving, words)} · ${series.peak.phase}`,
        ),
      );
      return button;
    });
    this.element = h("div", { class: "multiples", id: "multiples" }, buttons);
    new ResizeObserver(() => this.paint()).observe(this.element);
  }

  paint(): void {
    const most = Math.max(...this.all.map((drawn) => Math.max(drawn.peak, drawn.mostReserved)), 1);
    const colors = palette();
    this.all.forEach((drawn, i) => {
      const axis = Axis.under(drawn.series, this.all[0]!.series);
      const words = (category: number) => this.words.categories[category]!;
      draw(this.canvases[i]!, { drawn, axis, view: [0, 1], most, palette: colors, words, plain: true });
    });
  }
}
