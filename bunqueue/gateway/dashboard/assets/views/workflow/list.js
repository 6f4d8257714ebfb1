// Workflows of all queues or of one, in one state or in any, the newest first.  The address contains all filters.

import { call, may } from "../../api.js";
import { since } from "../../clock.js";
import { ask, readJson, toast } from "../../dialogs.js";
import { badge, button, empty, fill, h, text } from "../../dom.js";
import { duration, num, plural } from "../../format.js";
import { keepFresh } from "../../live.js";
import { note as noted, setQuery } from "../../router.js";
import { table } from "../../table.js";
import { QUEUE, wordOf } from "../job-columns.js";
import { jobKey } from "../job-link.js";

const SIZE = 50;
const EVERY_MS = 8000;
const EVENTS = ["pushed", "pulled", "step", "signalled", "suspended", "undoing", "completed", "failed", "removed", "continued"];
const STATES = [["", "All"], ["active", "Active"], ["waiting", "Waiting to run"], ["delayed", "Sleeping"], ["waiting-signal", "Waiting for a signal"], ["waiting-children", "Waiting for jobs"],
  ["completed", "Completed"], ["failed", "Failed"], ["cancelled", "Cancelled"], ["stuck", "Stuck"]];

function took(job) {
  const ended = job.completedAt ?? (["failed", "cancelled", "stuck"].includes(job.state) ? job.timeline?.at(-1)?.timestamp : null);
  return ended ? duration(ended - job.createdAt) : h("span", { class: "none" }, "–");
}

const address = (job) => `/workflows/${encodeURIComponent(job.id)}`;
const COLUMNS = [
  { name: "id", title: "Workflow", class: "name", cell: (job) => (job.id ? h("a", { href: address(job) }, job.id) : h("span", { class: "bad" }, "unreadable")) },
  { name: "name", title: "Name", class: "name", cell: (job) => job.name },
  QUEUE,
  { name: "state", title: "State", cell: (job) => badge(wordOf(job)) },
  { name: "error", title: "", class: "wide preview", cell: (job) => (job.failedReason ? h("span", { class: "bad", title: job.failedReason }, job.failedReason.slice(0, 160)) : job.progressMessage ?? "") },
  { name: "created", title: "Began", class: "number", cell: (job) => since(job.createdAt) },
  { name: "took", title: "Took", class: "number", cell: took },
];

function broadcast(refresh) {
  return ask({ title: "Signal all that wait for a key", action: "Send", body: "Reaches each workflow that waits for this name and key, now and for a day.", fields: [
    { name: "name", label: "Name", required: true }, { name: "key", label: "Key", required: true }, { name: "data", label: "Data, as JSON", kind: "area", value: "null" },
  ], submit: async ({ name, key, data }) => {
    const { count } = await call("Broadcast", { name, key, data: readJson(data, "data") ?? null });
    toast(`${plural(count, "workflow")} took the signal ${name}`);
    refresh();
  } });
}

/** The fields above the list. */
function form(query, signal) {
  const queues = h("select", { name: "queue", onchange: () => apply() });
  const options = (names) => fill(queues, h("option", { value: "" }, "all queues"), names.map((name) => h("option", { value: name, selected: name === query.queue }, name)));
  options(query.queue ? [query.queue] : []);
  const element = h("form", { class: "filters", role: "search", "aria-label": "Search" },
    h("label", { class: "grow" }, h("span", {}, "Conditions"), h("input", { type: "search", name: "q", value: query.q ?? "", placeholder: "name = order and data.order.id = 7", autocomplete: "off", spellcheck: "false" })),
    h("label", {}, h("span", {}, "Queue"), queues), h("button", { type: "submit", class: "button primary" }, "Search"));
  const apply = () => { const found = Object.fromEntries(new FormData(element)); setQuery({ q: found.q.trim(), queue: found.queue, cursor: null, page: null }); };
  element.addEventListener("submit", (event) => { event.preventDefault(); apply(); });
  call("DashboardQueues", {}, signal).then(({ data }) => {
    const names = data.queues.map(({ name }) => name).sort();
    options(query.queue && !names.includes(query.queue) ? [query.queue, ...names] : names);
  }, () => {}); // the list itself reports the error
  return element;
}

function tabs(query, state) {
  const link = (name) => { const to = new URLSearchParams({ ...(query.q ? { q: query.q } : {}), ...(query.queue ? { queue: query.queue } : {}), ...(name ? { state: name } : {}) }).toString(); return `/workflows${to ? `?${to}` : ""}`; };
  return h("nav", { class: "tabs", "aria-label": "States" }, STATES.map(([name, label]) => h("a", { href: link(name), "aria-current": name === state ? "page" : null, "data-state": name, id: `tab-${name}` }, label)));
}

export function workflows({ query, main, signal }) {
  const state = STATES.some(([name]) => name === query.state) ? query.state : "";
  const wanted = { queue: query.queue || undefined, state: state || undefined, where: ["workflow = true", query.q].filter(Boolean).join(" and ") };
  let page = Math.max(0, Math.floor(Number(query.page))) || 0, begin = query.cursor || undefined, following;
  const note = h("p", { class: "problem", role: "alert" }), status = h("p", { class: "muted pad", role: "status", hidden: true });
  const list = table({ columns: COLUMNS, key: jobKey, label: "Workflows", none: query.q || state || query.queue ? empty("No workflow meets these conditions")
    : empty("No workflows yet", "A function becomes one with ", h("code", {}, "@app.workflow"), ": its steps are stored as they finish.") });
  const turn = (to, cursor) => { [page, begin] = [to, cursor]; noted({ page: to || null, cursor }, { replace: false }); fresh.refresh(); };
  const first = button("First page", () => { if (page) turn(0); }, "small");
  const where = h("span"), next = button("Next", () => { if (following) turn(page + 1, following); }, "small");
  const pages = h("nav", { class: "pager", "aria-label": "Pages", hidden: true }, first, where, next);
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Workflows"), note, h("div", { class: "actions" }, may("Broadcast") ? button("Broadcast a signal", () => broadcast(() => fresh.refresh())) : null)),
    form(query, signal), h("section", { class: "card flush" }, h("div", { class: "card-head tabbed" }, tabs(query, state)), list.element, status, pages));

  async function refresh() {
    try {
      show(await find());
    } catch (error) {
      if (signal.aborted) throw error;
      list.update([]);
      pages.hidden = true;
      throw error;
    }
  }

  async function find() {
    const found = [];
    let cursor = begin, plan, scanned = 0;
    do { // an answer may have few of them or none: the server checks a limited number of jobs at a time
      const reply = await call("FindJobs", { ...wanted, cursor, limit: SIZE - found.length, dataLimit: 0 }, signal);
      found.push(...reply.jobs);
      cursor = reply.cursor ?? undefined;
      plan ??= reply.plan;
      scanned += reply.progress.scanned;
      status.hidden = !cursor || found.length === SIZE;
      text(status, `Looked at ${num(scanned)} of at most ${num(Math.max(plan.jobs, scanned))} jobs`);
    } while (cursor && found.length < SIZE);
    status.hidden = true;
    return { found, cursor };
  }

  function show({ found, cursor }) {
    list.update(found);
    following = cursor;
    pages.hidden = !page && !following;
    first.ariaDisabled = String(!page);
    next.ariaDisabled = String(!following);
    text(where, found.length ? `${num(page * SIZE + 1)}–${num(page * SIZE + found.length)}` : "");
  }

  const fresh = keepFresh({ every: EVERY_MS, filter: { queue: query.queue, event: EVENTS }, signal, note, refresh });
}
