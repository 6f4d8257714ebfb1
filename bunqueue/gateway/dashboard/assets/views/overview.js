// The front page: counts, rates and delays; all queues, and the state of the shards.

import { call, history } from "../api.js";
import { lineChart, spread, spreadLegend } from "../charts.js";
import { card, empty, fill, h, text } from "../dom.js";
import { compact, duration, megabytes, num, percent, plural, rate, time } from "../format.js";
import { keepFresh } from "../live.js";
import { note as address } from "../router.js";
import { pager, table } from "../table.js";
import { openBreakers } from "./breakers.js";
import { pausedBadge } from "./by-whom.js";

const EVERY_MS = 2000;
const MANY_QUEUES = 300; // beyond, the list is requested less often
const SIZE = 50;
const HOUR_MS = 3_600_000;
const SPANS = { "5m": ["5 min", 300_000], "15m": ["15 min", 900_000], "1h": ["1 hour", HOUR_MS] };

function tiles() {
  const names = [["waiting", "Waiting"], ["active", "Active"], ["delayed", "Delayed"], ["dlq", "Dead letters"], ["rate", "Completed / s"], ["workers", "Workers"]];
  const values = Object.fromEntries(names.map(([name]) => [name, h("dd", {}, "–")]));
  const links = { dlq: "/dlq", workers: "/workers" };
  const element = h("dl", { class: "tiles" }, names.map(([name, label]) =>
    h("div", { "data-kind": name }, h("dt", {}, links[name] ? h("a", { href: links[name] }, label) : label), values[name])));
  return { element, update(data) {
    for (const name of ["waiting", "active", "delayed", "dlq"]) text(values[name], compact(data.stats[name]));
    text(values.rate, rate(data.throughput.completePerSec));
    text(values.workers, compact(data.workers.total));
  } };
}

/** The gateway's history, and the points since then; the last hour in total. */
function charts(span) {
  const throughput = lineChart({ title: "Throughput", format: rate, series: [
    { name: "added", kind: "added" }, { name: "completed", kind: "completed" }, { name: "failed for good", field: "failed", kind: "failed" }] });
  const latency = lineChart({ title: "Latency", format: duration, series: [
    { name: "waited", field: "waitP50", kind: "waiting", upper: "waitP95" },
    { name: "in work", field: "runP50", kind: "active", upper: "runP95" }] });
  const depth = lineChart({ title: "Depth", format: compact, series: [
    { name: "waiting", kind: "waiting" }, { name: "active", kind: "active" }, { name: "delayed", kind: "delayed" }] });
  const all = [throughput, latency, depth];
  const titles = [["Throughput", "jobs / s"], ["Latency", "median / 95th percentile"], ["Depth", "jobs"]];
  let points = [];
  const draw = () => all.forEach((chart) => chart.update(points, SPANS[span][1]));
  const choice = Object.entries(SPANS).map(([key, [label]]) => h("button", { type: "button", class: "plain", "aria-pressed": String(key === span), onclick: (event) => {
    span = key;
    for (const each of choice) each.ariaPressed = String(each === event.currentTarget);
    address({ span: key === "5m" ? null : key });
    draw();
  } }, label));
  return { choice: h("div", { class: "choice", role: "group", "aria-label": "How far back" }, choice),
    element: h("div", { class: "charts" }, all.map((chart, place) =>
      card(titles[place][0], h("span", { class: "muted" }, titles[place][1]), chart.element))),
    async refresh(signal) {
      const last = points[points.length - 1]?.at ?? 0;
      points = [...points, ...await history(last, signal)];
      points = points.filter(({ at }) => at >= points[points.length - 1].at - HOUR_MS);
      draw();
    } };
}

const waitingOf = (queue) => queue.waiting + queue.prioritized;
const STATES = [["waiting", "waiting", waitingOf], ["active", "active", (queue) => queue.active], ["delayed", "delayed", (queue) => queue.delayed],
  ["waiting-children", "waits for jobs", (queue) => queue.blocked], ["completed", "completed", (queue) => queue.completed], ["failed", "dead", (queue) => queue.dlq]];
const failing = (queue) => queue.failedPerMin / (queue.completedPerMin + queue.failedPerMin || 1);
const link = (queue) => `/queues/${encodeURIComponent(queue.name)}`;
const some = (value) => (value ? compact(value) : h("span", { class: "none" }, "0"));
const COLUMNS = [
  { name: "name", title: "Queue", class: "name", sort: (queue) => queue.name, cell: (queue) => [h("a", { href: link(queue) }, queue.name), queue.paused ? pausedBadge(queue.name) : null] },
  { name: "spread", title: "Shares of its jobs", class: "wide", cell: (queue) => spread(STATES.map(([kind, , count]) => [kind, count(queue)])) },
  { name: "waiting", title: "Waiting", class: "number", sort: waitingOf, cell: (queue) => some(waitingOf(queue)) },
  { name: "active", title: "Active", class: "number", sort: (queue) => queue.active, cell: (queue) => some(queue.active) },
  { name: "delayed", title: "Delayed", class: "number", sort: (queue) => queue.delayed, cell: (queue) => some(queue.delayed) },
  { name: "dlq", title: "Dead", class: "number", sort: (queue) => queue.dlq, cell: (queue) => (queue.dlq ? h("a", { class: "bad", href: `/dlq/${encodeURIComponent(queue.name)}` }, compact(queue.dlq)) : some(0)) },
  { name: "rate", title: "Completed / min", class: "number", sort: (queue) => queue.completedPerMin, cell: (queue) => rate(queue.completedPerMin) },
  { name: "failing", title: "Failing", class: "number", sort: failing, cell: (queue) => (queue.failedPerMin ? h("span", { class: failing(queue) > 0.1 ? "bad" : "" }, percent(queue.failedPerMin, queue.completedPerMin + queue.failedPerMin)) : h("span", { class: "none" }, "0 %")) },
  { name: "oldest", title: "Oldest waits", class: "number", sort: (queue) => queue.oldestMs, cell: (queue) => (waitingOf(queue) && queue.oldestMs ? duration(queue.oldestMs) : h("span", { class: "none" }, "–")) },
];

function queueTable(query) {
  let queues = [], page = Math.max(0, Math.floor(Number(query.page))) || 0, wanted = query.find ?? "";
  let sorting = sortingOf(query.sort);
  const pages = pager((to) => turn({ page: to }));
  const count = h("span", { class: "muted" });
  const search = h("input", { type: "search", placeholder: "Find a queue", "aria-label": "Find a queue", value: wanted,
    oninput: () => turn({ page: 0, find: search.value }) });
  const list = table({ columns: COLUMNS, key: (queue) => queue.name, label: "Queues", sorted: sorting, onsort: (name) => {
    sorting = [name, sorting[0] === name ? !sorting[1] : name !== "name"];
    list.resort(sorting);
    turn({ page: 0 });
  }, none: empty("No queues yet", "A queue appears with its first job: ", h("code", {}, 'Queue("emails").add("welcome", {"to": "ada@example.com"})')) });

  function turn({ page: to, find = wanted }) {
    [page, wanted] = [to, find];
    const [name, descending] = sorting;
    address({ page: to || null, find, sort: name === "name" && !descending ? null : `${descending ? "-" : ""}${name}` });
    draw();
  }

  function draw() {
    const [name, descending] = sorting;
    const value = COLUMNS.find((column) => column.name === name).sort;
    const found = queues.filter((queue) => queue.name.toLowerCase().includes(wanted.toLowerCase()));
    found.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return (x < y ? -1 : x > y ? 1 : a.name < b.name ? -1 : 1) * (descending ? -1 : 1);
    });
    page = Math.min(page, Math.max(0, Math.ceil(found.length / SIZE) - 1));
    text(count, plural(found.length, "queue"));
    list.update(found.slice(page * SIZE, (page + 1) * SIZE));
    pages.update({ page, size: SIZE, total: found.length, more: found.length > (page + 1) * SIZE });
  }
  return { element: h("section", { class: "card flush" }, h("div", { class: "card-head" }, h("h2", {}, "Queues"), count, search), spreadLegend(STATES), list.element, pages.element),
    update(found) { queues = found; draw(); } };
}

/** [column, descending] as written in an address: -waiting. */
function sortingOf(said = "name") {
  const name = said.replace(/^-/, "");
  return COLUMNS.some((column) => column.name === name && column.sort) ? [name, said.startsWith("-")] : ["name", false];
}

/** The position of a shard in its log. */
function ofStore(store) {
  if (store.awaySince) return h("span", { class: "bad" }, `store unavailable since ${time(store.awaySince)}`);
  const place = `position ${num(store.position)}, epoch ${num(store.epoch)} · a commit takes ${store.roundTripMs.toFixed(1)} ms`;
  return h("span", { class: store.protected ? "muted" : "bad" }, store.protected ? place : `${place} · no synchronous standby`);
}

function shardList() {
  const box = h("div", { class: "shards" });
  return { element: card("Shards", null, box), update(shards, trouble) {
    const all = Math.max(1, ...shards.map((shard) => shard.of));
    const found = Array.from({ length: all }, (_, number) => shards.find((shard) => shard.shard === number));
    fill(box, trouble ? h("p", { class: "problem" }, trouble) : null, found.map((shard, number) => {
      const well = shard && !shard.error;
      return h("div", { class: "shard" }, h("span", { class: `dot ${well ? "good" : "bad"}` }), h("b", {}, `Shard ${number}`),
        h("span", { class: "muted" }, !shard ? "does not answer" : shard.error ||
          `${plural(shard.queues, "queue")}, ${num(shard.jobs)} unfinished · ${megabytes(shard.memoryMb)} memory, ${megabytes(shard.sqliteMb)} disk · up ${duration(shard.uptime)}`),
        shard?.store ? ofStore(shard.store) : null);
    }));
  } };
}

const ago = (at, now = Date.now()) => (at ? `${duration(Math.max(0, now - at))} ago` : "not yet");

/** How far what changes is backed up, or what a standby follows; nothing without either. */
function backups() {
  const box = h("div", { class: "shards" }), element = card("Backup", null, box);
  element.hidden = true;
  const line = (name, error, said) => h("div", { class: "shard" }, h("span", { class: `dot ${error ? "bad" : "good"}` }), h("b", {}, name), h("span", { class: error ? "bad" : "muted" }, error || said));
  return { element, async refresh(signal) {
    const { backup, standby } = (await call("BackupStatus", {}, signal)).data;
    element.hidden = !(backup || standby);
    fill(box,
      backup ? line("Changes", backup.error, `all before ${time(backup.until)} is stored${backup.lag ? ` · ${duration(backup.lag)} behind` : ""} · last whole backup ${ago(backup.base)}`) : null,
      standby ? line("Standby", standby.error, `follows ${standby.primary || standby.source}, shows ${time(standby.shown)}, has all before ${time(standby.until)} · nothing new for ${duration(standby.lag)} · takes no changes`) : null);
  } };
}

export function overview({ query, main, signal }) {
  const parts = { tiles: tiles(), charts: charts(query.span in SPANS ? query.span : "5m"), breakers: openBreakers(), queues: queueTable(query), shards: shardList(), backups: backups() };
  const note = h("p", { class: "problem" });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Overview"), note, parts.charts.choice), parts.tiles.element, parts.charts.element, parts.breakers.element, parts.queues.element, parts.shards.element, parts.backups.element);
  let turn = 0, many = false, trouble = null;
  async function listQueues() {
    const { queues } = (await call("DashboardQueues", {}, signal)).data;
    many = queues.length > MANY_QUEUES;
    parts.queues.update(queues);
  }
  const numbers = async () => {
    const { data } = await call("DashboardOverview", {}, signal);
    trouble = data.storage.error;
    parts.tiles.update(data);
  };
  const shards = async () => parts.shards.update((await call("ListShards", {}, signal)).data.shards, trouble);
  keepFresh({ every: EVERY_MS, signal, note, refresh: async () => {
    const wanted = [numbers(), shards(), parts.charts.refresh(signal), parts.breakers.refresh(signal), parts.backups.refresh(signal), !many || turn % 5 === 0 ? listQueues() : null];
    turn += 1;
    const failed = (await Promise.allSettled(wanted)).find(({ status }) => status === "rejected"); // show the rest even if a shard is down
    if (failed) throw failed.reason;
  } });
}
