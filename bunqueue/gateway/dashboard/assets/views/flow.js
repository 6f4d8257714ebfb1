// One flow with named jobs, or a batch: its live graph, its jobs, and the actions for the whole flow.

import { call, may } from "../api.js";
import { since } from "../clock.js";
import { ask, attempt, confirm } from "../dialogs.js";
import { badge, button, card, empty, fill, h, text } from "../dom.js";
import { duration, num, plural } from "../format.js";
import { graph } from "../graph.js";
import { keepFresh } from "../live.js";
import { pager, table } from "../table.js";

const EVERY_MS = 3000;
const MOST = 150; // jobs that are drawn; more are shown as a list
const SIZE = 50;
const ENDED = ["completed", "failed", "cancelled"];
const DEAD = ["failed", "cancelled"];

const address = ({ id }) => `/jobs/${encodeURIComponent(id)}`;
const COLUMNS = [
  { name: "name", title: "Name", class: "name", cell: (job) => h("a", { href: address(job), title: job.id }, job.name) },
  { name: "queue", title: "Queue", cell: ({ queue }) => h("a", { href: `/queues/${encodeURIComponent(queue)}` }, queue) },
  { name: "state", title: "State", cell: ({ state }) => badge(state) },
  { name: "waits", title: "Waits for, or its error", class: "wide preview", cell: ({ pending, error }) => (error ? h("span", { class: "bad", title: error }, error.slice(0, 160)) : h("span", { title: pending.join(", ") }, some(pending))) },
  { name: "ended", title: "Ended", class: "number", cell: ({ finishedAt }) => (finishedAt ? since(finishedAt) : "") },
];

const some = (names) => `${names.slice(0, 3).join(", ")}${names.length > 3 ? ` and ${num(names.length - 3)} more` : ""}`;

function noteOf(job, now) {
  if (job.state === "active" && job.startedAt) return `runs ${duration(Math.max(0, now - job.startedAt))}`;
  if (job.state === "completed" && job.startedAt) return duration(Math.max(0, job.finishedAt - job.startedAt));
  return job.state.replace("waiting-children", "waits for jobs");
}

const nodeOf = (job, now) => ({ id: job.name, title: job.name, note: `${noteOf(job, now)} · ${job.queue}`, state: job.state === "active" ? "running" : job.state, kind: "job", count: 1, hint: job.error ?? job.id });

function batchOf({ batch }) {
  if (!batch) return null;
  const ended = `${num(batch.completed)} completed and ${num(batch.failed)} failed of ${plural(batch.jobs, "job")}`;
  return `Batch, ${batch.open ? "open" : "closed"}: ${ended}${batch.waiting.length ? `; ${batch.waiting.join(" and ")} to come` : ""}`;
}

export function flow({ params, main, signal }) {
  const id = params.id, note = h("p", { class: "problem", role: "alert" });
  const count = h("span", { class: "muted" }), below = h("div", { hidden: true }), state = h("span"), batch = h("p", { class: "muted" }), actions = h("div", { class: "actions" });
  const picture = graph({ label: "Flow", onpick: (name) => { picked = picked === name ? null : name; draw(); } });
  const drawn = h("div", {}, picture.element, below), pages = pager((to) => { page = to; draw(); });
  const list = table({ columns: COLUMNS, key: (job) => job.id, label: "Jobs of the flow", none: empty("No jobs are left") });
  let shown = null, picked = null, shows = "", page = 0, can = "";
  fill(main, h("div", { class: "page-head" }, h("h1", {}, id), state, note, actions), batch, card("Graph", count, drawn),
    h("section", { class: "card flush" }, list.element, pages.element));

  const act = async (command, fields, said) => { if (await attempt(() => call(command, { flow: id, ...fields }), said)) fresh.refresh(); };
  const again = (node) => act("RetryFlow", { node }, ({ data }) => `${plural(data.names.length, "job")} will run again`);
  const cancel = () => ask({ title: `Cancel ${id}?`, action: "Cancel the flow", danger: true, body: "All its jobs that have not ended become dead letters; the flow can be retried.",
    fields: [{ name: "reason", label: "Reason" }], submit: async ({ reason }) => { await call("CancelFlow", { flow: id, reason }); fresh.refresh(); } });
  const close = () => confirm({ title: `Close ${id}?`, action: "Close the batch", body: "It takes no more jobs, and what it ends with runs when all of these have ended.",
    submit: async () => { await call("CloseFlow", { flow: id }); fresh.refresh(); } });

  function draw() {
    const { nodes } = shown, now = Date.now(), small = nodes.length <= MOST;
    picture.element.hidden = !small;
    if (small) picture.update({ nodes: nodes.map((job) => nodeOf(job, now)), edges: nodes.flatMap((job) => job.after.map((name) => [name, job.name])), picked });
    text(count, `${num(shown.counts.completed ?? 0)} of ${shown.more ? "more than " : ""}${plural(nodes.length, "job")} completed${small ? "" : "; too many to be drawn"}`);
    page = Math.min(page, Math.max(0, Math.ceil(nodes.length / SIZE) - 1));
    list.update(nodes.slice(page * SIZE, (page + 1) * SIZE));
    pages.update({ page, size: SIZE, total: nodes.length, more: nodes.length > (page + 1) * SIZE });
    panel(nodes.find(({ name }) => name === picked));
  }

  function panel(job) {
    below.hidden = !job;
    const signature = job ? JSON.stringify([job.name, job.state, job.error]) : "";
    if (signature === shows) return;
    shows = signature;
    if (!job) return;
    fill(below, h("h3", {}, job.name), h("div", { class: "attempt-head" }, badge(job.state), h("span", { class: "muted" }, job.queue)), job.error ? h("p", { class: "error" }, job.error) : null,
      h("div", { class: "row-actions" }, h("a", { class: "button small", href: address(job) }, "Open"),
        may("RetryFlow") && ENDED.includes(job.state) ? button("Retry from here", () => again(job.name), "small primary") : null));
  }

  function head() {
    const dead = shown.nodes.some((job) => DEAD.includes(job.state)), live = shown.state === "running", open = Boolean(shown.batch?.open);
    fill(state, badge(shown.state, live ? "active" : shown.state));
    text(batch, batchOf(shown) ?? "");
    if (can === (can = JSON.stringify([dead, live, open])) || !may("CancelFlow")) return;
    fill(actions, open ? button("Close", close) : null, live ? button("Cancel", cancel, "bad") : null, dead ? button("Retry what failed", () => again(undefined), "primary") : null);
  }

  const fresh = keepFresh({ every: EVERY_MS, signal, note, refresh: async () => {
    shown = (await call("GetFlow", { flow: id }, signal)).data;
    head();
    draw();
  } });
  const timer = setInterval(() => { if (!document.hidden && shown?.state === "running") draw(); }, 1000);
  signal.addEventListener("abort", () => clearInterval(timer));
}
