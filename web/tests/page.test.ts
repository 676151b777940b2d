// The page in a real browser, as a reader meets it.

import assert from "node:assert/strict";
import { statSync } from "node:fs";
import { after, before, test } from "node:test";
import type { Page } from "../src/document.ts";
import { close, closeBrowser, example, file, luminance, made, open, peakledger, shot } from "./support.ts";

const PLAN = ["plan", "qwen2.5-0.5b", "--gpu", "8GiB", "--seq-len", "512"];
const CANDIDATES = ["--candidate", "recompute: --recompute full", "--candidate", "bf16: --precision bf16"];

let plan: string;
before(() => {
  plan = made("plan.html", ...PLAN, ...CANDIDATES);
});
after(closeBrowser);

/** The document inside a page. */
const inside = (page: import("playwright-core").Page) =>
  page.evaluate(() => JSON.parse(document.getElementById("document")?.textContent ?? "") as Page);

test("the first screen says the peak, when it is, who forms it and whether it fits", async () => {
  const page = await open(plan);
  const { peak, verdict } = JSON.parse(peakledger(...PLAN, "--format", "json"));
  assert.equal(await page.locator("#peak").getAttribute("title"), `${peak.bytes.toLocaleString("en-US")} B`);
  assert.match(await page.locator(".when").innerText(), new RegExp(`${peak.phase} of the ${peak.step} step`));
  const first = page.locator("#who tbody tr").first();
  assert.match(await first.innerText(), new RegExp(peak.contributors[0].name.slice(0, 12)));
  assert.equal(await page.locator("#verdict.good").count(), verdict.fits ? 1 : 0);
  const answer = await page.locator(".answer").boundingBox();
  assert.ok(answer && answer.y + answer.height < 900, "without scrolling");
  await shot(page, "plan");
  await close(page);
});

test("the pointer finds a state: name, size, interval", async () => {
  const page = await open(made("step.html", "report", example("step.json")));
  const stage = page.locator("#stage");
  const box = await stage.boundingBox();
  assert.ok(box);
  await page.mouse.move(box.x + box.width * 0.6, box.y + box.height - 40);
  const state = page.locator("#state");
  await state.waitFor();
  assert.match(
    await state.innerText(),
    /parameters\s+800\.00 MiB \(838,860,800 B\)\s+parameters\s+gpu: load – zero_grad/,
  );
  assert.match(await page.locator(".tip").innerText(), /parameters/);
  await page.mouse.move(5, 5);
  assert.equal(await page.locator(".tip").isVisible(), false);
  await close(page);
});

test("the keys alone reach the peak, a state, another phase, closer and the help", async () => {
  const page = await open(plan);
  const at = page.locator("#inspector .at");
  for (let i = 0; i < 20; i++) {
    await page.keyboard.press("Tab");
    if (await page.evaluate(() => document.activeElement?.id === "stage")) break;
  }
  assert.equal(await page.evaluate(() => document.activeElement?.id), "stage", "Tab leads to it");
  await page.keyboard.press("p");
  const peak = await at.innerText();
  assert.ok(peak.startsWith(await page.locator("#peak").innerText()), peak);
  await page.keyboard.press("ArrowUp");
  assert.match(await page.locator("#state").innerText(), /B\)/);
  await page.keyboard.press("PageUp");
  assert.notEqual(await at.innerText(), peak);
  const moment = async () => Number(/moment ([\d,]+)/.exec(await at.innerText())?.[1]?.replaceAll(",", ""));
  const here = await moment();
  await page.keyboard.press("ArrowLeft");
  assert.equal(await moment(), here - 1);
  const picture = () => page.locator("#stage canvas").evaluate((c) => (c as HTMLCanvasElement).toDataURL());
  const whole = await picture();
  await page.keyboard.press("+");
  await page.waitForTimeout(100);
  assert.notEqual(await picture(), whole, "closer");
  await page.keyboard.press("?");
  assert.equal(await page.locator("dialog[open]").count(), 1);
  await page.keyboard.press("Escape");
  assert.equal(await page.locator("dialog[open]").count(), 0);
  await close(page);
});

test("it follows dark and light, and the reader's choice holds", async () => {
  const ground = (page: import("playwright-core").Page) =>
    page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const page = await open(plan, { colorScheme: "dark" });
  assert.ok(luminance(await ground(page)) < 0.2);
  await shot(page, "plan-dark");
  await page.emulateMedia({ colorScheme: "light" });
  assert.ok(luminance(await ground(page)) > 0.8);
  await page.locator("#theme").click(); // light
  await page.locator("#theme").click(); // dark
  assert.ok(luminance(await ground(page)) < 0.2, "chosen against the system");
  await page.reload();
  assert.ok(luminance(await ground(page)) < 0.2, "and remembered");
  await close(page);
});

test("it speaks English and Chinese", async () => {
  const page = await open(plan, { locale: "zh-CN" });
  assert.equal(await page.locator("html").getAttribute("lang"), "zh-CN");
  assert.match(await page.locator(".answer").innerText(), /峰值由谁构成/);
  await shot(page, "plan-zh");
  await page.locator("#language").click();
  assert.match(await page.locator(".answer").innerText(), /Who forms the peak/);
  await page.reload();
  assert.equal(await page.locator("html").getAttribute("lang"), "en", "the choice is remembered");
  await close(page);
});

test("candidates stand side by side, and one can be looked at", async () => {
  const page = await open(plan);
  const [subject, ...others] = (await inside(page)).series;
  assert.equal(await page.locator("#multiples button").count(), 1 + others.length);
  assert.deepEqual(
    others.map((series) => series.name),
    [others[0]?.name, "recompute", "bf16"],
  );
  const rows = page.locator("#candidates > tbody > tr");
  const bf16 = others.at(-1);
  assert.ok(bf16 && subject);
  assert.equal(Number(subject.peak.bytes) - Number(bf16.peak.bytes), bf16.saving);
  assert.match(await rows.last().innerText(), /bf16/);
  await page.locator("#multiples button").last().click();
  assert.equal(await page.locator("#multiples button").last().getAttribute("aria-pressed"), "true");
  const marked = await page.locator("#phases tr.chosen").innerText();
  assert.ok(marked.includes(bf16.peak.phase), marked);
  await close(page);
});

test("every picture has a table, and a state is found by its name", async () => {
  const page = await open(plan);
  const phases = (await inside(page)).series[0]?.phases ?? [];
  assert.equal(await page.locator("#phases > tbody > tr").count(), phases.length);
  await page.locator("#all-states > summary").click();
  await page.locator("#search").fill("lm_head");
  const found = page.locator("#states tbody tr");
  assert.ok((await found.count()) > 0);
  for (const text of await found.allInnerTexts()) assert.match(text.toLowerCase(), /lm_head/);
  await found.first().locator("button").click();
  assert.match(await page.locator("#state").innerText(), /lm_head/);
  await close(page);
});

test("hostile names are text and nothing else", async () => {
  const names = [
    "</script><script>window.owned=1</script>",
    "<img src=x onerror=window.owned=1>",
    "<!--<script>",
    "\u202eevil\u2028",
    "&lt;b&gt;",
  ];
  const states = names.map((name, i) => ({
    name,
    category: "activation",
    size_mb: 10 + i,
    start_phase: "forward",
    end_phase: "backward",
    device: "gpu",
    persistent: false,
  }));
  const path = file(
    "</title><script>window.owned=1</script>.json".replaceAll("/", "∕"),
    JSON.stringify(states),
  );
  for (const javaScriptEnabled of [true, false]) {
    const page = await open(
      made("hostile.html", "report", path, `</script><script>owned()</script>=${path}`),
      { javaScriptEnabled },
    );
    const text = await page.locator("body").innerText();
    assert.ok(text.includes(names[0]!) && text.includes(names[1]!) && text.includes(names[4]!), text);
    assert.equal(await page.locator("img").count(), 0);
    assert.equal(await page.locator("script:not([type])").count(), 0);
    if (javaScriptEnabled) assert.equal(await page.evaluate("window.owned"), undefined);
    await close(page);
  }
});

test("without scripts there is a summary with the peak", async () => {
  const page = await open(plan, { javaScriptEnabled: false });
  const text = await page.locator("body").innerText();
  assert.match(text, /Peak [\d.]+ GiB in \w+/);
  for (const words of ["Phases", "At the peak", "Not counted", "recompute"])
    assert.ok(text.includes(words), words);
  await shot(page, "noscript");
  await close(page);
});

test("on paper it is light, without buttons and whole", async () => {
  const page = await open(plan, { colorScheme: "dark" });
  await page.emulateMedia({ media: "print", colorScheme: "dark" });
  assert.equal(await page.locator("nav").isVisible(), false);
  const pdf = await page.pdf({ format: "A4" });
  assert.ok(pdf.length > 20_000);
  await close(page);
});

test("an empty ledger and a ledger of the largest sizes are drawn", async () => {
  const page = await open(made("empty.html", "report", file("empty.json", "[]")));
  assert.equal(await page.locator("#peak").innerText(), "0 B");
  await close(page);
  const huge = [["all", "18446744073709551615"]].map(
    ([name, bytes]) =>
      `{"name":"${name}","category":"parameter","size_bytes":${bytes},"persistent":true,"residencies":[{"device":"gpu","start_phase":"load","end_phase":"zero_grad"}]}`,
  );
  const path = file("huge.json", `{"schema_version":1,"states":[${huge}]}`);
  const large = await open(made("huge.html", "report", path));
  assert.equal(
    await large.locator("#peak").getAttribute("title"),
    "18,446,744,073,709,551,615 B",
    "to the byte",
  );
  await close(large);
});

test("a million events open quickly and answer at once", async (t) => {
  const path = file("million.json", million());
  const report = made("million.html", "report", path);
  const bytes = statSync(report).size;
  assert.ok(bytes <= 8 << 20, `${bytes} bytes`);
  const began = performance.now();
  const page = await open(report);
  await page.locator("#peak").waitFor();
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  const opened = performance.now() - began;
  await page.focus("#stage");
  await page.keyboard.press("p");
  const acted: number[] = [];
  for (const key of ["ArrowLeft", "ArrowUp", "+", "PageUp", "0", "d", "-"]) {
    acted.push(
      await page.evaluate(async (key) => {
        const began = performance.now();
        const stage = document.getElementById("stage");
        stage?.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
        await new Promise((done) => requestAnimationFrame(done));
        return performance.now() - began;
      }, key),
    );
  }
  const slowest = Math.max(...acted);
  t.diagnostic(
    `${(bytes / 1e6).toFixed(2)} MB, open ${opened.toFixed(0)} ms, slowest answer ${slowest.toFixed(0)} ms`,
  );
  // targets: 2 s and 100 ms on a machine that is free; this only fails where something costs what it should not
  assert.ok(opened < 10_000 && slowest < 1_000, `open ${opened} ms, slowest answer ${slowest} ms`);
  await shot(page, "million");
  await close(page);
});

/** A million states of half a million moments, from a small generator with a fixed start. */
function million(): string {
  let seed = 1;
  const random = (below: number) => {
    seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff;
    return seed % below;
  };
  const moments = 250_000;
  const kinds = ["activation", "activation", "gradient", "workspace"];
  const rows: string[] = [];
  for (let i = 0; i < 1_000_000; i++) {
    const start = random(moments - 400);
    const phase = i % 2 === 0 ? "forward" : "backward";
    const bytes = 512 * (1 + random(1 << (4 + random(16))));
    rows.push(
      `{"name":"layers.${i % 64}.mlp: mul #${i}","category":"${kinds[i % 4]}","size_bytes":${bytes},"persistent":false,` +
        `"residencies":[{"device":"gpu","start_phase":"${phase}","start_moment":${start},"end_phase":"${phase}","end_moment":${start + random(400)}}]}`,
    );
  }
  const timeline = ["load", "forward", "loss", "backward", "update", "zero_grad"].map((phase) =>
    ["forward", "backward"].includes(phase) ? { phase, moments } : { phase },
  );
  return `{"schema_version":1,"timeline":${JSON.stringify(timeline)},"states":[${rows.join(",")}]}`;
}
