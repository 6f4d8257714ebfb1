// The part of a job's page that shows a workflow: what it waits for, and its steps as a timeline or as a graph.

import { call, may } from "../../api.js";
import { since } from "../../clock.js";
import { button, card, empty, fill, h, text } from "../../dom.js";
import { bytes, num, plural, shortId } from "../../format.js";
import { graph } from "../../graph.js";
import { json } from "../../json.js";
import { note as address } from "../../router.js";
import { drop, hasEnded, notUndone, signal, stuckButtons } from "./actions.js";
import { details, toneOf } from "./details.js";
import { counted, entries, followers, isOpen, undoneBy } from "./shape.js";
import { spent, timeline } from "./timeline.js";

const SIZE = 1000; // steps per page
const TICK_MS = 1000;
const MOST_BOXES = 150;
const VIEWS = [["timeline", "Timeline"], ["graph", "Graph"]];

/** What a workflow waits for, with the actions for it; null if it does not wait. */
export function waitsOf({ job, view }, others, refresh) {
  const open = view.steps.filter((step) => isOpen(step) && ["signal", "sleep", "child"].includes(step.kind));
  const children = open.filter(({ kind }) => kind === "child");
  const rest = others.filter(({ kind }) => !["signal", "children", "delay"].includes(kind));
  if (job.state === "active" || hasEnded(job.state) || !(open.length + rest.length)) return null;
  const until = (wait) => (wait.until === undefined ? "" : [", at the latest ", since(wait.until)]);
  return h("section", { class: "why", "aria-label": "What it waits for" }, h("h2", {}, "What it waits for"), h("ul", {},
    view.waits.map((wait) => h("li", { class: "wait" }, h("span", {}, "The signal ", h("b", {}, wait.signal), wait.key === undefined ? "" : [" with the key ", h("b", {}, wait.key)], until(wait)),
      may("SendSignal") ? button("Send", () => signal(job.id, wait, refresh), "small primary") : null)),
    open.filter(({ kind }) => kind === "sleep").map((step) => h("li", {}, "The end of ", h("b", {}, step.name), step.until === null ? "" : [", ", since(step.until)])),
    children.length ? h("li", {}, `${plural(children.length, "job")} that it has started:`, h("span", { class: "ids" }, children.slice(0, 10).map(({ child }) => [" ", h("a", { href: `/jobs/${encodeURIComponent(child)}`, title: child }, shortId(child))]), children.length > 10 ? " …" : "")) : null,
    rest.map((reason) => h("li", {}, reason.text.charAt(0).toUpperCase() + reason.text.slice(1), reason.until === null ? "" : [": ", since(reason.until)]))));
}

/** A note that an undo failed, with the options of an operator. */
export function stuck({ job, view }, refresh) {
  if (job.state !== "stuck") {
    return view.undoing && !hasEnded(job.state) ? h("section", { class: "why", "aria-label": "Undo" }, h("h2", {}, "It is being undone"), h("p", {}, view.undoing.error ?? view.undoing.reason)) : null;
  }
  const left = notUndone(view);
  return h("section", { class: "why bad-news", "aria-label": "Undo" }, h("h2", {}, "Its undo is stuck"), h("p", {}, job.failedReason ?? ""),
    h("ul", {}, left.map((each, place) => h("li", { class: "wait" }, h("span", {}, h("b", {}, each.step.name), each.undo?.error ? `: ${each.undo.error}` : " has not been undone yet"),
      place === 0 ? h("span", { class: "row-actions" }, stuckButtons(job, each, refresh)) : null))));
}

function nodesOf(list, job, now, more) {
  const nodes = list.map((entry) => ({ id: String(entry.number), title: entry.kind === "undo" ? `undo ${undoneBy(entry)}` : entry.name, kind: entry.kind, state: toneOf(entry), count: entry.steps.length, hint: entry.error ?? entry.name,
    note: entry.steps.length > 1 ? counted(entry.steps) : `${entry.kind === "step" || entry.kind === "undo" ? "" : `${entry.kind}, `}${spent(entry, now)}${entry.attempts > 1 ? `, attempt ${entry.attempts}` : ""}` }));
  const pairs = followers(list).map(([from, to]) => [String(list[from].number), String(list[to].number)]);
  const later = new Set(pairs.map(([, to]) => to)), earlier = new Set(pairs.map(([from]) => from));
  const first = nodes.filter(({ id }) => !later.has(id)), last = nodes.filter(({ id }) => !earlier.has(id));
  const begin = { id: "begin", title: job.name, note: "begins", state: "begin" };
  const end = more || !hasEnded(job.state) ? [] : [{ id: "end", title: job.state, note: "ends", state: job.state }];
  return { nodes: [begin, ...nodes, ...end], edges: [...first.map(({ id }) => ["begin", id]), ...pairs, ...(end.length ? last.map(({ id }) => [id, "end"]) : [])] };
}

/** The final states of the steps, once the workflow has ended or is being undone.  The step that it failed with would
 * run again in a retry. */
function asEnded(job, { steps: list, undoing }) {
  if (!hasEnded(job.state) && !undoing) return list;
  const undo = list.find(({ kind }) => kind === "undo");
  const end = undoing?.at ?? undo?.startedAt ?? job.completedAt ?? job.timeline?.at(-1)?.timestamp;
  return list.map((step) => (isOpen(step) && step.kind !== "undo" && end ? { ...step, status: step.error ? "failed" : step.status, endedAt: Math.max(end, step.startedAt), until: null } : step));
}

/** The card with the steps.  The address contains the selection. */
export function steps({ query, signal: ended, refresh }) {
  let shown = VIEWS.some(([name]) => name === query.view) ? query.view : "timeline", picked = query.step ?? "", latest = null;
  const after = Math.max(0, Math.floor(Number(query.after))) || 0;
  const bars = timeline({ refresh, onopen: (name, open) => pick(open ? name : picked === name ? "" : picked) });
  const picture = graph({ label: "Steps, each after those that it came after", onpick: (number) => {
    const name = latest.list.find((entry) => String(entry.number) === number).name;
    pick(picked === name ? "" : name);
    draw();
  } });
  const below = details(refresh), belowBox = h("div", { hidden: true }, h("h3", {}), below.element);
  const count = h("span", { class: "muted" }), body = h("div"), pages = h("nav", { class: "pager", "aria-label": "Pages", hidden: true });
  const choices = VIEWS.map(([name, label]) => h("button", { type: "button", class: "plain", "aria-pressed": String(name === shown), onclick: () => {
    shown = name;
    address({ view: name === "timeline" ? null : name });
    VIEWS.forEach(([each], place) => { choices[place].ariaPressed = String(each === name); });
    draw();
  } }, label));
  const none = empty("It has recorded no steps");
  const element = card("Steps", [count, h("div", { class: "choice", role: "group", "aria-label": "Shown as" }, choices)], body, pages);

  function pick(name) {
    if (picked === name) return;
    picked = name;
    address({ step: name || null });
  }

  function draw() {
    if (!latest) return;
    const { list, job, view } = latest, now = Date.now();
    const wanted = !list.length ? [none] : shown === "graph" ? [picture.element, belowBox] : [bars.element];
    if (body.firstChild !== wanted[0]) fill(body, wanted);
    if (shown === "timeline") { bars.update(list, job, view.steps, picked, now); return; }
    const some = list.filter(({ kind }) => kind !== "value").slice(0, MOST_BOXES);
    const chosen = some.find(({ name }) => name === picked);
    picture.update({ ...nodesOf(some, job, now, view.next !== null || some.length === MOST_BOXES), picked: chosen ? String(chosen.number) : null });
    belowBox.hidden = !chosen;
    if (chosen) {
      text(belowBox.firstChild, chosen.name);
      below.update(chosen.steps[0], job, view.steps);
    }
  }

  const timer = setInterval(() => { if (!document.hidden && latest?.list.some(isOpen)) draw(); }, TICK_MS);
  ended.addEventListener("abort", () => clearInterval(timer));

  return { element, load: (id, abort) => call("GetWorkflow", { id, after, limit: SIZE, maxResult: 0 }, abort).then(({ data }) => data), update({ job, view }) {
    latest = { list: entries(asEnded(job, view)), job, view };
    text(count, view.steps.length ? `${view.next !== null || after ? "from " : ""}${plural(view.steps.length, "step")}` : "");
    pages.hidden = !after && view.next === null;
    const to = (number, label) => h("a", { href: `?${new URLSearchParams({ ...(shown === "graph" ? { view: shown } : {}), ...(number ? { after: number } : {}) })}`, class: "button small" }, label);
    fill(pages, after ? to(0, "First steps") : null, view.next === null ? null : to(view.next, "Next steps"));
    draw();
  } };
}

/** The values that its code publishes. */
export const stateOf = (shown) => (shown === undefined ? null : card("State set by its code", null, json(shown, "State set by its code")));

/** Signals that no wait has taken: those that it has not waited for yet, and those that were set aside. */
export function kept({ job, view: { signals } }, refresh) {
  if (!signals.length) return null;
  return card("Kept signals", h("span", { class: "muted" }, num(signals.length)), h("ul", { class: "many" }, signals.map((each) => h("li", {},
    h("b", {}, each.name), h("span", { class: "muted" }, since(each.at, "came "), `, ${bytes(each.size)}`, each.expiresAt === undefined ? "" : [", ", since(each.expiresAt, "is forgotten ")]),
    each.problem === undefined ? null : h("span", { class: "error" }, `Set aside: ${each.problem}`),
    may("DropSignal") ? button("Drop", () => drop(job.id, each, refresh), "small") : null))));
}

