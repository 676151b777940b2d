// The timeline: the picture, what is under the pointer or the keys, and closer and farther.

import { draw, frame, isFitting } from "./chart.ts";
import { type Page, type Series, STACK } from "./document.ts";
import { download, h } from "./dom.ts";
import { size } from "./format.ts";
import { Inspector } from "./inspector.ts";
import { trace } from "./perfetto.ts";
import { Axis, type Drawn, type Stay } from "./series.ts";
import { stateAt } from "./stack.ts";
import { palette } from "./theme.ts";
import type { Words } from "./words.ts";

const CLOSEST = 12;

export class Timeline {
  readonly element: HTMLElement;
  private readonly canvas: HTMLCanvasElement;
  private readonly tip: HTMLElement;
  private readonly note: HTMLElement;
  private readonly inspector: Inspector;
  private readonly help: HTMLDialogElement;
  private index = 0;
  private shown: Drawn;
  private axis: Axis;
  private view: [number, number] = [0, 1];
  private cursor: number | null = null;
  private stay: Stay | null = null;
  private pinned = false;
  private frame = 0;

  constructor(
    private page: Page,
    private all: Drawn[],
    private readonly words: Words,
  ) {
    this.shown = all[0]!;
    this.axis = Axis.of(this.shown.series);
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.note = h("p", { class: "hint" });
    this.inspector = new Inspector(words);
    this.help = this.makeHelp();
    const stage = h(
      "div",
      {
        class: "stage",
        id: "stage",
        tabindex: 0,
        role: "application",
        "aria-roledescription": words.timeline,
        "aria-label": `${words.timeline}. ${words.timeline_hint}`,
        keydown: (event: KeyboardEvent) => this.key(event),
        pointermove: (event: PointerEvent) => this.point(event),
        pointerleave: () => this.leave(),
        click: (event: MouseEvent) => this.pin(event),
        dblclick: (event: MouseEvent) => this.zoom(0.5, this.placeOf(event.offsetX)),
      },
      this.canvas,
      this.tip,
    );
    stage.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    const button = (text: string, act: () => void, id?: string) =>
      h("button", { type: "button", id, click: act }, text);
    const tools = h(
      "div",
      { class: "tools" },
      button(words.to_peak, () => this.toPeak()),
      button(words.closer, () => this.zoom(0.5)),
      button(words.farther, () => this.zoom(2)),
      button(words.whole, () => this.whole()),
      button("?", () => this.help.showModal()),
      button(words.save_png, () => this.png()),
      button(words.save_trace, () => this.trace(), "save-trace"),
    );
    this.element = h(
      "div",
      { class: "timeline" },
      tools,
      stage,
      this.note,
      this.inspector.element,
      this.help,
    );
    new ResizeObserver(() => isFitting(this.canvas) || this.redraw()).observe(stage);
    this.select(0);
  }

  private makeHelp(): HTMLDialogElement {
    const { words } = this;
    const rows = words.key_list.map(([keys, what]) => h("tr", {}, h("th", {}, keys!), h("td", {}, what!)));
    const dialog: HTMLDialogElement = h(
      "dialog",
      {},
      h("h3", {}, words.keys),
      h("table", {}, h("tbody", {}, rows)),
      h("button", { type: "button", click: () => dialog.close() }, words.close),
    );
    return dialog;
  }

  /** Shows another series, at its peak. */
  select(index: number): void {
    this.index = index;
    this.take();
    this.inspector.of(this.shown);
    this.note.textContent = [
      this.words.paler,
      this.series.reserved.length > 0 ? this.words.reserved_line : "",
      this.outlined() ? this.words.outline(this.all[0]!.series.name) : "",
    ]
      .filter((text) => text)
      .join(" · ");
    this.pinned = false;
    this.stay = null;
    this.look(null);
    this.inspector.moment(this.shown.series.peak.moment, null);
  }

  /** The next picture of the same series, while a knob moves. What is there at a moment is told when it is at rest. */
  move(page: Page, all: Drawn[]): void {
    [this.page, this.all] = [page, all];
    this.take();
    this.pinned = false;
    [this.cursor, this.stay] = [null, null];
    this.tip.hidden = true;
    this.inspector.wait();
    this.redraw();
  }

  private take(): void {
    this.shown = this.all[this.index] ?? this.all[0]!;
    this.axis = Axis.under(this.shown.series, this.all[0]!.series);
  }

  /** Shows where one state is. */
  find(state: number): void {
    const stay = this.shown.stays.flat().find((stay) => stay.state === state) ?? null;
    this.pinned = true;
    this.stay = stay;
    const { peak } = this.shown.series;
    const at = stay && (peak.moment < stay.first || peak.moment > stay.last) ? stay.first : peak.moment;
    if (this.axis.place(at) < this.view[0] || this.axis.place(at) > this.view[1]) this.view = [0, 1];
    this.look(stay ? at : null, stay, state);
  }

  redraw(): void {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  }

  paint(): void {
    const { verdict } = this.page;
    const most = this.height();
    draw(this.canvas, {
      drawn: this.shown,
      axis: this.axis,
      view: this.view,
      most,
      palette: palette(),
      words: (category) => this.words.categories[category]!,
      outline: this.outlined() ? { drawn: this.all[0]!, axis: Axis.of(this.all[0]!.series) } : null,
      capacity: verdict
        ? { bytes: Number(verdict.capacity), label: `${verdict.gpu}: ${size(verdict.capacity)}` }
        : null,
      peakLabel: `${this.words.peak.toLowerCase()} ${size(this.series.peak.bytes)}`,
      cursor: this.cursor,
      stay: this.stay,
    });
  }

  private get series(): Series {
    return this.shown.series;
  }

  /** Whether the subject is drawn as a line over another series. */
  private outlined(): boolean {
    return this.shown !== this.all[0];
  }

  /** Looks at a moment, and a state then. */
  private look(
    moment: number | null,
    stay: Stay | null = null,
    state: number | null = stay?.state ?? null,
  ): void {
    this.cursor = moment;
    this.stay = stay;
    if (moment !== null || state !== null) {
      this.inspector.moment(moment ?? this.series.peak.moment, state);
    }
    this.redraw();
  }

  private placeOf(x: number): number {
    const box = frame(this.canvas, false);
    const share = Math.max(0, Math.min(1, (x - box.left) / box.width));
    return this.view[0] + share * (this.view[1] - this.view[0]);
  }

  private columnOf(x: number) {
    const pixel = (this.view[1] - this.view[0]) / frame(this.canvas, false).width;
    const place = this.placeOf(x);
    return this.shown.column(this.axis.moment(place), this.axis.moment(Math.min(1, place + pixel)));
  }

  private point(event: PointerEvent): void {
    if (this.pinned) return;
    const box = frame(this.canvas, false);
    const column = this.columnOf(event.offsetX);
    const most = this.height();
    const bytes = (1 - (event.offsetY - box.top) / box.height) * most;
    const stay = stateAt(this.shown, column, bytes);
    this.look(column.moment, stay);
    this.tip.hidden = false;
    const phase = this.shown.phaseAt(column.moment)?.id ?? "";
    const what = stay
      ? h("strong", {}, this.series.states.names[stay.state]!)
      : h("strong", {}, size(column.total));
    this.tip.replaceChildren(
      what,
      h("span", {}, stay ? size(stay.bytes) : this.words.largest),
      h("span", {}, phase),
    );
    const right = event.offsetX > this.canvas.clientWidth / 2;
    this.tip.style.left = right ? "auto" : `${event.offsetX + 14}px`;
    this.tip.style.right = right ? `${this.canvas.clientWidth - event.offsetX + 14}px` : "auto";
    this.tip.style.top = `${Math.max(0, event.offsetY - 12)}px`;
  }

  /** Bytes at the top: the largest total, and the card's memory where that is near. */
  private height(): number {
    const { verdict } = this.page;
    const largest = Math.max(
      this.shown.peak,
      this.shown.mostReserved,
      this.outlined() ? this.all[0]!.peak : 0,
      1,
    );
    const capacity = verdict ? Number(verdict.capacity) : 0;
    return Math.max(largest, capacity < largest * 1.6 ? capacity : 0) * 1.03;
  }

  private leave(): void {
    this.tip.hidden = true;
    if (!this.pinned) this.look(null);
  }

  private pin(event: MouseEvent): void {
    this.pinned = !this.pinned;
    this.tip.hidden = this.pinned;
    if (!this.pinned) this.point(event as PointerEvent);
  }

  private wheel(event: WheelEvent): void {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.placeOf(event.offsetX));
  }

  private zoom(factor: number, around?: number): void {
    const [from, to] = this.view;
    const at =
      around ??
      (this.cursor === null ? this.axis.place(this.series.peak.moment) : this.axis.place(this.cursor));
    const middle = at >= from && at <= to ? at : (from + to) / 2;
    const least = Math.min(1, CLOSEST / this.series.moments);
    const width = Math.max(least, Math.min(1, (to - from) * factor));
    const start = middle - ((middle - from) / (to - from)) * width;
    this.show(start, width);
  }

  private show(from: number, width: number): void {
    const start = Math.max(0, Math.min(1 - width, from));
    this.view = [start, start + width];
    this.redraw();
  }

  private whole(): void {
    this.view = [0, 1];
    this.redraw();
  }

  private toPeak(): void {
    this.pinned = true;
    this.walkTo(this.series.peak.moment);
  }

  /** Looks at a moment and moves the view where it is not in it. */
  private walkTo(moment: number): void {
    const stay = this.stay && this.stay.first <= moment && moment <= this.stay.last ? this.stay : null;
    const [from, to] = this.view;
    const place = this.axis.place(moment);
    if (place < from || place > to) this.show(place - (to - from) / 2, to - from);
    this.pinned = true;
    this.tip.hidden = true;
    this.look(moment, stay);
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.cursor ?? this.series.peak.moment;
    const many = event.shiftKey ? 10 : 1;
    const width = this.view[1] - this.view[0];
    const acts: Record<string, () => void> = {
      ArrowLeft: () => this.walkTo(this.shown.beside(at, -many)),
      ArrowRight: () => this.walkTo(this.shown.beside(at, many)),
      Home: () => this.walkTo(0),
      End: () => this.walkTo(this.series.moments - 1),
      PageUp: () => this.phase(at, -1),
      PageDown: () => this.phase(at, 1),
      ArrowUp: () => this.state(at, 1),
      ArrowDown: () => this.state(at, -1),
      p: () => this.toPeak(),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      w: () => this.zoom(0.5),
      "-": () => this.zoom(2),
      s: () => this.zoom(2),
      a: () => this.show(this.view[0] - width / 4, width),
      d: () => this.show(this.view[0] + width / 4, width),
      "0": () => this.whole(),
      Escape: () => {
        this.pinned = false;
        this.look(null);
      },
      "?": () => this.help.showModal(),
    };
    const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  private phase(at: number, step: number): void {
    const { phases } = this.series;
    const here = phases.findIndex((phase) => phase.first <= at && at <= phase.last);
    const next = phases[Math.max(0, Math.min(phases.length - 1, here + step))];
    if (next) this.walkTo(next.moment);
  }

  /** The state above or below, of those that are there. */
  private state(at: number, step: number): void {
    const there = STACK.flatMap((category) => this.shown.standing(category, at));
    const here = this.stay ? there.indexOf(this.stay) : step > 0 ? -1 : there.length;
    const next = there[Math.max(0, Math.min(there.length - 1, here + step))];
    this.pinned = true;
    if (next) this.look(at, next);
  }

  private png(): void {
    this.canvas.toBlob((blob) => blob && download("peakledger.png", blob));
  }

  private trace(): void {
    download("peakledger-trace.json", new Blob([trace(this.shown)], { type: "application/json" }));
  }
}
