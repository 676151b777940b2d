// Pages made by the binary, opened in Debian's chromium as a reader opens them: from disk, with no network.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { type Browser, type BrowserContextOptions, chromium, type Page } from "playwright-core";

export const WEB = fileURLToPath(new URL("..", import.meta.url));
const REPOSITORY = join(WEB, "..");
export const BINARY = process.env.PEAKLEDGER ?? join(REPOSITORY, "target/debug/peakledger");
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
const SHOTS = join(WEB, "tests/screenshots");

const folder = mkdtempSync(join(tmpdir(), "peakledger-page-"));
process.on("exit", () => rmSync(folder, { recursive: true, force: true }));

/** The path of an example of the repository. */
export const example = (name: string) => join(REPOSITORY, "examples", name);

/** Runs the binary in a folder of its own and returns what it prints. */
export function peakledger(...args: string[]): string {
  return execFileSync(BINARY, args, { cwd: folder, encoding: "utf8", maxBuffer: 1 << 30 });
}

/** A page that the binary makes: its path. */
export function made(name: string, ...args: string[]): string {
  peakledger(...args, "-o", name, "--force");
  return join(folder, name);
}

/** A file beside the pages. */
export function file(name: string, content: string): string {
  writeFileSync(join(folder, name), content);
  return join(folder, name);
}

let browser: Promise<Browser> | undefined;

export async function closeBrowser(): Promise<void> {
  await (await browser)?.close();
}

const own = new WeakMap<Page, string>();
const watched = new WeakMap<Page, { asked: string[]; errors: string[] }>();

/** Closes a page that asked nothing of a network and met no error. */
export async function close(page: Page, expected: RegExp[] = []): Promise<void> {
  const { asked, errors } = watched.get(page) ?? { asked: ["unknown page"], errors: [] };
  await page.context().close();
  const unexpected = errors.filter((error) => !expected.some((one) => one.test(error)));
  assert.deepEqual(unexpected, []);
  const beyond = asked.filter((url) => !url.startsWith(own.get(page) ?? "file:") && !url.startsWith("blob:"));
  assert.deepEqual(beyond, [], "nothing is asked of a network");
}

/** Opens a page from disk, with no network, or from a server of this machine. What it asks of a network or complains of is kept for `close`. */
export async function open(path: string, options: BrowserContextOptions = {}): Promise<Page> {
  assert.ok(
    existsSync(CHROMIUM),
    `no browser at ${CHROMIUM}: apt-get install chromium, or name one in CHROMIUM`,
  );
  const args = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ];
  browser ??= chromium.launch({ executablePath: CHROMIUM, args });
  const context = await (await browser).newContext({
    viewport: { width: 1280, height: 900 },
    locale: "en-US",
    colorScheme: "light",
    offline: true,
    ...options,
  });
  const page = await context.newPage();
  const asked: string[] = [];
  const errors: string[] = [];
  page.on("request", (request) => asked.push(request.url()));
  page.on("pageerror", (error) => errors.push(error.message));
  page.on(
    "console",
    (message) => ["error", "warning"].includes(message.type()) && errors.push(message.text()),
  );
  watched.set(page, { asked, errors });
  own.set(page, path.startsWith("http:") ? new URL(path).origin : "file:");
  await page.goto(path.startsWith("http:") ? path : pathToFileURL(path).href);
  return page;
}

/** Keeps a picture for people to look at. */
export async function shot(page: Page, name: string): Promise<void> {
  mkdirSync(SHOTS, { recursive: true });
  await page.screenshot({ path: join(SHOTS, `${name}.png`), fullPage: true });
}

/** How dark a colour is, from 0 to 1. */
export function luminance(color: string): number {
  const [r = 0, g = 0, b = 0] = (color.match(/\d+/g) ?? []).map(Number);
  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}
