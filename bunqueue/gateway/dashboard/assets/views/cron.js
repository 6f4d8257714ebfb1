// Schedules: when they run next and how the last run ended; running, pausing, adding and deleting them.

import { call, may, Refused } from "../api.js";
import { since } from "../clock.js";
import { ask, attempt, confirm, readJson, toast } from "../dialogs.js";
import { badge, button, empty, fill, h, text } from "../dom.js";
import { duration, num, plural, relative } from "../format.js";
import { keepFresh } from "../live.js";
import { note as address } from "../router.js";
import { pager, table } from "../table.js";

const EVERY_MS = 5000;
const SIZE = 50;
const OVERLAP = [["", "add none while it waits or runs"], ["allow", "add another one"], ["skip", "leave the run out, also before a retry"],
  ["queue", "let the run wait until it has ended"], ["cancel", "cancel it, then run"]];
const ON_MISSED = [["", "leave them out"], ["one", "one run makes up for all"], ["all", "run all of them"]];

export function cron({ query, main, signal }) {
  const note = h("p", { class: "problem" });
  const count = h("span", { class: "muted" });
  const pages = pager((to) => turn(to, wanted));
  let found = [], page = Math.max(0, Math.floor(Number(query.page))) || 0, wanted = query.find ?? "";
  function turn(to, word) {
    [page, wanted] = [to, word];
    address({ page: to || null, find: word });
    draw();
  }
  const search = h("input", { type: "search", placeholder: "Find a schedule", "aria-label": "Find a schedule", value: wanted, oninput: () => turn(0, search.value) });
  const act = async (work, done) => { if (await attempt(work, done)) fresh.refresh(); };
  const list = table({ columns: columns(act, () => fresh.refresh()), key: (each) => each.name, label: "Schedules",
    none: empty("No schedules", "A schedule adds jobs by the clock: every night at two, every ten minutes.") });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Schedules"), note,
    h("div", { class: "actions" }, may("Cron") ? button("Add schedule", () => add(() => fresh.refresh()), "primary") : null)),
  h("section", { class: "card flush" }, h("div", { class: "card-head" }, count, search), list.element, pages.element));

  function draw() {
    const some = found.filter((each) => `${each.name} ${each.queue}`.toLowerCase().includes(wanted.toLowerCase()));
    text(count, plural(some.length, "schedule"));
    page = Math.min(page, Math.max(0, Math.ceil(some.length / SIZE) - 1));
    list.update(some.slice(page * SIZE, (page + 1) * SIZE));
    pages.update({ page, size: SIZE, total: some.length, more: some.length > (page + 1) * SIZE });
  }
  const fresh = keepFresh({ every: EVERY_MS, signal, note, refresh: async () => {
    found = (await call("CronList", {}, signal)).crons;
    draw();
  } });
}

function columns(act, refresh) {
  const start = (each) => act(() => call("CronTrigger", { name: each.name }),
    ({ existing }) => (existing ? `The last job of ${each.name} is still there, so none was added` : `${each.name} has added a job`));
  const flip = (each) => act(() => call(each.paused ? "CronResume" : "CronPause", { name: each.name }), each.paused ? `${each.name} goes on` : `${each.name} is paused`);
  return [
    { name: "name", title: "Name", class: "name", cell: (each) => [each.name, each.paused ? [" ", badge("paused")] : null] },
    { name: "queue", title: "Queue", cell: (each) => h("a", { href: `/queues/${encodeURIComponent(each.queue)}` }, each.queue) },
    { name: "rhythm", title: "Runs", cell: rhythm },
    { name: "next", title: "Next", class: "number", cell: (each) => (each.paused ? h("span", { class: "none" }, "–") : since(each.nextRun)) },
    { name: "done", title: "Has run", class: "number", cell: (each) => `${num(each.executions)}${each.maxLimit ? ` of ${num(each.maxLimit)}` : ""}${each.missed ? `, missed ${num(each.missed)}` : ""}${each.backlog ? `, ${num(each.backlog)} wait` : ""}` },
    { name: "last", title: "Last run", cell: lastRun },
    { name: "do", title: "", class: "number", cell: (each) => h("span", { class: "row-actions" }, button("Next runs", () => nextRuns(each), "small"),
      may("CronTrigger") ? [button("Run now", () => start(each), "small"), button(each.paused ? "Resume" : "Pause", () => flip(each), "small"), button("Delete", () => remove(each, refresh), "small bad")] : null) },
  ];
}

function rhythm(each) {
  const when = each.schedule ? [h("code", {}, each.schedule), h("span", { class: "muted" }, ` ${each.timezone ?? "UTC"}`)] : [`every ${duration(each.repeatEvery)}`];
  const policies = [each.overlap ? `overlap: ${each.overlap}` : null, each.onMissed ? `missed: ${each.onMissed}` : null].filter(Boolean);
  return policies.length ? [...when, h("div", { class: "muted small" }, policies.join(", "))] : when;
}

function lastRun({ lastRun: run }) {
  if (!run) return h("span", { class: "none" }, "–");
  return [h("a", { href: `/jobs/${encodeURIComponent(run.jobId)}` }, since(run.at)), " ", badge(run.outcome ?? "not ended")];
}

async function nextRuns(each) {
  let reply;
  if (!await attempt(async () => { reply = await call("CronNext", { name: each.name, count: 10 }); })) return;
  const zone = each.timezone ?? "UTC";
  const there = clockOf(zone);
  const dialog = h("dialog", { "aria-labelledby": "next-title" }, h("form", { method: "dialog" }, h("h2", { id: "next-title" }, `Next runs of ${each.name}`),
    each.paused ? h("p", { class: "problem" }, "It is paused: these will be left out.") : null,
    h("ol", { class: "runs" }, reply.data.runs.map((at) => h("li", {}, h("time", {}, there.format(at)), h("span", { class: "muted" }, since(at))))),
    h("p", { class: "muted small" }, `In the time zone ${there.resolvedOptions().timeZone}.`),
    h("div", { class: "dialog-end" }, h("button", { type: "submit", class: "button primary" }, "Close"))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** Times in a zone, or in UTC when the browser does not know it: its list may be older than the server's. */
function clockOf(zone) {
  const parts = { weekday: "short", day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" };
  try {
    return new Intl.DateTimeFormat("en-GB", { ...parts, timeZone: zone });
  } catch {
    return new Intl.DateTimeFormat("en-GB", { ...parts, timeZone: "UTC" });
  }
}

function remove(each, refresh) {
  return confirm({ title: `Delete the schedule ${each.name}?`, body: "It adds no more jobs; those that it has added stay.", action: "Delete", submit: async () => {
    await call("CronDelete", { name: each.name });
    toast(`${each.name} is deleted`);
    refresh();
  } });
}

function add(refresh) {
  return ask({ title: "Add a schedule", action: "Add schedule", fields: [
    { name: "name", label: "Name", required: true, hint: "the queue's schedule of that name is replaced" },
    { name: "queue", label: "Queue", required: true },
    { name: "schedule", label: "Cron expression", hint: "such as 0 9 * * mon-fri, or @daily" },
    { name: "repeatEvery", label: "or every so many ms", kind: "number", min: 1 },
    { name: "timezone", label: "Time zone", hint: "such as Europe/Rome; UTC unless set" },
    { name: "overlap", label: "If the last job has not ended", kind: "choice", options: OVERLAP },
    { name: "onMissed", label: "Runs that a server missed that was down", kind: "choice", options: ON_MISSED },
    { name: "maxBacklog", label: "At most so many wait, or are made up for", kind: "number", min: 1, hint: "100 unless set" },
    { name: "jobName", label: "Name of its jobs" },
    { name: "data", label: "Data, as JSON", kind: "area", rows: 4 },
  ], submit: async ({ data, ...rest }) => {
    if (rest.schedule && rest.repeatEvery) throw new Refused("Give a cron expression or a number of ms, not both");
    const { cron: made } = await call("Cron", { ...rest, data: readJson(data, "data"), move: false });
    toast(`${made.name} runs ${relative(made.nextRun)}`);
    refresh();
  } });
}
