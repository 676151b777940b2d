// How long it takes from the move of a knob until the new picture is on the screen.

import type { Page } from "playwright-core";

export interface Took {
  /** Milliseconds from the move to the picture, and of these until the answer was there. */
  picture: number;
  answer: number;
  kilobytes: number;
}

/** Moves the knob that has the focus by one, and measures. */
export async function knobToPicture(page: Page, key = "ArrowRight"): Promise<Took> {
  // the clock is there before the knob moves
  await page.evaluate(() => {
    performance.clearResourceTimings();
    const took = new Promise<number>((moved) =>
      addEventListener("input", () => moved(performance.now()), { once: true, capture: true }),
    ).then(async (began) => {
      // a full answer to an earlier move may be drawn before the answer to this one is there
      let before = document.getElementById("peak");
      let asked: PerformanceResourceTiming | undefined;
      while (!asked || document.getElementById("peak") === before) {
        if (!asked) before = document.getElementById("peak");
        const all = performance.getEntriesByType("resource") as PerformanceResourceTiming[];
        asked = all.find((one) => one.name.endsWith("/moving"));
        await new Promise((done) => setTimeout(done, 0));
      }
      // what is queued behind the next frame runs when that is painted
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
      const picture = performance.now() - began;
      return { picture, answer: asked.responseEnd - began, kilobytes: asked.decodedBodySize / 1e3 };
    });
    Object.assign(globalThis, { took });
  });
  await page.keyboard.press(key);
  return page.evaluate(() => (globalThis as unknown as { took: Promise<Took> }).took);
}
