// The steps of a workflow as bars in time, one below the other.  Each opens to show its details.

import { call } from "../../api.js";
import { badge, fill, h, s, text } from "../../dom.js";
import { duration, relative, time } from "../../format.js";
import { write } from "../../numbers.js";
import { details, toneOf } from "./details.js";
import { baseOf, counted, isOpen, scale } from "./shape.js";

const NARROWEST = 0.006; // of the whole width
const KINDS = { sleep: "sleep", signal: "signal", child: "job", value: "value", undo: "undo" };

const ITEM_BYTES = 200; // of the data of a child; larger data do not name it
const items = new Map(); // id of a child -> what it is about, or a promise of that

/** What a child is about: its data, which tell it from the other children of its name. */
async function itemOf(id) {
  if (!items.has(id)) {
    items.set(id, call("GetJob", { id, dataLimit: ITEM_BYTES }).then(({ job }) => {
      if (job.dataBytes !== undefined) return "";
      const data = job.data && typeof job.data === "object" && !Array.isArray(job.data) ? Object.values(job.data) : [job.data];
      return data.length === 1 && typeof data[0] === "string" ? data[0] : data.map((value) => write(value) ?? "").join(", ");
    }, () => "")); // it is gone
  }
  return items.get(id);
}

/** How long it took, how long it has run so far, or what it waits for. */
export function spent(entry, now) {
  if (!isOpen(entry)) return duration(entry.endedAt - entry.startedAt);
  if (entry.status === "running") return `runs ${duration(Math.max(0, now - entry.startedAt))}`;
  if (entry.until !== null) return relative(entry.until, now);
  return `waits ${duration(Math.max(0, now - entry.startedAt))}`;
}

/** `onopen(name, open)` is called when a step is opened or closed; `update(list, job, steps, opened)` draws. */
export function timeline({ onopen, refresh }) {
  const rows = new Map(); // number of the first step -> its row
  const body = h("ol", { class: "steps", "aria-label": "Steps" });
  const ends = [h("span"), h("span", { class: "muted" }), h("span")];
  const element = h("div", {}, body, h("div", { class: "axis" }, ends));

  function update(list, job, steps, opened, now) {
    const places = scale(list, now);
    const there = new Set(list.map((entry) => entry.number));
    for (const [number, row] of rows) if (!there.has(number)) { row.element.remove(); rows.delete(number); }
    list.forEach((entry, place) => {
      let row = rows.get(entry.number);
      if (!row) rows.set(entry.number, (row = makeRow(onopen, refresh)));
      if (body.children[place] !== row.element) body.insertBefore(row.element, body.children[place] ?? null);
      row.update(entry, job, steps, places, opened === entry.name, now);
    });
    text(ends[0], list.length ? time(places.from) : "");
    text(ends[1], places.shortened ? "long waits are drawn shorter" : "");
    text(ends[2], list.length ? (list.some(isOpen) ? "now" : time(places.to)) : "");
  }

  return { element, update };
}

function makeRow(onopen, refresh) {
  const bar = s("rect", { class: "bar", y: 0, height: "100%", rx: 4 });
  const name = h("span", { class: "step-name" }), took = h("span", { class: "took" }), state = h("span", { class: "state" });
  const head = h("summary", {}, state, name, s("svg", { class: "track", "aria-hidden": "true" }, bar), took);
  const inside = h("div");
  const element = h("li", {}, h("details", { ontoggle: () => {
    onopen(current.entry.name, element.firstChild.open);
    open();
  } }, head, inside));
  let current = null, shown = "", content = null;

  function open() {
    if (!element.firstChild.open) return;
    const { entry, job, steps } = current;
    if (entry.steps.length > 1) fillMany(inside, entry, job);
    else {
      if (!content) fill(inside, (content = details(refresh)).element);
      content.update(entry, job, steps);
    }
  }

  function update(entry, job, steps, places, opened, now) {
    const first = current === null;
    current = { entry, job, steps };
    const from = places.at(entry.startedAt), to = places.at(entry.endedAt ?? Math.max(now, entry.startedAt));
    const width = Math.max(NARROWEST, to - from), left = Math.min(from, 1 - width);
    bar.setAttribute("x", `${(100 * left).toFixed(2)}%`);
    bar.setAttribute("width", `${(100 * width).toFixed(2)}%`);
    text(took, spent(entry, now));
    const signature = JSON.stringify([entry.name, entry.kind, entry.status, entry.attempts, entry.steps.length > 1 ? counted(entry.steps) : 1]);
    if (signature !== shown) {
      shown = signature;
      element.dataset.state = toneOf(entry);
      element.dataset.kindOf = entry.kind;
      fill(state, badge(entry.status, toneOf(entry)));
      const child = entry.steps.length === 1 ? entry.child : null, item = h("span", { class: "item" });
      if (child) itemOf(child).then((found) => { item.textContent = item.title = found; });
      fill(name, h("b", { title: entry.name }, child ? baseOf(entry.name) : entry.name.replace(/^undo:/, "")), item,
        KINDS[entry.kind] ? h("i", {}, KINDS[entry.kind]) : null,
        entry.steps.length > 1 ? h("i", { title: counted(entry.steps) }, `× ${entry.steps.length}`) : null,
        entry.attempts > 1 ? h("i", {}, `attempt ${entry.attempts}`) : null);
    }
    if (first && opened) element.firstChild.open = true;
    open();
  }

  return { element, update };
}

/** Many steps of one name: their states, and the first ones that are not done. */
function fillMany(box, { steps }) {
  const MOST = 50;
  const now = JSON.stringify(steps.map(({ status }) => status));
  if (box.dataset.shows === now) return;
  box.dataset.shows = now;
  const rank = (step) => ["failed", "timed-out", "running", "retrying", "waiting"].indexOf(step.status) >>> 0; // the others last
  const some = [...steps].sort((one, other) => rank(one) - rank(other) || one.number - other.number).slice(0, MOST);
  fill(box, h("div", { class: "step-details" }, h("p", { class: "muted" }, counted(steps)), h("ul", { class: "many" }, some.map((step) => h("li", {},
    step.child ? h("a", { href: `/jobs/${encodeURIComponent(step.child)}` }, step.name) : h("span", {}, step.name), badge(step.status, toneOf(step)),
    step.error ? h("span", { class: "bad" }, step.error.slice(0, 160)) : null))), some.length < steps.length ? h("p", { class: "muted" }, `and ${steps.length - some.length} others`) : null));
}
