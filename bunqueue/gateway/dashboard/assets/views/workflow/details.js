// One step of a workflow: its times, its outcome, its result, and the actions for it.

import { since } from "../../clock.js";
import { explain, may } from "../../api.js";
import { badge, button, fill, h, skeleton } from "../../dom.js";
import { bytes, duration, moment, num, shortId } from "../../format.js";
import { json } from "../../json.js";
import { canRetryFrom, retryFrom, signal, stored } from "./actions.js";
import { isOpen } from "./shape.js";

const LOADED = 256 << 10; // bytes of a result that are shown at once

const when = (at) => h("time", {}, moment(at));
export const toneOf = (step) => (step.status === "timed-out" ? "failed" : step.status);

function facts(step) {
  const ran = step.endedAt === null ? null : duration(step.endedAt - step.startedAt);
  const rows = [["State", badge(step.status, toneOf(step))], ["Kind", step.kind === "step" ? null : step.kind], ["Began", when(step.startedAt)], ["Ended", step.endedAt === null ? null : when(step.endedAt)],
    ["Took", ran], [step.kind === "step" ? "Next attempt" : "Until", isOpen(step) && step.until !== null ? [since(step.until), ", at ", when(step.until)] : null],
    ["Attempts", step.attempts > 1 ? num(step.attempts) : null], ["Worker", step.worker], ["Signal", step.signal === step.name ? null : step.signal], ["Key", step.key],
    ["Job", step.child === null ? null : h("a", { href: `/jobs/${encodeURIComponent(step.child)}`, title: step.child }, shortId(step.child))],
    ["Queue", step.childQueue === null ? null : h("a", { href: `/queues/${encodeURIComponent(step.childQueue)}` }, step.childQueue)],
    ["Undo", step.undo ? "it can be undone" : null], ["Result", step.size ? bytes(step.size) : null]];
  return h("dl", { class: "facts" }, rows.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** `update(step, job, steps)`; the result of the step is requested when it has ended. */
export function details(refresh) {
  const head = h("div"), value = h("div", { class: "value" });
  let shown = "", asked = "";

  function update(step, job, steps) {
    const now = JSON.stringify([step, job.state]);
    if (now === shown) return;
    shown = now;
    fill(head, facts(step), step.error ? h("p", { class: "error" }, step.error) : null, h("div", { class: "row-actions" },
      step.kind === "signal" && isOpen(step) && may("SendSignal") ? button("Send the signal", () => signal(job.id, step, refresh), "small primary") : null,
      step.kind !== "undo" && canRetryFrom(job.state) ? button("Retry from here", () => retryFrom(job.id, step, steps, refresh), "small") : null));
    load(step, job);
  }

  async function load(step, job) {
    const wanted = `${step.number} ${step.status} ${step.endedAt} ${step.size}`;
    if (wanted === asked) return;
    asked = wanted;
    if (isOpen(step) && step.kind !== "step") { fill(value); return; }
    if (step.size > LOADED) { fill(value, h("p", { class: "muted" }, `Its result of ${bytes(step.size)} is too large to be shown.`)); return; }
    fill(value, skeleton(1));
    try {
      const found = await stored(job.queue, job.id, step.name);
      if (wanted !== asked) return;
      fill(value, found?.result === undefined || !step.size ? null : [h("h3", {}, "Result"), json(found.result, `Result of ${step.name}`)],
        found?.cursor === undefined ? null : [h("h3", {}, "Cursor"), json(found.cursor, `Cursor of ${step.name}`)]);
    } catch (error) {
      fill(value, h("p", { class: "problem" }, explain(error)));
    }
  }

  return { element: h("div", { class: "step-details" }, head, value), update };
}
