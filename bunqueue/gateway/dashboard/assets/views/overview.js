// The front page: how much, how fast, how late; all queues, and how the shards are.

import { call } from "../api.js";
import { lineChart, spread } from "../charts.js";
import { card, empty, fill, h, text } from "../dom.js";
import { compact, duration, megabytes, num, percent, plural, rate } from "../format.js";
import { keepFresh } from "../live.js";
import { pager, table } from "../table.js";

const EVERY_MS = 2000;
const MANY_QUEUES = 300; // beyond, the list is asked for less often
const SIZE = 50;
const KEPT = 400; // points of the charts, over visits of this page
const points = [];
let before = null; // totals of the last answer
let sorting = ["name", false];
let filter = "", page = 0;

/** What has happened since the last answer, as rates and as means. */
function point(data) {
  const { stats, latency, timestamp: at } = data;
  const now = { at, pushed: stats.totalPushed, completed: stats.totalCompleted, failed: stats.totalFailed,
    n: latency.totalCompleted, waited: latency.avgLatencyMs * latency.totalCompleted, worked: latency.avgProcessingMs * latency.totalCompleted };
  const last = before;
  before = now;
  const depth = { waiting: stats.waiting, active: stats.active, delayed: stats.delayed };
  if (!last || now.pushed < last.pushed || at - last.at > 30_000) return { at, ...depth };
  const seconds = Math.max(0.2, (at - last.at) / 1000);
  const done = now.n - last.n;
  return { at, ...depth, added: (now.pushed - last.pushed) / seconds, completed: (now.completed - last.completed) / seconds,
    failed: (now.failed - last.failed) / seconds, waited: done > 0 ? Math.max(0, (now.waited - last.waited) / done) : null,
    worked: done > 0 ? Math.max(0, (now.worked - last.worked) / done) : null };
}

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

function charts() {
  const throughput = lineChart({ title: "Throughput", format: (value) => rate(value), series: [
    { name: "added", kind: "added", of: (at) => at.added }, { name: "completed", kind: "completed", of: (at) => at.completed },
    { name: "failed", kind: "failed", of: (at) => at.failed }] });
  const latency = lineChart({ title: "Latency", format: duration, series: [
    { name: "until started", kind: "waiting", of: (at) => at.waited }, { name: "in work", kind: "active", of: (at) => at.worked }] });
  const depth = lineChart({ title: "Depth", format: compact, series: [
    { name: "waiting", kind: "waiting", of: (at) => at.waiting }, { name: "active", kind: "active", of: (at) => at.active },
    { name: "delayed", kind: "delayed", of: (at) => at.delayed }] });
  const all = [throughput, latency, depth];
  const titles = [["Throughput", "jobs / s"], ["Latency", "mean"], ["Depth", "jobs"]];
  return { element: h("div", { class: "charts" }, all.map((chart, place) =>
    card(titles[place][0], h("span", { class: "muted" }, titles[place][1]), chart.element))), update: () => all.forEach((chart) => chart.update(points)) };
}

const waitingOf = (queue) => queue.waiting + queue.prioritized;
const failing = (queue) => queue.failedPerMin / (queue.completedPerMin + queue.failedPerMin || 1);
const link = (queue) => `/queues/${encodeURIComponent(queue.name)}`;
const some = (value) => (value ? compact(value) : h("span", { class: "none" }, "0"));
const COLUMNS = [
  { name: "name", title: "Queue", class: "name", sort: (queue) => queue.name, cell: (queue) => [h("a", { href: link(queue) }, queue.name), queue.paused ? h("span", { class: "badge", "data-state": "paused" }, "paused") : null] },
  { name: "spread", title: "", class: "wide", cell: (queue) => spread([["waiting", waitingOf(queue)], ["active", queue.active], ["delayed", queue.delayed], ["waiting-children", queue.blocked], ["failed", queue.dlq]]) },
  { name: "waiting", title: "Waiting", class: "number", sort: waitingOf, cell: (queue) => some(waitingOf(queue)) },
  { name: "active", title: "Active", class: "number", sort: (queue) => queue.active, cell: (queue) => some(queue.active) },
  { name: "delayed", title: "Delayed", class: "number", sort: (queue) => queue.delayed, cell: (queue) => some(queue.delayed) },
  { name: "dlq", title: "Dead", class: "number", sort: (queue) => queue.dlq, cell: (queue) => (queue.dlq ? h("a", { class: "bad", href: `/dlq/${encodeURIComponent(queue.name)}` }, compact(queue.dlq)) : some(0)) },
  { name: "rate", title: "Done / min", class: "number", sort: (queue) => queue.completedPerMin, cell: (queue) => rate(queue.completedPerMin) },
  { name: "failing", title: "Failing", class: "number", sort: failing, cell: (queue) => (queue.failedPerMin ? h("span", { class: failing(queue) > 0.1 ? "bad" : "" }, percent(queue.failedPerMin, queue.completedPerMin + queue.failedPerMin)) : h("span", { class: "none" }, "0 %")) },
  { name: "oldest", title: "Oldest waits", class: "number", sort: (queue) => queue.oldestMs, cell: (queue) => (waitingOf(queue) && queue.oldestMs ? duration(queue.oldestMs) : h("span", { class: "none" }, "–")) },
];

function queueTable() {
  let queues = [];
  const foot = h("div");
  const count = h("span", { class: "muted" });
  const search = h("input", { type: "search", placeholder: "Find a queue", "aria-label": "Find a queue", value: filter,
    oninput: () => { filter = search.value; page = 0; draw(); } });
  const list = table({ columns: COLUMNS, key: (queue) => queue.name, label: "Queues", sorted: sorting, onsort: (name) => {
    sorting = [name, sorting[0] === name ? !sorting[1] : name !== "name"];
    list.resort(sorting);
    draw();
  }, none: empty("No queues yet", "A queue appears with its first job: ", h("code", {}, 'Queue("emails").add("welcome", {"to": "ada@example.com"})')) });

  function draw() {
    const [name, descending] = sorting;
    const value = COLUMNS.find((column) => column.name === name).sort;
    const found = queues.filter((queue) => queue.name.toLowerCase().includes(filter.toLowerCase()));
    found.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return (x < y ? -1 : x > y ? 1 : a.name < b.name ? -1 : 1) * (descending ? -1 : 1);
    });
    page = Math.min(page, Math.max(0, Math.ceil(found.length / SIZE) - 1));
    text(count, plural(found.length, "queue"));
    list.update(found.slice(page * SIZE, (page + 1) * SIZE));
    fill(foot, pager({ page, size: SIZE, total: found.length, more: found.length > (page + 1) * SIZE, onpage: (to) => { page = to; draw(); } }));
  }
  return { element: h("section", { class: "card flush" }, h("div", { class: "card-head" }, h("h2", {}, "Queues"), count, search), list.element, foot),
    update(found) { queues = found; draw(); } };
}

function shardList() {
  const box = h("div", { class: "shards" });
  return { element: card("Shards", null, box), update(shards, storage) {
    const all = Math.max(1, ...shards.map((shard) => shard.of));
    const found = Array.from({ length: all }, (_, number) => shards.find((shard) => shard.shard === number));
    fill(box, storage.error ? h("p", { class: "problem" }, storage.error) : null, found.map((shard, number) => {
      const well = shard && !shard.error;
      return h("div", { class: "shard" }, h("span", { class: `dot ${well ? "good" : "bad"}` }), h("b", {}, `Shard ${number}`),
        h("span", { class: "muted" }, !shard ? "does not answer" : shard.error ||
          `${plural(shard.queues, "queue")}, ${num(shard.jobs)} unfinished · ${megabytes(shard.memoryMb)} memory, ${megabytes(shard.sqliteMb)} disk · up ${duration(shard.uptime)}`));
    }));
  } };
}

export function overview({ main, signal }) {
  const parts = { tiles: tiles(), charts: charts(), queues: queueTable(), shards: shardList() };
  const note = h("p", { class: "problem" });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Overview"), note), parts.tiles.element, parts.charts.element, parts.queues.element, parts.shards.element);
  parts.charts.update();
  let turn = 0, queues = [];
  keepFresh({ every: EVERY_MS, signal, refresh: async () => {
    try {
      const wanted = queues.length < MANY_QUEUES || turn % 5 === 0;
      turn += 1;
      const [seen, list, shards] = await Promise.all([call("DashboardOverview", {}, signal),
        wanted ? call("DashboardQueues", {}, signal) : null, call("ListShards", {}, signal)]);
      points.push(point(seen.data));
      points.splice(0, points.length - KEPT);
      parts.tiles.update(seen.data);
      parts.charts.update();
      if (list) parts.queues.update((queues = list.data.queues));
      parts.shards.update(shards.data.shards, seen.data.storage);
      text(note, "");
    } catch (error) {
      if (!signal.aborted) text(note, error.message);
    }
  } });
}
