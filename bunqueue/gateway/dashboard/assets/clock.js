// Times that update automatically: "3 s ago" becomes "4 s ago" without a new request.

import { h, text } from "./dom.js";
import { moment, relative } from "./format.js";

const EVERY_MS = 1000;

/** A relative time, in words that stay current; `before` is text in front of it. */
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
