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
    const drawn: { at: number; painted: Promise<number> }[] = [];
    let peak = document.getElementById("peak");
    const watch = new MutationObserver(() => {
      if (document.getElementById("peak") === peak) return;
      peak = document.getElementById("peak");
      // what is queued behind the next frame runs when that is painted
      const painted = new Promise<number>((done) =>
        requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0)),
      );
      drawn.push({ at: performance.now(), painted });
    });
    watch.observe(document.body, { childList: true, subtree: true });
    const took = new Promise<number>((moved) =>
      addEventListener("input", () => moved(performance.now()), { once: true, capture: true }),
    ).then(async (began) => {
      // a full answer to an earlier move may be drawn before the answer to this one is there
      for (;;) {
        const all = performance.getEntriesByType("resource") as PerformanceResourceTiming[];
        const asked = all.find((one) => one.name.endsWith("/moving"));
        const picture = asked && drawn.find((one) => one.at >= asked.responseEnd);
        if (asked && picture) {
          watch.disconnect();
          const answer = asked.responseEnd - began;
          return { picture: (await picture.painted) - began, answer, kilobytes: asked.decodedBodySize / 1e3 };
        }
        await new Promise((done) => setTimeout(done, 0));
      }
    });
    Object.assign(globalThis, { took });
  });
  await page.keyboard.press(key);
  return page.evaluate(() => (globalThis as unknown as { took: Promise<Took> }).took);
}
