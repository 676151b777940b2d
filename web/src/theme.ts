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

export function setTheme(theme: Theme): void {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

export function palette(): Palette {
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
