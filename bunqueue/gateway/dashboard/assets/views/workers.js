// The registered workers, and what they have done.

import { call, may } from "../api.js";
import { since } from "../clock.js";
import { ask, attempt, confirm, toast } from "../dialogs.js";
import { badge, button, empty, fill, h, text } from "../dom.js";
import { duration, moment, num, plural } from "../format.js";
import { keepFresh } from "../live.js";
import { note as address } from "../router.js";
import { pager, table } from "../table.js";

const EVERY_MS = 3000;
const SIZE = 50;
const columns = (again) => [
  { name: "name", title: "Worker", class: "name", cell: (worker) => [h("span", { title: runs(worker) }, worker.name), worker.paused ? [" ", badge("paused")] : null, worker.status && worker.status !== "active" ? [" ", badge(worker.status)] : null] },
  { name: "queues", title: "Queues", cell: (worker) => h("span", { class: "links" }, worker.queues.slice(0, 5).map((queue, place) => [place ? ", " : null, h("a", { href: `/queues/${encodeURIComponent(queue)}` }, queue)]), worker.queues.length > 5 ? ` and ${worker.queues.length - 5} more` : null) },
  { name: "host", title: "Where", cell: (worker) => h("span", { class: "muted" }, `${worker.hostname}, process ${worker.pid}`) },
  { name: "busy", title: "Busy", class: "number", cell: (worker) => [`${num(worker.activeJobs)} of ${num(worker.concurrency)} `, h("meter", { max: worker.concurrency || 1, value: String(worker.activeJobs), "aria-label": "Busy" })] },
  { name: "done", title: "Completed", class: "number", cell: (worker) => num(worker.processedJobs) },
  { name: "failed", title: "Failed attempts", class: "number", cell: (worker) => (worker.failedJobs ? h("span", { class: "bad" }, num(worker.failedJobs)) : h("span", { class: "none" }, "0")) },
  { name: "up", title: "Up", class: "number", cell: (worker) => h("time", { title: moment(worker.registeredAt) }, duration(Date.now() - worker.registeredAt)) },
  { name: "seen", title: "Heard of", class: "number", cell: (worker) => since(worker.lastSeen) },
  { name: "do", title: "", class: "number", cell: (worker) => (may("ControlWorker") ? h("span", { class: "row-actions" },
    button(worker.paused ? "Resume" : "Pause", () => flip(worker, again), "small"), button("Places", () => resize(worker, again), "small"),
    button("Drain", () => end(worker, "drain", again), "small"), button("Stop", () => end(worker, "grace", again), "small bad")) : "") },
];

// What it runs, if it reports that: for all its queues together, or for each.
function runs({ names, namesByQueue }) {
  const each = Object.entries(namesByQueue ?? {}).map(([queue, some]) => `in ${queue} ${some.join(", ")}`);
  const said = each.length ? each : names ? [names.join(", ")] : [];
  return said.length ? `runs ${said.join("; ")}` : "";
}

async function flip(worker, again) {
  const told = worker.paused ? "It takes jobs again with its next heartbeat" : "It takes no more jobs from its next heartbeat on";
  if (await attempt(() => call("ControlWorker", { workerId: worker.id, paused: !worker.paused }), told)) again();
}

// How a worker ends, and what its jobs have for that.
const ENDS = {
  drain: { action: "Drain", body: "It takes no more jobs, lets those that it has end, and then ends itself. Whoever runs it may start it again." },
  grace: { action: "Stop", body: "It takes no more jobs, and those that it has get its grace to end. Then it ends; jobs that are not done go back to their queue. Whoever runs it may start it again." },
};

function end(worker, stop, again) {
  const { action, body } = ENDS[stop];
  return confirm({ title: `${action} ${worker.name}?`, body, action, submit: async () => {
    await call("ControlWorker", { workerId: worker.id, stop });
    toast("It hears of it with its next heartbeat");
    again();
  } });
}

function resize(worker, again) {
  return ask({ title: `Places of ${worker.name}`, action: "Change", fields: [
    { name: "concurrency", label: "Jobs at a time", kind: "number", value: worker.concurrency, required: true, hint: "until the worker ends" },
  ], submit: async ({ concurrency }) => {
    await call("ControlWorker", { workerId: worker.id, concurrency: Number(concurrency) });
    toast("It has them with its next heartbeat");
    again();
  } });
}

export function workers({ query, main, signal }) {
  const note = h("p", { class: "problem" });
  const count = h("span", { class: "muted" });
  const pages = pager((to) => turn(to, wanted));
  let found = [], page = Math.max(0, Math.floor(Number(query.page))) || 0, wanted = query.find ?? "";
  function turn(to, word) {
    [page, wanted] = [to, word];
    address({ page: to || null, find: word });
    draw();
  }
  const search = h("input", { type: "search", placeholder: "Find a worker", "aria-label": "Find a worker", value: wanted, oninput: () => turn(0, search.value) });
  const list = table({ columns: columns(() => fresh.refresh()), key: (worker) => worker.id, label: "Workers",
    none: empty("No worker is connected", "Start one: ", h("code", {}, "bunqueue worker tasks:app")) });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Workers"), note),
    h("section", { class: "card flush" }, h("div", { class: "card-head" }, count, search), list.element, pages.element));

  function draw() {
    const some = found.filter((worker) => `${worker.name} ${worker.hostname} ${worker.queues.join(" ")}`.toLowerCase().includes(wanted.toLowerCase()));
    const busy = some.reduce((sum, worker) => sum + worker.activeJobs, 0);
    const room = some.reduce((sum, worker) => sum + worker.concurrency, 0);
    text(count, `${plural(some.length, "worker")}, ${num(busy)} of ${num(room)} places busy`);
    page = Math.min(page, Math.max(0, Math.ceil(some.length / SIZE) - 1));
    list.update(some.slice(page * SIZE, (page + 1) * SIZE));
    pages.update({ page, size: SIZE, total: some.length, more: some.length > (page + 1) * SIZE });
  }
  const fresh = keepFresh({ every: EVERY_MS, signal, note, refresh: async () => {
    found = (await call("ListWorkers", {}, signal)).data.workers;
    draw();
  } });
}
