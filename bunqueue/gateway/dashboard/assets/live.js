// Keeps a view fresh: after events that report a change, otherwise by slow polling, and not at all while the tab is
// hidden.

import { explain, listen, may } from "./api.js";
import { text } from "./dom.js";

const MIN_APART_MS = 1500; // between two refreshes, however many events arrive
const REST = 4; // pause as a multiple of a refresh's duration: expensive requests are made less often
const MAX_EVENTS = 400; // per second; beyond, listening costs more than polling

/**
 * Call `refresh` now, and again when it is due, until `signal` aborts.  `note` shows its errors.
 * The returned `refresh` is for code that has changed something and wants to show it.
 * @param {{every: number, filter?: object, signal: AbortSignal, note: Element, refresh: () => Promise<void>}} options
 */
export function keepFresh({ every, filter, signal, note, refresh }) {
  let timer, began = 0, ended = 0, apart = MIN_APART_MS, stream = null;
  let running = false, asked = false, stale = false; // stale: an event has reported a change

  async function run() {
    running = true;
    asked = stale = false;
    began = performance.now();
    try {
      await refresh();
      text(note, "");
    } catch (error) {
      if (!signal.aborted) text(note, explain(error));
    } finally {
      running = false;
      ended = performance.now();
      apart = Math.max(MIN_APART_MS, (ended - began) * REST);
      plan();
    }
  }

  function plan() {
    clearTimeout(timer);
    if (running || signal.aborted || document.hidden) return;
    const at = asked ? 0 : stale ? began + apart : Math.max(ended + every, began + apart);
    timer = setTimeout(run, Math.max(0, at - performance.now()));
  }

  function attend() {
    if (!filter || !may("GetEvents")) return;
    const mine = (stream = new AbortController());
    let count = 0, since = performance.now();
    listen(filter, () => {
      const now = performance.now();
      if (now - since > 1000) { count = 0; since = now; }
      if (++count > MAX_EVENTS) { mine.abort(); every = Math.min(every, 2500); }
      if (!stale) { stale = true; plan(); }
    }, mine.signal);
  }

  function look() {
    stream?.abort();
    clearTimeout(timer);
    if (document.hidden || signal.aborted) return;
    attend();
    ask();
  }

  function ask() {
    asked = true;
    plan();
  }

  document.addEventListener("visibilitychange", look, { signal });
  signal.addEventListener("abort", () => { stream?.abort(); clearTimeout(timer); });
  look();
  return { refresh: ask };
}
