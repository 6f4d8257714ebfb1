// The flow that a job belongs to, as a live graph: each job comes after those that it waits for.

import { call, may } from "../api.js";
import { attempt } from "../dialogs.js";
import { badge, button, card, fill, h, text } from "../dom.js";
import { duration, num, plural, relative, shortId } from "../format.js";
import { graph } from "../graph.js";
import { keepFresh } from "../live.js";
import { go } from "../router.js";

const MOST = 80; // jobs of a flow that are read
const HIGHEST = 20; // generations above a job
const EVERY_MS = 3000;
const OVER = ["completed", "failed", "cancelled", "stuck", "gone"];
const DEAD = ["failed", "cancelled"];

/** Reads a flow repeatedly; completed jobs are read once. */
function family() {
  const known = new Map(); // id -> job, as last read

  async function look(id, signal) {
    const before = known.get(id);
    if (before?.state === "completed") return before;
    const now = await call("GetJob", { id }, signal).then((reply) => reply.job, (error) => {
      if (signal.aborted || error.status !== 404) throw error;
      return before ? { ...before, state: "gone" } : null; // removed, or on another server
    });
    if (now) known.set(id, now);
    return now;
  }

  async function top(job, signal) {
    for (let step = 0; job.parentId && step < HIGHEST; step++) {
      const parent = await look(job.parentId, signal);
      if (!parent) break;
      job = parent;
    }
    return job;
  }

  const before = (job) => [...new Set([...(job.childrenIds ?? []), ...(job.dependsOn ?? [])])];

  /** The jobs, and pairs of ids: a job that has to end, and one that waits for it. */
  return async (job, signal) => {
    known.set(job.id, job);
    const jobs = new Map(), edges = [];
    let open = [(await top(job, signal)).id, job.id], left = 0;
    while (open.length) {
      const some = [...new Set(open)].filter((id) => !jobs.has(id)).slice(0, MOST - jobs.size);
      const found = (await Promise.all(some.map((id) => look(id, signal)))).filter(Boolean);
      for (const each of found) jobs.set(each.id, each);
      open = found.flatMap(before).filter((id) => !jobs.has(id));
      if (jobs.size >= MOST) { left = new Set(open).size; break; }
    }
    for (const each of jobs.values()) for (const id of before(each)) if (jobs.has(id)) edges.push([id, each.id]);
    return { jobs: [...jobs.values()], edges, left };
  };
}

/** The flow with names that a job belongs to: the job's id begins with the flow's id. */
async function flowOf(id, signal) {
  const prefix = /^([A-Za-z0-9_.-]{1,200}):[A-Za-z0-9_.-]{1,200}$/.exec(id)?.[1];
  if (!prefix) return null;
  const { data } = await call("ListFlows", { prefix, limit: 1, after: `${prefix}9` }, signal); // just before "prefix:"
  return data.flows[0]?.id === prefix ? prefix : null;
}

function noteOf(job, now) {
  if (job.state === "active" && job.startedAt) return job.progress ? `${Math.round(job.progress)} %` : `runs ${duration(Math.max(0, now - job.startedAt))}`;
  if (job.state === "completed" && job.startedAt) return duration(job.completedAt - job.startedAt);
  if (job.state === "delayed") return relative(job.runAt, now);
  return job.state.replace("waiting-children", "waits for jobs");
}

const nodeOf = (job, now) => ({ id: job.id, title: job.name, note: `${noteOf(job, now)} · ${job.queue}`, state: job.state === "active" ? "running" : job.state, kind: "job", count: 1, hint: job.failedReason ?? `${job.name} ${job.id}` });

/** The card.  `start(job)` shows the flow of a job, if it has one, until the view ends. */
export function flowGraph({ signal, changed }) {
  const note = h("p", { class: "problem" }), count = h("span", { class: "muted" }), below = h("div", { hidden: true });
  const body = h("div"), place = h("p", { class: "muted", hidden: true }), element = h("div", { class: "part" }, place, body), look = family();
  let own = null, asked = false, shown = null, picked = null, shows = "";
  const picture = graph({ label: "Flow", onpick: (id) => { picked = picked === id ? null : id; draw(); } });

  function draw() {
    const now = Date.now();
    picture.update({ nodes: shown.jobs.map((job) => nodeOf(job, now)), edges: shown.edges, picked });
    const done = shown.jobs.filter(({ state }) => state === "completed").length;
    text(count, `${done} of ${num(shown.jobs.length)}${shown.left ? ` and ${plural(shown.left, "other")}` : ""} completed`);
    const job = shown.jobs.find(({ id }) => id === picked);
    below.hidden = !job;
    const signature = job ? JSON.stringify([job.id, job.state, job.failedReason]) : "";
    if (signature === shows) return;
    shows = signature;
    if (job) fill(below, panel(job));
  }

  function panel(job) {
    const act = async (command, fields, said) => { if (await attempt(() => call(command, { queue: job.queue, ...fields }), said)) { fresh.refresh(); changed(); } };
    return [h("h3", {}, job.name), h("div", { class: "attempt-head" }, badge(job.state), h("code", {}, shortId(job.id)), h("span", { class: "muted" }, job.queue)), job.failedReason && DEAD.includes(job.state) ? h("p", { class: "error" }, job.failedReason) : null,
      h("div", { class: "row-actions" }, job.id === own?.id || job.state === "gone" ? null : button("Open", () => go(`/jobs/${encodeURIComponent(job.id)}`), "small"),
        may("RetryDlq") && DEAD.includes(job.state) ? button("Retry from here", () => act("RetryDlq", { jobId: job.id }, `${job.name} runs again`), "small primary") : null)];
  }

  async function refresh() {
    if (!own) return;
    if (shown && shown.jobs.every(({ state }) => state === "completed") && !shown.left) return;
    shown = await look(own, signal);
    if (shown.jobs.length < 2) return;
    if (!body.firstChild) fill(body, card("Flow", count, note, picture.element, below));
    draw();
  }

  const fresh = keepFresh({ every: EVERY_MS, signal, note, refresh });
  const timer = setInterval(() => { if (!document.hidden && body.firstChild && shown.jobs.some(({ state }) => !OVER.includes(state))) draw(); }, 1000);
  signal.addEventListener("abort", () => clearInterval(timer));
  return { element, start(job) {
    const began = own === null;
    if (place.hidden && !asked) {
      asked = true;
      flowOf(job.id, signal).then((named) => { if (named) { fill(place, "A job of the flow ", h("a", { href: `/flows/${encodeURIComponent(named)}` }, named)); place.hidden = false; } }, () => {});
    }
    own = job;
    if (began && (job.parentId || job.childrenIds?.length || job.dependsOn?.length)) fresh.refresh();
    else if (!job.parentId && !job.childrenIds?.length && !job.dependsOn?.length) own = null;
  } };
}
