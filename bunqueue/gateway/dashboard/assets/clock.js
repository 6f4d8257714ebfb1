// Times that go on by themselves: "3 s ago" becomes "4 s ago", though nothing was asked anew.

import { h, text } from "./dom.js";
import { moment, relative } from "./format.js";

const EVERY_MS = 1000;

/** When that was or will be, in words that stay true; `before` are words in front of it. */
export const since = (at, before = "") =>
  h("time", { title: moment(at), "data-at": at, "data-before": before || null }, before + relative(at));

function tick() {
  if (document.hidden) return;
  const now = Date.now();
  for (const element of document.querySelectorAll("time[data-at]")) {
    text(element, (element.dataset.before ?? "") + relative(Number(element.dataset.at), now));
  }
}

setInterval(tick, EVERY_MS);
