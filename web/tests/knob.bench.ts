// `npm run bench [BINARY…]`: how long the page takes from the move of a knob to its new picture. Several binaries, say one
// of a build before a change and one after it, take turns, so that what else the machine does falls on all of them.

import { type ChildProcess, spawn } from "node:child_process";
import { loadavg } from "node:os";
import type { Page } from "playwright-core";
import { knobToPicture, type Took } from "./knob.ts";
import { BINARY, closeBrowser, open } from "./support.ts";

const MODELS = ["gpt2", "llama-3.1-8b", "llama-3.1-70b"];
const KNOBS = ["seq-len", "micro-batch-size"];
const ROUNDS = 3;
const MOVES = 6;

/** Long enough for the full answer that follows a move, on a machine that is busy too. */
const rest = (page: Page) => page.waitForTimeout(1500);
const median = (of: number[]) => [...of].sort((a, b) => a - b)[Math.floor(of.length / 2)] ?? Number.NaN;

async function serve(binary: string): Promise<{ binary: string; process: ChildProcess; url: string }> {
  const process = spawn(binary, ["serve", "--no-open", "qwen2.5-0.5b"], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  const url = await new Promise<string>((told) =>
    process.stdout?.once("data", (data) => told(String(data).trim())),
  );
  return { binary, process, url };
}

/** What a page of its own takes, knob by knob. */
async function measure(url: string): Promise<Map<string, Took[]>> {
  const page = await open(url, { offline: false });
  const all = new Map<string, Took[]>();
  await page.locator("#peak").waitFor();
  for (const model of MODELS) {
    await page.locator("#model").fill(model);
    await page.locator("#model").press("Tab");
    await rest(page);
    for (const knob of KNOBS) {
      const took: Took[] = [];
      await page.locator(`#${knob}`).focus();
      for (let move = 0; move < MOVES; move++) {
        took.push(await knobToPicture(page, move % 2 === 0 ? "ArrowRight" : "ArrowLeft"));
      }
      all.set(`${model} --${knob}`, took);
      await rest(page);
    }
  }
  await page.context().close();
  return all;
}

const served = await Promise.all((process.argv.length > 2 ? process.argv.slice(2) : [BINARY]).map(serve));
const all = new Map<string, Took[]>();
for (let round = 0; round < ROUNDS; round++) {
  for (const { binary, url } of served) {
    for (const [what, took] of await measure(url)) {
      const row = `${what}  ${binary}`;
      all.set(row, [...(all.get(row) ?? []), ...took]);
    }
  }
}
for (const [row, took] of [...all].sort(([a], [b]) => (a < b ? -1 : 1))) {
  const of = (what: keyof Took) => median(took.map((one) => one[what])).toFixed(0);
  const least = Math.min(...took.map((one) => one.picture)).toFixed(0);
  const whole = `${of("picture")} ms (least ${least})`.padEnd(20);
  console.log(`${whole} ${of("answer")} ms to the answer, ${of("kilobytes")} kB  ${row}`);
}
console.log(`load ${loadavg()[0]!.toFixed(1)}`);
for (const { process } of served) process.kill("SIGINT");
await closeBrowser();
