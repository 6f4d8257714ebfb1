// The actions for a job, by its state.

import { call, may, Refused } from "../api.js";
import { ask, attempt, confirm, readJson, toast } from "../dialogs.js";
import { button, fill } from "../dom.js";
import { isEncoded } from "../encoded.js";
import { write } from "../numbers.js";
import { go } from "../router.js";
import { workflowButtons } from "./workflow/actions.js";

const LIVE = ["waiting", "prioritized", "delayed", "waiting-children", "waiting-signal"];

/** Draws the buttons that fit the job's state.  Returns a function to call with the current job, or null, and with its
 * view if it is a workflow. */
export function jobActions(id, box, refresh) {
  let shown = "", latest = null, seen = null;
  return (job, view = null) => {
    [latest, seen] = [job, view];
    const now = job ? JSON.stringify([job.state, job.cancelling, view && [view.undoable, view.undone, view.undoing !== null, view.steps.length > 0]]) : "";
    if (now === shown) return;
    shown = now;
    fill(box, job ? buttons(id, job.state, job.cancelling, () => latest, refresh, view && workflowButtons({ job, view }, () => ({ job: latest, view: seen }), refresh)) : null);
  };
}

/** `job` returns the job as it is when a button is pressed, not as it was when the button was drawn.  A workflow has its
 * own buttons in place of some. */
function buttons(id, state, cancelling, job, refresh, own) {
  const then = async (work, done) => { if (await attempt(work, done)) refresh(); };
  const dead = ["failed", "cancelled"].includes(state);
  return [
    dead && may("RetryDlq") ? button("Retry", () => then(() => retry(job()), "It waits for another try"), "primary") : null,
    state === "completed" && may("RetryCompleted") ? button("Run again", () => then(() => call("RetryCompleted", { queue: job().queue, id }), "It runs again")) : null,
    own,
    state === "delayed" && !own && may("Promote") ? button("Run now", () => then(() => call("Promote", { id }), "It may run now"), "primary") : null,
    LIVE.includes(state) && !own && may("Update") ? button("Data", () => editData(id, job(), refresh)) : null,
    LIVE.includes(state) && !own && may("ChangePriority") ? button("Priority", () => editPriority(id, job(), refresh)) : null,
    state === "active" && !cancelling && !own && may("Cancel") ? button("Cancel", () => cancel(id, job(), refresh), "bad") : null,
    LIVE.includes(state) && !own && may("Cancel") ? button("Cancel", () => cancel(id, job(), refresh), "bad") : null,
    ["waiting", "prioritized", "delayed", "active"].includes(state) && !own && may("Discard") ? button("Discard", () => discard(id, job(), refresh), "bad") : null,
    state !== "active" && !(own && LIVE.includes(state)) && may("RemoveJob") ? button("Remove", () => remove(id, job()), "bad") : null,
  ];
}

async function retry(job) {
  const { count } = await call("RetryDlq", { queue: job.queue, jobId: job.id });
  if (!count) throw new Refused("The job is no dead letter any more");
}

function cancel(id, job, refresh) {
  const active = job.state === "active";
  return ask({ title: `Cancel ${job.name}?`, danger: true, action: "Cancel the job",
    body: active ? "Its worker is told to stop, and the job ends as cancelled within 10 s." : "The job has not begun; it will be removed.",
    fields: active ? [{ name: "reason", label: "Reason", hint: "shown with the job" }] : [],
    submit: async ({ reason }) => {
      const { running } = await call("Cancel", { id, running: active, reason });
      toast(running ? "It is being stopped" : "It is cancelled");
      refresh();
    } });
}

function discard(id, job, refresh) {
  return confirm({ title: `Discard ${job.name}?`, body: "It becomes a dead letter without another attempt. From there it can be retried.", action: "Discard", submit: async () => {
    await call("Discard", { id });
    toast("It is a dead letter now");
    refresh();
  } });
}

function remove(id, job) {
  return confirm({ title: `Remove ${job.name}?`, body: `The job ${id} goes with its data, result, attempts and log. It cannot be brought back.`, action: "Remove", submit: async () => {
    const { data } = await call("RemoveJob", { id });
    toast(data.removed ? "The job is removed" : "It was not there any more");
    go(`/queues/${encodeURIComponent(job.queue)}`);
  } });
}

function editData(id, job, refresh) {
  if (isEncoded(job.data)) {
    toast(`The data is ${job.data.$encoded}: only a program with its codec can change it`, "bad");
    return null;
  }
  return ask({ title: `Data of ${job.name}`, action: "Save", fields: [{ name: "data", label: "As JSON", kind: "area", rows: 14, value: write(job.data, 2) }],
    submit: async ({ data }) => {
      await call("Update", { id, data: readJson(data, "data") ?? null });
      toast("The data is changed");
      refresh();
    } });
}

function editPriority(id, job, refresh) {
  return ask({ title: `Priority of ${job.name}`, action: "Save", fields: [{ name: "priority", label: "Priority", kind: "number", value: job.priority, required: true, hint: "a higher one goes first" }],
    submit: async ({ priority }) => {
      await call("ChangePriority", { id, priority });
      toast("The priority is changed");
      refresh();
    } });
}
