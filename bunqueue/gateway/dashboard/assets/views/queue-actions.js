// The actions for a queue.  Destructive ones name what they destroy and how many, and ask first.

import { call, may } from "../api.js";
import { ask, attempt, confirm, readJson, toast } from "../dialogs.js";
import { button, fill, h } from "../dom.js";
import { num, plural } from "../format.js";
import { menu } from "../menu.js";
import { go } from "../router.js";

const CLEANED = [["completed", "Completed"], ["failed", "Dead letters"], ["waiting", "Waiting"], ["delayed", "Delayed"]];

/** Draws the buttons.  Returns a function to call with newer counts. */
export function queueActions(queue, box, refresh) {
  let counts = {}, paused = null;
  const then = async (work, done) => { if (await attempt(work, done)) refresh(); };
  const pause = button("Pause", () => then(() => call(paused ? "Resume" : "Pause", { queue }), () => (paused ? `${queue} goes on` : `${queue} is paused`)));
  const more = [
    ["PromoteJobs", "Run delayed jobs now", () => then(() => call("PromoteJobs", { queue }), (reply) => `${plural(reply.count, "job")} may run now`)],
    ["Clean", "Clean…", () => clean(queue, refresh)],
    ["Drain", "Drain…", () => drain(queue, counts, refresh)],
    ["Obliterate", "Obliterate…", () => obliterate(queue, counts), "bad"]].filter(([command]) => may(command)).map(([, ...entry]) => entry);
  fill(box, may("PUSH") ? button("Add job", () => addJob(queue, refresh), "primary") : null, may("Pause") ? pause : null, more.length ? menu("More", "queue-menu", more) : null);
  return (found, isPaused) => {
    counts = found;
    paused = isPaused;
    pause.textContent = paused ? "Resume" : "Pause";
  };
}

const CONFLICTS = [["keep", "keep the job that is there"], ["replace", "replace it while it waits"], ["reject", "refuse this one"], ["supersede", "cancel it, then run this one"]];

const span = (hours) => (hours === undefined ? undefined : Math.round(hours * 3_600_000));

function addJob(queue, refresh) {
  return ask({ title: `Add a job to ${queue}`, action: "Add job", fields: [
    { name: "name", label: "Name", value: "default" },
    { name: "data", label: "Data, as JSON", kind: "area", value: "{}" },
    { name: "priority", label: "Priority", kind: "number", hint: "a higher one goes first" },
    { name: "delay", label: "Delay, ms", kind: "number" },
    { name: "maxAttempts", label: "Attempts", kind: "number", hint: "3 unless set" },
    { name: "groupId", label: "Group" },
    { name: "uniqueKey", label: "Unique key" },
    { name: "onConflict", label: "If the key is taken", kind: "choice", options: CONFLICTS },
    { name: "keepCompleted", label: "Kept when completed, hours", kind: "number", min: 0, hint: "as the queue says unless set" },
    { name: "keepFailed", label: "Kept as a dead letter, hours", kind: "number", min: 0, hint: "as the queue says unless set" },
  ], submit: async ({ data, onConflict, keepCompleted, keepFailed, ...rest }) => {
    const dedup = rest.uniqueKey === undefined ? undefined : { onConflict };
    const { id, existing, conflict } = await call("PUSH", { queue, data: readJson(data, "data"), ...rest, dedup, keepCompleted: span(keepCompleted), keepFailed: span(keepFailed) });
    const said = existing ? "There already: " : conflict ? `Added (another one was ${conflict.action}): ` : "Added ";
    toast(h("span", {}, said, h("a", { href: `/jobs/${encodeURIComponent(id)}` }, id)));
    refresh();
  } });
}

function clean(queue, refresh) {
  return ask({ title: `Clean ${queue}`, body: "Removes jobs of one state, the oldest first. They cannot be brought back.", action: "Remove jobs", danger: true, fields: [
    { name: "state", label: "State", kind: "choice", options: CLEANED },
    { name: "hours", label: "Older than, hours", kind: "number", value: 24, min: 0, required: true },
    { name: "limit", label: "At most", kind: "number", value: 1000, min: 1, required: true },
  ], submit: async ({ state, hours, limit }) => {
    const { count } = await call("Clean", { queue, state, grace: hours * 3_600_000, limit });
    toast(`${plural(count, "job")} removed`);
    refresh();
  } });
}

function drain(queue, counts, refresh) {
  const count = ["waiting", "prioritized", "paused", "delayed"].reduce((sum, state) => sum + (counts[state] || 0), 0);
  return confirm({ title: `Drain ${queue}?`, body: `${plural(count, "waiting or delayed job")} will be removed. What is active goes on; what has finished stays.`, action: "Drain", submit: async () => {
    const reply = await call("Drain", { queue });
    toast(`${plural(reply.count, "job")} removed`);
    refresh();
  } });
}

function obliterate(queue, counts) {
  const count = Object.values(counts).reduce((sum, each) => sum + each, 0);
  return confirm({ title: `Obliterate ${queue}?`, body: `The queue goes with everything in it: ${num(count)} jobs in all states, their results and logs, its limits and settings. Nothing of it can be brought back.`,
    typed: queue, action: "Obliterate", submit: async () => {
      await call("Obliterate", { queue });
      toast(`${queue} is gone`);
      go("/");
    } });
}
