// Light or dark: what the system says, unless the reader chose. Colours are those of the style sheet, for canvases too.

import { CATEGORIES } from "./document.ts";

export const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export interface Palette {
  ground: string;
  ink: string;
  faint: string;
  line: string;
  band: string;
  bad: string;
  categories: string[];
}

/** What a reader chose before; a browser may forbid to remember. */
export function remembered(key: string): string | null {
  try {
    return localStorage.getItem(`peakledger-${key}`);
  } catch {
    return null;
  }
}

export function remember(key: string, value: string): void {
  try {
    localStorage.setItem(`peakledger-${key}`, value);
  } catch {
    // then it is not remembered
  }
}

let known: Palette | null = null;

/** The system went dark or light, or the reader did. */
export function forget(): void {
  known = null;
}

export function setTheme(theme: Theme): void {
  forget();
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

/** The colours now; asking the style sheet again for each picture would lay out the page each time. */
export function palette(): Palette {
  known ??= read();
  return known;
}

function read(): Palette {
  const style = getComputedStyle(document.documentElement);
  const color = (name: string) => style.getPropertyValue(name).trim();
  return {
    ground: color("--ground"),
    ink: color("--ink"),
    faint: color("--faint"),
    line: color("--line"),
    band: color("--band"),
    bad: color("--bad"),
    categories: CATEGORIES.map((_, i) => color(`--c${i}`)),
  };
}
