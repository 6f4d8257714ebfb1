// The bounds of a queue: how much may wait in it, how full it is, and how long finished jobs are kept.

import { call, may } from "../api.js";
import { ask } from "../dialogs.js";
import { badge, button, card, fill, h } from "../dom.js";
import { bytes, duration, num, plural } from "../format.js";

const HOUR_MS = 3_600_000;
const NEARLY = 0.8; // of the allowed number or size
const FULL = [["refuse", "pushes are refused"], ["drop-oldest", "the oldest jobs are dropped"]];

export function bounds(queue, changed) {
  const box = h("div", { class: "bounds" });
  let now = null;
  const edit = may("SetBounds") ? button("Set bounds", () => { if (now) change(queue, now, changed); }, "small") : null;

  async function refresh(signal) {
    const [{ config, space }, dead] = await Promise.all([call("GetBounds", { queue }, signal), call("GetDlqConfig", { queue }, signal)]);
    now = { ...config, deadAge: dead.config.maxAge, deadCount: dead.config.maxEntries };
    fill(box, filled("Waiting jobs", space.waiting, config.maxWaiting, num), filled("Their data", space.waitingBytes ?? 0, config.maxWaitingBytes, bytes),
      h("dl", { class: "facts" }, limited(config) ? fact("When it is full", FULL.find(([name]) => name === config.whenFull)[1], turned(space)) : fact("Waiting", `${plural(space.waiting, "job")}, any number may wait`),
        fact("Completed jobs are kept", kept(config)), fact("Dead letters are kept", `${now.deadAge === null ? "whatever their age" : `for ${duration(now.deadAge)}`}, ${now.deadCount ? `at most ${num(now.deadCount)}` : "any number"}`)));
  }
  return { element: card("Bounds", edit, box), refresh };
}

const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, value)];
const limited = (config) => config.maxWaiting !== null || config.maxWaitingBytes !== null;

/** How full the queue is by one of its bounds, or nothing without that bound. */
function filled(what, waiting, most, shown) {
  if (most === null) return null;
  const part = waiting / most;
  const share = `${shown(waiting)} of ${shown(most)}`;
  return h("div", { class: "fullness" }, h("div", {}, h("span", { class: "muted" }, what), h("span", {}, part >= 1 ? [badge("full", "failed"), " "] : part >= NEARLY ? [badge("nearly full", "waiting"), " "] : null, share)),
    h("meter", { min: 0, max: 1, low: NEARLY, high: 0.999, optimum: 0, value: Math.min(1, part), "aria-label": `${what}: ${share}` }));
}

function turned({ refused, dropped }) {
  const words = [refused ? `${num(refused)} refused` : "", dropped ? `${num(dropped)} dropped` : ""].filter(Boolean).join(", ");
  return words ? [" ", badge(words, "failed")] : null;
}

function kept({ keepAge, keepCount }) {
  const words = [keepAge ? `for ${duration(keepAge)}` : "", keepCount ? `at most ${num(keepCount)}` : ""].filter(Boolean).join(", ");
  return words || (keepAge === 0 || keepCount === 0 ? "without a limit" : "as the server says");
}

function change(queue, now, changed) {
  return ask({ title: `Bounds of ${queue}`, body: "Leave a field empty for no bound.", action: "Save", fields: [
    { name: "maxWaiting", label: "Jobs that may wait", kind: "number", min: 1, step: 1, value: now.maxWaiting },
    { name: "maxWaitingBytes", label: "Bytes of data that may wait", kind: "number", min: 1, step: 1, value: now.maxWaitingBytes },
    { name: "whenFull", label: "When it is full", kind: "choice", options: FULL, value: now.whenFull },
    { name: "hours", label: "Hours that completed jobs are kept", kind: "number", min: 0, value: now.keepAge === null ? null : now.keepAge / HOUR_MS, hint: "0: whatever their age; empty: as the server says" },
    { name: "keepCount", label: "Completed jobs that are kept", kind: "number", min: 0, step: 1, value: now.keepCount, hint: "0: any number; empty: as the server says" },
    { name: "deadHours", label: "Hours that dead letters are kept", kind: "number", min: 0, value: now.deadAge === null ? null : now.deadAge / HOUR_MS, hint: "empty: whatever their age" },
    { name: "deadCount", label: "Dead letters that are kept", kind: "number", min: 0, step: 1, value: now.deadCount, hint: "0: any number; empty: as the server says" },
  ], submit: async ({ maxWaiting, maxWaitingBytes, whenFull, hours, keepCount, deadHours, deadCount }) => {
    const keepAge = hours === undefined ? null : Math.round(hours * HOUR_MS);
    await call("SetBounds", { queue, config: { maxWaiting: maxWaiting ?? null, maxWaitingBytes: maxWaitingBytes ?? null, whenFull, keepAge, keepCount: keepCount ?? null } });
    const deadAge = deadHours === undefined ? null : Math.round(deadHours * HOUR_MS);
    const config = { ...(deadAge === now.deadAge ? {} : { maxAge: deadAge }), ...(deadCount === now.deadCount ? {} : { maxEntries: deadCount ?? null }) };
    if (Object.keys(config).length) await call("SetDlqConfig", { queue, config });
    changed();
  } });
}
