// Draws a series on a canvas: categories stacked as they are at the largest moment of each column of pixels. Costs columns,
// never states or moments, so a million events are as quick as a hundred.

import { STACK } from "./document.ts";
import { size, ticks } from "./format.ts";
import type { Axis, Column, Drawn, Stay } from "./series.ts";
import { heights } from "./stack.ts";
import type { Palette } from "./theme.ts";

export interface Scene {
  drawn: Drawn;
  axis: Axis;
  /** The part of the axis that is seen. */
  view: [from: number, to: number];
  /** Bytes at the top. */
  most: number;
  palette: Palette;
  words: (category: number) => string;
  /** Small, without axes and words. */
  plain?: boolean;
  /** Another series, as a line. */
  outline?: { drawn: Drawn; axis: Axis } | null;
  capacity?: { bytes: number; label: string } | null;
  peakLabel?: string;
  cursor?: number | null;
  stay?: Stay | null;
}

/** Where things lie on the canvas, in CSS pixels. */
export interface Frame {
  left: number;
  top: number;
  width: number;
  height: number;
}

export function frame(canvas: HTMLCanvasElement, plain: boolean): Frame {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (plain) return { left: 0, top: 2, width, height: height - 3 };
  const left = width < 560 ? 58 : 76;
  return { left, top: 46, width: width - left - 2, height: height - 46 - 8 };
}

/** The columns of a scene, one for each pixel. */
export function columns(scene: Pick<Scene, "axis" | "view">, drawn: Drawn, count: number): Column[] {
  const [from, to] = scene.view;
  const at = (i: number) => scene.axis.moment(from + ((to - from) * i) / count);
  return Array.from({ length: count }, (_, i) => drawn.column(at(i), at(i + 1)));
}

const ratio = () => Math.min(window.devicePixelRatio || 1, 3);
const pixels = (canvas: HTMLCanvasElement): [number, number] => [
  Math.round(canvas.clientWidth * ratio()),
  Math.round(canvas.clientHeight * ratio()),
];

/** Whether a canvas was drawn in the size that it has now. */
export function isFitting(canvas: HTMLCanvasElement): boolean {
  const [width, height] = pixels(canvas);
  return canvas.width === width && canvas.height === height;
}

export function draw(canvas: HTMLCanvasElement, scene: Scene): void {
  const context = canvas.getContext("2d");
  const box = frame(canvas, scene.plain ?? false);
  if (!context || box.width < 8) return;
  // to set a size, the same one too, is to make the canvas anew
  if (!isFitting(canvas)) [canvas.width, canvas.height] = pixels(canvas);
  context.setTransform(ratio(), 0, 0, ratio(), 0, 0);
  context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  new Painter(context, scene, box).paint();
}

class Painter {
  private readonly columns: Column[];
  private readonly step: number;

  constructor(
    private readonly to: CanvasRenderingContext2D,
    private readonly scene: Scene,
    private readonly box: Frame,
  ) {
    const count = Math.max(
      1,
      Math.round(box.width * (scene.plain ? 1 : Math.min(2, window.devicePixelRatio || 1))),
    );
    this.columns = columns(scene, scene.drawn, count);
    this.step = box.width / count;
    to.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    to.textBaseline = "middle";
  }

  paint(): void {
    if (!this.scene.plain) {
      this.phases();
      this.grid();
    }
    this.stack();
    if (!this.scene.plain) this.borders();
    if (this.scene.stay) this.residency(this.scene.stay);
    this.reserved();
    this.outline();
    if (this.scene.plain) return;
    this.names();
    this.capacity();
    this.cursor();
    this.peak();
  }

  private x(moment: number): number {
    const [from, to] = this.scene.view;
    return this.box.left + ((this.scene.axis.place(moment) - from) / (to - from)) * this.box.width;
  }

  private y(bytes: number): number {
    return this.box.top + this.box.height * (1 - bytes / this.scene.most);
  }

  /** Every second phase on a shade, its name above where there is room. */
  private phases(): void {
    const { to, box, scene } = this;
    const right = box.left + box.width;
    let free = box.left;
    scene.drawn.series.phases.forEach((phase, i) => {
      const a = Math.max(box.left, this.x(phase.first));
      const b = Math.min(right, this.x(phase.last + 1));
      if (b - a < 1) return;
      if (i % 2 === 0) {
        to.fillStyle = scene.palette.band;
        to.fillRect(a, box.top - 18, b - a, box.height + 18);
      }
      const width = to.measureText(phase.id).width;
      const start = b - a > width + 6 ? a + 4 : Math.max(a, free) + 4;
      if (
        start >= free &&
        (b - a > width + 6 || (start < b + 4 && i === scene.drawn.series.phases.length - 1))
      ) {
        to.fillStyle = scene.palette.faint;
        const left = Math.min(start, right - width);
        if (left < free) return;
        to.fillText(phase.id, left, box.top - 9);
        free = left + width + 6;
      }
    });
  }

  /** A fine line between phases, over the stack. */
  private borders(): void {
    const { to, box, scene } = this;
    to.strokeStyle = scene.palette.ground;
    to.lineWidth = 1;
    to.globalAlpha = 0.4;
    for (const phase of scene.drawn.series.phases.slice(0, 400)) {
      const x = Math.round(this.x(phase.first)) + 0.5;
      if (x > box.left + 1 && x < box.left + box.width) this.line(x, box.top, x, box.top + box.height);
    }
    to.globalAlpha = 1;
  }

  private grid(): void {
    const { to, box, scene } = this;
    to.textAlign = "right";
    for (const { at, label } of ticks(scene.most, Math.max(2, Math.round(box.height / 62)))) {
      const y = Math.round(this.y(at)) + 0.5;
      to.strokeStyle = scene.palette.line;
      to.lineWidth = 1;
      this.line(box.left, y, box.left + box.width, y);
      to.fillStyle = scene.palette.faint;
      to.fillText(label, box.left - 8, y);
    }
    to.textAlign = "left";
  }

  private line(x: number, y: number, toX: number, toY: number): void {
    this.to.beginPath();
    this.to.moveTo(x, y);
    this.to.lineTo(toX, toY);
    this.to.stroke();
  }

  /** Fills between two heights over all columns. */
  private area(low: (i: number) => number, high: (i: number) => number): void {
    const { to, box, step } = this;
    const last = this.columns.length - 1;
    to.beginPath();
    for (let i = 0; i <= last; i++) {
      const y = this.y(high(i));
      to.lineTo(box.left + i * step, y);
      to.lineTo(box.left + (i + 1) * step, y);
    }
    for (let i = last; i >= 0; i--) {
      const y = this.y(low(i));
      to.lineTo(box.left + (i + 1) * step, y);
      to.lineTo(box.left + i * step, y);
    }
    to.fill();
  }

  private stack(): void {
    const { to, scene } = this;
    const base = new Float64Array(this.columns.length);
    const rims: Float64Array[] = [];
    for (const category of STACK) {
      const top = base.map((from, i) => from + (this.columns[i]!.byCategory[category] ?? 0));
      if (top.every((value, i) => value === base[i])) continue;
      const low = base.slice();
      to.fillStyle = scene.palette.categories[category]!;
      this.area(
        (i) => low[i]!,
        (i) => top[i]!,
      );
      rims.push(top);
      base.set(top);
    }
    if (!scene.plain) {
      to.strokeStyle = scene.palette.ground;
      to.lineWidth = 1;
      for (const rim of rims.slice(0, -1)) this.rim((i) => rim[i]!);
    }
    // what only some of a column's moments reach
    to.fillStyle = scene.palette.ground;
    to.globalAlpha = 0.28;
    this.area(
      (i) => this.columns[i]!.min,
      (i) => this.columns[i]!.total,
    );
    to.globalAlpha = 1;
  }

  private rim(height: (i: number) => number): void {
    const { to, box, step } = this;
    to.beginPath();
    for (let i = 0; i < this.columns.length; i++) {
      const y = this.y(height(i));
      to.lineTo(box.left + i * step, y);
      to.lineTo(box.left + (i + 1) * step, y);
    }
    to.stroke();
  }

  /** One state in its place in the stack, over all of its residency. */
  private residency(stay: Stay): void {
    const { to, scene } = this;
    const moments = this.columns.map((column) => column.moment);
    const below = heights(scene.drawn, stay, this.columns, moments);
    const there = (i: number) => stay.first <= moments[i]! && moments[i]! <= stay.last;
    const hair = scene.most / this.box.height; // what is thinner than a pixel is seen too
    to.fillStyle = scene.palette.ink;
    to.globalAlpha = stay.bytes > 8 * hair ? 0.22 : 0.9;
    this.area(
      (i) => below[i]!,
      (i) => below[i]! + (there(i) ? Math.max(stay.bytes, hair) : 0),
    );
    to.globalAlpha = 1;
    to.strokeStyle = scene.palette.ink;
    to.lineWidth = 1.5;
    const [first, last] = [moments.findIndex((_, i) => there(i)), moments.findLastIndex((_, i) => there(i))];
    if (first < 0 || stay.bytes <= 8 * hair) return;
    this.ring(first, last, (i) => below[i]!, stay.bytes);
  }

  /** A line around what lies from one column to another. */
  private ring(first: number, last: number, low: (i: number) => number, bytes: number): void {
    const { to, box, step } = this;
    to.beginPath();
    for (let i = first; i <= last; i++) {
      const y = this.y(low(i) + bytes);
      to.lineTo(box.left + i * step, y);
      to.lineTo(box.left + (i + 1) * step, y);
    }
    for (let i = last; i >= first; i--) {
      const y = this.y(low(i));
      to.lineTo(box.left + (i + 1) * step, y);
      to.lineTo(box.left + i * step, y);
    }
    to.closePath();
    to.stroke();
  }

  /** What is reserved over what is allocated, as a dotted line. */
  private reserved(): void {
    const { drawn, axis, view, palette, plain } = this.scene;
    if (drawn.series.reserved.length === 0) return;
    const count = this.columns.length;
    const place = (i: number) => axis.moment(view[0] + ((view[1] - view[0]) * i) / count);
    this.to.strokeStyle = palette.ink;
    this.to.globalAlpha = plain ? 0.5 : 0.75;
    this.to.lineWidth = 1;
    this.to.setLineDash([2, 2]);
    this.rim((i) => drawn.reserved(Math.floor(place(i)), place(i + 1)));
    this.to.setLineDash([]);
    this.to.globalAlpha = 1;
  }

  /** The total of another series as a line. */
  private outline(): void {
    const { outline } = this.scene;
    if (!outline) return;
    const line = columns({ axis: outline.axis, view: this.scene.view }, outline.drawn, this.columns.length);
    this.to.strokeStyle = this.scene.palette.ink;
    this.to.lineWidth = 1.25;
    this.rim((i) => line[i]!.total);
  }

  /** The name of each category in the widest place of its band. */
  private names(): void {
    const { to, box, step, scene } = this;
    const base = new Float64Array(this.columns.length);
    for (const category of STACK) {
      const name = scene.words(category);
      const wide = Math.ceil((to.measureText(name).width + 16) / step);
      let best = { height: 19, i: -1, y: 0 };
      const every = Math.max(1, Math.floor(wide / 4));
      for (let i = 0; i + wide < this.columns.length; i += every) {
        let [floor, roof] = [0, Number.POSITIVE_INFINITY];
        for (let j = i; j < i + wide; j += Math.max(1, Math.floor(wide / 12))) {
          floor = Math.max(floor, base[j]!);
          roof = Math.min(roof, base[j]! + (this.columns[j]!.byCategory[category] ?? 0));
        }
        const height = this.y(floor) - this.y(roof);
        if (height > best.height + 4) best = { height, i, y: (this.y(floor) + this.y(roof)) / 2 };
      }
      this.columns.forEach((column, i) => {
        base[i]! += column.byCategory[category] ?? 0;
      });
      if (best.i < 0) continue;
      to.fillStyle = category === 1 || category === 2 || category === 3 ? "#1b1d22" : "#ffffff";
      to.fillText(name, box.left + best.i * step + 8, best.y);
    }
  }

  private capacity(): void {
    const { to, box, scene } = this;
    if (!scene.capacity || scene.capacity.bytes > scene.most) return;
    const y = Math.round(this.y(scene.capacity.bytes)) + 0.5;
    to.strokeStyle = scene.palette.bad;
    to.lineWidth = 1.5;
    to.setLineDash([6, 4]);
    this.line(box.left, y, box.left + box.width, y);
    to.setLineDash([]);
    this.pill(scene.capacity.label, box.left + 6, y - 11, scene.palette.bad);
  }

  private cursor(): void {
    const { to, box, scene } = this;
    if (scene.cursor === null || scene.cursor === undefined) return;
    const x = (this.x(scene.cursor) + this.x(scene.cursor + 1)) / 2;
    if (x < box.left - 1 || x > box.left + box.width + 1) return;
    to.strokeStyle = scene.palette.ink;
    to.lineWidth = 1;
    this.line(x, box.top, x, box.top + box.height);
  }

  private peak(): void {
    const { to, box, scene } = this;
    const { moment } = scene.drawn.series.peak;
    const x = (this.x(moment) + this.x(moment + 1)) / 2;
    if (!scene.peakLabel || x < box.left - 1 || x > box.left + box.width + 1) return;
    const y = this.y(scene.drawn.peak);
    to.strokeStyle = scene.palette.ink;
    to.lineWidth = 1.5;
    this.line(x, box.top - 26, x, y);
    to.fillStyle = scene.palette.ink;
    to.beginPath();
    to.arc(x, y, 3.5, 0, 7);
    to.fill();
    const width = to.measureText(scene.peakLabel).width;
    const left = Math.max(box.left, Math.min(x - width / 2, box.left + box.width - width - 2));
    to.font = `600 ${to.font}`;
    to.fillText(scene.peakLabel, left, box.top - 35);
  }

  private pill(text: string, x: number, y: number, color: string): void {
    const { to } = this;
    const width = to.measureText(text).width;
    to.fillStyle = this.scene.palette.ground;
    to.globalAlpha = 0.85;
    to.fillRect(x - 4, y - 8, width + 8, 16);
    to.globalAlpha = 1;
    to.fillStyle = color;
    to.fillText(text, x, y);
  }
}

/** For screen readers: what the picture shows, in a sentence. */
export function caption(drawn: Drawn, label: string): string {
  return `${label}: ${size(drawn.series.peak.bytes)}, ${drawn.series.peak.phase}`;
}
