// The knobs: a planned step is asked for again with each move, and the words on the command line are shown with it.

import type { Page } from "./document.ts";
import { download, h } from "./dom.ts";
import { ledger, moving, open, plan, Refused, type Server } from "./server.ts";
import type { Words } from "./words.ts";

/** After so many milliseconds a knob is at rest, and what was answered quickly is answered in full. */
const REST = 250;

/** An option of `plan`, the values that its knob has, and the one that needs no word. */
interface Knob {
  option: string;
  values: string[];
  usual: string;
  /** Numbers in order, on a slider. */
  slide?: boolean;
  /** A flag, which takes no value. */
  flag?: boolean;
}

const powers = (from: number, to: number) =>
  Array.from({ length: to - from + 1 }, (_, i) => String(2 ** (from + i)));

const KNOBS: Knob[] = [
  {
    option: "--micro-batch-size",
    values: ["1", "2", "3", "4", "6", "8", "12", "16", "24", "32", "48", "64"],
    usual: "1",
    slide: true,
  },
  { option: "--seq-len", values: ["", ...powers(7, 17)], usual: "", slide: true },
  { option: "--gradient-accumulation-steps", values: powers(0, 5), usual: "1", slide: true },
  {
    option: "--precision",
    values: ["bf16-mixed", "bf16", "fp16-mixed", "fp16", "fp32"],
    usual: "bf16-mixed",
  },
  {
    option: "--optimizer",
    values: ["adamw", "adamw-8bit", "adafactor", "lion", "muon", "sgd"],
    usual: "adamw",
  },
  { option: "--optimizer-impl", values: ["", "foreach", "fused", "forloop"], usual: "" },
  { option: "--recompute", values: ["none", "full", "selective", "every:2", "every:4"], usual: "none" },
  { option: "--attention", values: ["sdpa", "eager"], usual: "sdpa" },
  { option: "--offload", values: ["none", "activations", "optimizer", "parameters"], usual: "none" },
  { option: "--lora", values: ["", "r=8", "r=16", "r=64"], usual: "" },
  { option: "--quantize", values: ["", "nf4", "nf4-double"], usual: "" },
  { option: "--fused-loss", values: ["", "on"], usual: "", flag: true },
];

/** What the reader set; it outlives the elements. */
export interface Settings {
  model: string;
  gpu: string;
  values: Record<string, string>;
  more: string;
}

export function settings(server: Server): Settings {
  const values = Object.fromEntries(KNOBS.map((knob) => [knob.option, knob.usual]));
  return {
    model: server.model ?? "llama-3.1-8b",
    gpu: "80GiB",
    values,
    more: "",
  };
}

/** The words after `peakledger plan`. */
export function wordsOf({ model, gpu, values, more }: Settings): string[] {
  const words = [model.trim()];
  if (gpu.trim()) words.push("--gpu", gpu.trim());
  for (const { option, usual, flag } of KNOBS) {
    const value = values[option] ?? usual;
    if (value !== usual) words.push(...(flag ? [option] : [option, value]));
  }
  return [...words, ...more.split(/\s+/).filter((word) => word)];
}

/** A command as a shell takes it. */
export function command(words: string[]): string {
  const quoted = (word: string) =>
    /^[\w./:=+,@%-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
  return ["peakledger", "plan", ...words.map(quoted)].join(" ");
}

interface Events {
  /** A plan, or a file that was opened. */
  show(page: Page, words: string[] | null): void;
  /** A plan while a knob moves: coarse, and at once followed by the next. */
  move(page: Page, words: string[]): void;
  pin(): void;
}

export class Planner {
  readonly element: HTMLElement;
  private readonly line = h("code", { id: "command" });
  private readonly problem = h("p", { class: "problem", role: "alert", id: "problem" });
  private asked = 0;
  private running = false;
  private moving = false;
  private rest = 0;
  /** Ends the wait for a full answer. */
  private resting = new AbortController();

  constructor(
    private readonly server: Server,
    private readonly set: Settings,
    private readonly words: Words,
    private readonly events: Events,
  ) {
    const list = (id: string, values: string[]) =>
      h(
        "datalist",
        { id },
        values.map((value) => h("option", { value })),
      );
    const text = (label: string, id: string, value: string, act: (value: string) => void, from?: string) =>
      h("label", {}, h("span", {}, label), this.input(id, value, act, from));
    const button = (label: string, id: string, act: () => void) =>
      h("button", { type: "button", id, click: act }, label);
    const file = h("input", {
      type: "file",
      id: "file",
      class: "unseen",
      change: () => file.files?.[0] && this.open(file.files[0]),
    });
    this.element = h(
      "section",
      { class: "planner", id: "planner", "aria-label": words.planner },
      list("models", server.models),
      list("gpus", server.gpus),
      h(
        "div",
        { class: "knobs" },
        text(
          "MODEL",
          "model",
          set.model,
          (value) => {
            set.model = value;
          },
          "models",
        ),
        text(
          "--gpu",
          "gpu",
          set.gpu,
          (value) => {
            set.gpu = value;
          },
          "gpus",
        ),
        KNOBS.map((knob) => (knob.slide ? this.slider(knob) : this.select(knob))),
        text(words.more_options, "more", set.more, (value) => {
          set.more = value;
        }),
      ),
      h(
        "div",
        { class: "line" },
        this.line,
        button(words.copy, "copy", () => navigator.clipboard.writeText(this.line.textContent ?? "")),
      ),
      this.problem,
      h(
        "div",
        { class: "tools" },
        button(words.pin, "pin", () => events.pin()),
        button(words.save_ledger, "save-ledger", () => this.saveLedger()),
        h("label", { class: "button", for: "file" }, words.open_file),
        file,
        h("span", { class: "hint" }, words.drop_hint),
      ),
    );
    this.tell();
  }

  /** Plans what the knobs say; of several moves at once, the last. While a slider moves the answer is a coarse one. */
  async move(moving = false): Promise<void> {
    this.tell();
    this.asked++;
    this.moving = moving;
    clearTimeout(this.rest);
    this.resting.abort(); // a full answer takes longer, and is no longer what is asked
    if (this.running) return;
    this.running = true;
    let answered = 0;
    while (answered !== this.asked) {
      answered = this.asked;
      await this.answer();
    }
    this.running = false;
    if (this.moving) this.rest = window.setTimeout(() => void this.move(), REST);
  }

  /** Draws a file; a config becomes the model. */
  async open(file: File): Promise<void> {
    if (file.size > this.server.largest_file) {
      this.say(this.words.too_large(`peakledger report '${file.name}' -o report.html`));
      return;
    }
    await this.attempt(async () => {
      const opened = await open(file);
      if ("model" in opened) {
        this.set.model = opened.model;
        (this.element.querySelector("#model") as HTMLInputElement).value = opened.model;
        await this.move();
      } else {
        this.events.show(opened, null);
      }
    });
  }

  private answer(): Promise<void> {
    const words = wordsOf(this.set);
    if (this.moving) return this.attempt(async () => this.events.move(await moving(words), words));
    this.resting = new AbortController();
    const { signal } = this.resting;
    return this.attempt(async () => {
      const page = await plan(words, signal);
      if (!signal.aborted) this.events.show(page, words);
    });
  }

  private async attempt(act: () => Promise<void>): Promise<void> {
    try {
      await act();
      this.say("");
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") return;
      this.say(error instanceof Refused ? error.message : this.words.gone);
    }
  }

  private say(what: string): void {
    this.problem.textContent = what;
  }

  private tell(): void {
    this.line.textContent = command(wordsOf(this.set));
  }

  private saveLedger(): void {
    void this.attempt(async () => download("ledger.json", await ledger(wordsOf(this.set))));
  }

  private input(id: string, value: string, act: (value: string) => void, list?: string): HTMLInputElement {
    const input = h("input", {
      id,
      value,
      list,
      spellcheck: "false",
      autocomplete: "off",
      change: () => {
        act(input.value);
        void this.move();
      },
    });
    return input;
  }

  private select(knob: Knob): HTMLElement {
    const { option, values } = knob;
    const choices = values.map((value) => {
      const none = value === "" ? (knob.option === "--optimizer-impl" ? "auto" : "off") : value;
      return h("option", { value, selected: value === this.set.values[option] }, none);
    });
    const select: HTMLSelectElement = h(
      "select",
      {
        id: option.slice(2),
        change: () => {
          this.set.values[option] = select.value;
          void this.move();
        },
      },
      choices,
    );
    return h("label", {}, h("span", {}, option), select);
  }

  private slider(knob: Knob): HTMLElement {
    const { option, values } = knob;
    const said = h("output", {}, this.set.values[option] || "auto");
    const slider: HTMLInputElement = h("input", {
      type: "range",
      id: option.slice(2),
      min: 0,
      max: values.length - 1,
      value: Math.max(0, values.indexOf(this.set.values[option] ?? "")),
      "aria-valuetext": this.set.values[option] || "auto",
      input: () => {
        const value = values[Number(slider.value)] ?? "";
        this.set.values[option] = value;
        said.textContent = value || "auto";
        slider.setAttribute("aria-valuetext", value || "auto");
        void this.move(true);
      },
    });
    return h("label", {}, h("span", {}, option, " ", said), slider);
  }
}
