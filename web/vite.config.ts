// Builds the page into one file: script and style inside it, and a policy that lets nothing else run.

import { createHash } from "node:crypto";
import { defineConfig, type Plugin } from "vite";

const sha256 = (text: string) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

function oneFile(): Plugin {
  return {
    name: "one-file",
    enforce: "post",
    generateBundle(_, bundle) {
      let [script, style] = ["", ""];
      for (const [name, file] of Object.entries(bundle)) {
        if (file.type === "chunk") script += file.code.trim().replaceAll("</script", "<\\/script");
        else if (name.endsWith(".css")) style += String(file.source).trim();
        if (!name.endsWith(".html")) delete bundle[name];
      }
      const policy = [
        "default-src 'none'",
        `script-src ${sha256(script)}`,
        `style-src ${sha256(style)}`,
        "img-src data: blob:",
        "connect-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
      ].join("; ");
      const page = bundle["index.html"];
      if (page?.type !== "asset") throw new Error("vite made no index.html");
      page.fileName = "page.html";
      page.source = String(page.source)
        .replace(/\s*<script type="module"[^>]*><\/script>/, "")
        .replace(/\s*<link rel="stylesheet"[^>]*>/, "")
        .replace("<!--policy-->", () => `<meta http-equiv="Content-Security-Policy" content="${policy}">`)
        .replace("<!--style-->", () => `<style>${style}</style>`)
        .replace("<!--script-->", () => `<script type="module">${script}</script>`);
    },
  };
}

export default defineConfig({
  base: "./",
  build: {
    outDir: "../crates/report/assets",
    emptyOutDir: false,
    modulePreload: false,
    cssCodeSplit: false,
    target: "es2022",
  },
  plugins: [oneFile()],
});
