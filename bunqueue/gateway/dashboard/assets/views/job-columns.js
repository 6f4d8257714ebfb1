// The columns in lists of jobs.

import { since } from "../clock.js";
import { badge, h } from "../dom.js";
import { inWords } from "../encoded.js";
import { bytes, duration } from "../format.js";
import { write } from "../numbers.js";
import { jobLink } from "./job-link.js";

export const SHOWN_BYTES = 2000; // of the data of a job; for larger data only the size is shown

/** The state of a job, and an action in progress. */
export function wordOf(job) {
  if (job.cancelling) return "stopping";
  return job.workflow?.undoing && !["failed", "cancelled", "stuck"].includes(job.state) ? "undoing" : job.state;
}

function when(job) {
  if (job.state === "completed" && job.completedAt) return ["completed", job.completedAt];
  if (job.state === "delayed") return ["due", job.runAt];
  if (job.state === "active" && job.startedAt) return ["started", job.startedAt];
  const last = job.timeline?.[job.timeline.length - 1];
  return job.state === "failed" && last ? ["failed", last.timestamp] : ["added", job.createdAt];
}

function took(job) {
  if (job.state === "completed" && job.startedAt) return duration(job.completedAt - job.startedAt);
  if (job.state === "active") return job.progress ? `${Math.round(job.progress)} %` : "runs";
  return "";
}

/** Its data; under it the error that it failed with. */
function about(job) {
  const data = preview(job);
  return job.failedReason && job.state === "failed" ? [h("div", {}, data), h("div", { class: "bad", title: job.failedReason }, job.failedReason.slice(0, 160))] : data;
}

function preview(job) {
  if (job.unreadable) return h("span", { class: "bad", title: job.unreadable }, job.unreadable.slice(0, 160));
  return job.dataBytes === undefined ? (write(job.data, undefined, inWords) ?? "").slice(0, 120) : h("i", {}, bytes(job.dataBytes));
}

export const COLUMNS = [
  { name: "id", title: "Job", class: "id", cell: jobLink },
  { name: "name", title: "Name", class: "name", cell: (job) => job.name },
  { name: "state", title: "State", cell: (job) => badge(wordOf(job)) },
  { name: "data", title: "Data", class: "wide preview", cell: about },
  { name: "priority", title: "Priority", class: "number", cell: (job) => job.priority || "" },
  { name: "attempts", title: "Attempts", class: "number", cell: (job) => (job.attempts ? `${job.attempts} / ${job.maxAttempts}` : "") },
  { name: "took", title: "Took", class: "number", cell: took },
  { name: "when", title: "When", class: "number", cell: (job) => { const [what, at] = when(job); return since(at, `${what} `); } },
];

/** For lists of several queues. */
export const QUEUE = { name: "queue", title: "Queue", class: "name", cell: (job) => h("a", { href: `/queues/${encodeURIComponent(job.queue)}` }, job.queue) };
