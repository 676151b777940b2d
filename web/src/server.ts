// The server behind the page, where there is one (`peakledger serve`): it plans, and draws the files that are dropped.

import type { Page } from "./document.ts";

/** What it said that it can do. */
export interface Server {
  model: string | null;
  models: string[];
  gpus: string[];
  largest_file: number;
}

/** It said what is wrong, and how to mend it. */
export class Refused extends Error {}

async function ask(path: string, body: BodyInit, signal?: AbortSignal): Promise<Response> {
  const response = await fetch(path, { method: "POST", body, signal });
  if (!response.ok) throw new Refused(await response.text());
  return response;
}

/** Plans what the words after `peakledger plan` ask, unless the signal comes first. */
export async function plan(words: string[], signal: AbortSignal): Promise<Page> {
  return (await ask("plan", JSON.stringify({ words }), signal)).json();
}

/** The same, coarse and quick: for as long as a knob moves. */
export async function moving(words: string[]): Promise<Page> {
  return (await ask("moving", JSON.stringify({ words }))).json();
}

/** The ledger of a planned step. */
export async function ledger(words: string[]): Promise<Blob> {
  return (await ask("ledger", JSON.stringify({ words }))).blob();
}

/** The document of a file, or the name of the model whose config it is. */
export async function open(file: File): Promise<Page | { model: string }> {
  return (await ask(`open?name=${encodeURIComponent(file.name)}`, file)).json();
}
