// The page with a server behind it: knobs, pins, files that are dropped, and who is let in.

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import type { Page } from "playwright-core";
import { knobToPicture } from "./knob.ts";
import { BINARY, close, closeBrowser, example, open, peakledger, shot } from "./support.ts";

let server: ChildProcess;
let url: string;

before(async () => {
  server = spawn(BINARY, ["serve", "--no-open", "gpt2"], { stdio: ["ignore", "pipe", "ignore"] });
  url = await new Promise((told) => server.stdout?.once("data", (data) => told(String(data).trim())));
});
after(async () => {
  server.kill("SIGINT");
  await closeBrowser();
});

const onPage = async () => {
  const page = await open(url, { offline: false, permissions: ["clipboard-read", "clipboard-write"] });
  await page.locator("#peak").waitFor();
  return page;
};

/** Moves the knob that has the focus by one, and says how long it took until the new picture was on the screen. */
async function moved(page: Page): Promise<string> {
  const { picture, answer, kilobytes } = await knobToPicture(page);
  // the full answer comes when the knob is at rest
  await page.locator("#report:not([aria-busy])").waitFor();
  const whole = `knob to picture in ${picture.toFixed(0)} ms (target 50 in a release build, on a machine that is free)`;
  return `${whole}, ${answer.toFixed(0)} of them until the answer, ${kilobytes.toFixed(0)} kB`;
}

test("a knob that moves is answered, as the command line that is shown answers", async (t) => {
  const page = await onPage();
  const before = await page.locator("#peak").getAttribute("title");
  await page.locator("#gpu").fill("t4");
  const answered = page.waitForResponse(/plan$/);
  await page.locator("#gpu").press("Tab");
  await answered;
  await page.locator("#verdict.good").waitFor();
  await page.locator("#seq-len").focus();
  for (let i = 0; i < 3; i++) t.diagnostic(await moved(page));
  const command = await page.locator("#command").innerText();
  assert.match(command, /^peakledger plan gpt2 --gpu t4 --seq-len 512$/);
  const { peak } = JSON.parse(peakledger(...command.split(" ").slice(1), "--format", "json"));
  const planned = `${peak.bytes.toLocaleString("en-US")} B`;
  assert.notEqual(planned, before);
  await page.locator(`#peak[title="${planned}"]`).waitFor();
  await page.locator("#copy").click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), command);
  await close(page);
});

test("what is pinned stands beside what is shown", async () => {
  const page = await onPage();
  await page.locator("#pin").click();
  const pinned = await page.locator("#peak").innerText();
  const answered = page.waitForResponse(/plan$/);
  await page.locator("#recompute").selectOption("full");
  await answered;
  const last = page.locator("#candidates > tbody > tr").last();
  await page.locator("#command", { hasText: "--recompute full" }).waitFor();
  assert.match(await last.innerText(), /gpt2/);
  assert.ok((await last.innerText()).includes(pinned));
  await shot(page, "serve");
  await page.locator("#language").click();
  assert.match(await page.locator("#planner").innerText(), /固定并比较/);
  assert.match(await page.locator("#candidates > tbody > tr").last().innerText(), /gpt2/, "the pin stays");
  await page.locator("#unpin").click();
  assert.equal(await page.locator("#unpin").count(), 0);
  await close(page);
});

test("a ledger, a config and a wrong file are opened, used and explained", async () => {
  const page = await onPage();
  await page.locator("#file").setInputFiles(example("step.json"));
  await page.locator("h1", { hasText: "step.json" }).waitFor();
  assert.equal(await page.locator("#peak").innerText(), "2.15 GiB");
  const config = {
    model_type: "gpt2",
    n_layer: 2,
    n_embd: 64,
    n_head: 2,
    vocab_size: 100,
    n_positions: 4096,
  };
  const bytes = (text: string) => Buffer.from(text);
  await page.locator("#file").setInputFiles({
    name: "tiny config.json",
    mimeType: "application/json",
    buffer: bytes(JSON.stringify(config)),
  });
  await page.locator("h1", { hasText: "tiny config.json" }).waitFor();
  assert.match(await page.locator("#command").innerText(), /plan 'tiny config.json'/);
  // dropped, not chosen
  const dropped = readFileSync(example("offload.json"), "utf8");
  await page.evaluate((text) => {
    const data = new DataTransfer();
    data.items.add(new File([text], "dropped.json"));
    window.dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
  }, dropped);
  await page.locator("h1", { hasText: "dropped.json" }).waitFor();
  await close(page);
});

test("what is wrong is said with its mend, and what was shown stays", async () => {
  const page = await open(url, { offline: false });
  await page.locator("#peak").waitFor();
  const peak = await page.locator("#peak").innerText();
  await page.locator("#more").fill("--recomptue full");
  await page.locator("#more").press("Tab");
  await page.locator("#problem", { hasText: "did you mean" }).waitFor();
  assert.equal(await page.locator("#peak").innerText(), peak);
  await close(page, [/422/]);
});

test("the ledger of a plan and a trace for Perfetto are saved", async () => {
  const page = await onPage();
  const saved = async (button: string) => {
    const download = page.waitForEvent("download");
    await page.locator(button).click();
    return JSON.parse(readFileSync(await (await download).path(), "utf8"));
  };
  const ledger = await saved("#save-ledger");
  assert.equal(ledger.schema_version, 1);
  assert.ok(ledger.states.length > 100);
  const { traceEvents } = await saved("#save-trace");
  const phases = traceEvents.filter((event: { ph: string }) => event.ph === "X");
  assert.equal(phases.length, 6);
  assert.ok(
    traceEvents.some((event: { ph: string; args: object }) => event.ph === "C" && "gradient" in event.args),
  );
  await close(page);
});

test("nobody comes in without the token, or from another page", async () => {
  const { origin } = new URL(url);
  const status = async (path: string, init: RequestInit = {}) => (await fetch(path, init)).status;
  assert.equal(await status(url), 200);
  assert.equal(await status(`${origin}/`), 404);
  assert.equal(await status(`${origin}/${"0".repeat(32)}/`), 404);
  assert.equal(await status(url, { headers: { Origin: "http://elsewhere.example" } }), 404);
  assert.equal(await status(`${url}../../etc/passwd`), 404);
});

test("a knob of a large model answers while it moves", async (t) => {
  const page = await onPage();
  await page.locator("#model").fill("llama-3.1-8b");
  const answered = page.waitForResponse(/plan$/);
  await page.locator("#model").press("Tab");
  await answered;
  await page.locator("h1", { hasText: "llama-3.1-8b" }).waitFor();
  for (const knob of ["#seq-len", "#micro-batch-size", "#gradient-accumulation-steps"]) {
    await page.locator(knob).focus();
    t.diagnostic(`${knob}: ${await moved(page)}`);
  }
  const command = await page.locator("#command").innerText();
  assert.match(command, /--micro-batch-size 2 --seq-len 128 --gradient-accumulation-steps 2$/);
  await close(page);
});
