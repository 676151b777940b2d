// The page that is in the repository is the one that its sources build.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { build } from "vite";
import { WEB } from "./support.ts";

test("crates/report/assets/page.html is current", async () => {
  const outDir = mkdtempSync(join(tmpdir(), "peakledger-bundle-"));
  try {
    await build({ root: WEB, logLevel: "error", build: { outDir } });
    const [built, kept] = [join(outDir, "page.html"), join(WEB, "../crates/report/assets/page.html")].map(
      (path) => readFileSync(path, "utf8"),
    );
    assert.ok(built === kept, "it is not: run `npm run build` in web/ and commit what it writes");
  } finally {
    rmSync(outDir, { recursive: true });
  }
});
