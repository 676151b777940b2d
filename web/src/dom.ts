// Elements by hand: text is always text, never markup.

type Child = Node | string | number | null | undefined | false;
type Attributes = Record<string, string | number | boolean | null | undefined | ((event: never) => void)>;

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: (Child | Child[])[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value as EventListener);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(typeof child === "number" ? String(child) : child);
  }
  return element;
}

/** A name of a module, a state or a file, which breaks where its parts do. */
export function named(text: string, title?: string): HTMLElement {
  const parts = text.split(/(?<=[/.:·])/).flatMap((part, i) => (i > 0 ? [h("wbr"), part] : [part]));
  return h("span", { class: "name", title }, parts);
}

/** A swatch in the colour of a category. */
export function swatch(category: number): HTMLElement {
  return h("span", { class: `swatch c${category}`, "aria-hidden": "true" });
}

/** A bar of the length of a share, in the colour of a category. */
export function bar(share: number, category: number): HTMLElement {
  const inner = h("span", { class: `c${category}` });
  inner.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("span", { class: "bar", "aria-hidden": "true" }, inner);
}

/** Hands a file to the reader. */
export function download(name: string, content: Blob): void {
  const link = h("a", { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
