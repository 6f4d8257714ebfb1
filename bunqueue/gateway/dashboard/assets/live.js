// Keeps a view fresh: by events where they say that something has changed, by slow polling otherwise, and not at
// all while nobody looks at the tab.

import { listen } from "./api.js";

const MIN_APART_MS = 1500; // between two refreshes, however many events come
const MAX_EVENTS = 400; // a second; beyond, listening costs more than polling does

/**
 * Call `refresh` now, and again when it is time, until `signal` aborts.
 * @param {{every: number, filter?: object, signal: AbortSignal, refresh: () => Promise<void>}} options
 */
export function keepFresh({ every, filter, signal, refresh }) {
  let timer, last = 0, running = false, again = false, stream = null;

  async function run() {
    clearTimeout(timer);
    if (signal.aborted || document.hidden) return;
    if (running) { again = true; return; }
    running = true;
    again = false;
    last = performance.now();
    try {
      await refresh();
    } finally {
      running = false;
      if (!signal.aborted) plan(again ? MIN_APART_MS : every);
    }
  }

  function plan(within) {
    clearTimeout(timer);
    timer = setTimeout(run, within);
  }

  let due = false; // a refresh that an event asked for is planned already
  function soon() {
    if (due) return;
    due = true;
    clearTimeout(timer);
    timer = setTimeout(() => { due = false; run(); }, Math.max(0, last + MIN_APART_MS - performance.now()));
  }

  function attend() {
    if (!filter || signal.aborted) return;
    stream = new AbortController();
    let count = 0, since = performance.now();
    const mine = stream;
    listen(filter, () => {
      const now = performance.now();
      if (now - since > 1000) { count = 0; since = now; }
      if (++count > MAX_EVENTS) { mine.abort(); every = Math.min(every, 2500); }
      soon();
    }, mine.signal);
  }

  function look() {
    stream?.abort();
    clearTimeout(timer);
    due = false;
    if (document.hidden) return;
    attend();
    run();
  }

  document.addEventListener("visibilitychange", look, { signal });
  signal.addEventListener("abort", () => { stream?.abort(); clearTimeout(timer); });
  look();
  return { refresh: run };
}
