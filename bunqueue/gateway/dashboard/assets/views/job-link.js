// The name of a job in lists. A job with a damaged row may have no id.

import { h } from "../dom.js";
import { shortId } from "../format.js";

/** The key of a job within a list. */
export const jobKey = (job) => job.id || job.unreadable;

/** A link to the job's page. */
export function jobLink(job) {
  if (!job.id) return h("span", { class: "bad", title: job.unreadable }, "unreadable");
  return h("a", { href: `/jobs/${encodeURIComponent(job.id)}`, title: job.id }, shortId(job.id));
}
