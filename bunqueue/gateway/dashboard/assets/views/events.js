// Live events.

import { listen } from "../api.js";
import { badge, button, empty, fill, h, text } from "../dom.js";
import { shortId, time } from "../format.js";
import { setQuery } from "../router.js";
import { byWhom } from "./by-whom.js";

const KEPT = 200; // rows; older ones are dropped
const DRAW_MS = 250;
const TYPES = ["pushed", "pulled", "completed", "failed", "retried", "delayed", "ready", "progress", "stalled", "removed", "discarded", "revived", "paused", "resumed", "step", "signalled", "suspended", "undoing", "continued"];
const COLOUR = { pushed: "waiting", ready: "waiting", pulled: "active", progress: "active", retried: "delayed", revived: "waiting", stalled: "failed", discarded: "failed", undoing: "failed", suspended: "waiting-signal", signalled: "waiting-signal" };

export function events({ query, main, signal }) {
  let rows = [], held = [], paused = false, seen = 0, timer = null;
  const state = h("span", { class: "dot" });
  const count = h("span", { class: "muted" });
  const note = h("p", { class: "problem" });
  const body = h("tbody");
  const none = empty("Nothing has happened yet", "Events of all queues appear here as they happen.");
  const holder = h("div", {}, none);
  const whole = h("div", { class: "table-wrap" }, h("table", { "aria-label": "Events" },
    h("thead", {}, h("tr", {}, ["Time", "Event", "Queue", "Job", ""].map((title) => h("th", { scope: "col" }, title)))), body));
  const pause = button("Pause", () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
    if (!paused) { rows.push(...held); held = []; }
    draw();
  });
  const queue = h("input", { type: "search", value: query.queue ?? "", placeholder: "Queue", "aria-label": "Only of this queue", onchange: () => setQuery({ queue: queue.value.trim() }) });
  const type = h("select", { "aria-label": "Only this event", onchange: () => setQuery({ event: type.value }) },
    [["", "all events"], ...TYPES.map((name) => [name, name])].map(([value, label]) => h("option", { value, selected: value === (query.event ?? "") }, label)));
  const job = h("input", { type: "text", value: query.job ?? "", placeholder: "Job id", "aria-label": "Only of this job", onchange: () => setQuery({ job: job.value.trim() }) });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Events ", state), note, h("div", { class: "actions" }, pause, button("Clear", () => { rows = []; held = []; body.replaceChildren(); fill(holder, none); }))),
    h("section", { class: "card flush" }, h("div", { class: "card-head filters" }, queue, type, job, count), holder));

  function draw() {
    timer = null;
    text(count, `${seen.toLocaleString("en")} so far${paused ? `, ${held.length} held back` : ""}`);
    if (paused || !rows.length) return;
    if (holder.firstChild !== whole) fill(holder, whole);
    const fresh = rows.splice(0).slice(-KEPT).map(row).reverse();
    body.prepend(...fresh);
    while (body.children.length > KEPT) body.lastChild.remove();
  }

  listen({ queue: query.queue, event: query.event, job: query.job }, (event) => {
    seen += event.eventType === "lost" ? 0 : 1;
    (paused ? held : rows).push(event);
    if (held.length > KEPT) held.shift();
    if (rows.length > KEPT) rows.shift();
    if (timer === null && !document.hidden) timer = setTimeout(draw, DRAW_MS);
  }, signal, (now, why) => {
    state.className = `dot ${now === "live" ? "good" : "bad"}`;
    state.title = now === "live" ? "connected" : "not connected";
    text(note, why ?? (now === "live" ? "" : "Not connected; trying again."));
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && timer === null) draw(); }, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
}

function row(event) {
  if (event.eventType === "lost") {
    return h("tr", { class: "lost" }, h("td", {}, time(event.timestamp)), h("td", { colspan: 4 }, event.count ? `up to ${event.count.toLocaleString("en")} events passed by: more happens than can be shown` : "some events passed by"));
  }
  const detail = event.error || (event.progress !== undefined ? `${Math.round(event.progress)} %` : event.step && `${event.step}: ${event.status}` || event.message || event.reason || "");
  const name = badge(event.eventType);
  name.dataset.state = COLOUR[event.eventType] || (event.eventType === "step" ? event.status : event.eventType);
  const whom = byWhom(event.eventType, { queue: event.queue, job: event.jobId, at: event.timestamp });
  return h("tr", {}, h("td", { class: "id" }, time(event.timestamp)), h("td", {}, name, whom), h("td", {}, event.queue ? h("a", { href: `/queues/${encodeURIComponent(event.queue)}` }, event.queue) : ""),
    h("td", { class: "id" }, event.jobId ? h("a", { href: `/jobs/${encodeURIComponent(event.jobId)}`, title: event.jobId }, shortId(event.jobId)) : ""), h("td", { class: "wide preview" }, detail));
}
