// Circuit breakers: those of one queue with all actions, or all that are not closed.

import { call, may } from "../api.js";
import { since } from "../clock.js";
import { ask, attempt, confirm } from "../dialogs.js";
import { badge, button, card, empty, h } from "../dom.js";
import { duration, num, percent } from "../format.js";
import { table } from "../table.js";

const TONES = { open: "failed", "half-open": "delayed", closed: "completed" };
const of = (breaker) => ({ queue: breaker.queue, name: breaker.name ?? undefined });
const whose = (breaker) => (breaker.name === null ? "all jobs" : breaker.name);

function opens({ failures, rate, window: within, errors }) {
  const when = rate === null ? `${num(failures)} failures in a row` : `${percent(rate, 1)} of the attempts in ${duration(within)} failed, and at least ${num(failures)}`;
  return errors?.length ? `${when}: ${errors.join(", ")}` : when;
}

function state(breaker) {
  const until = breaker.state === "open" && breaker.until ? [" ", since(breaker.until, "tries again ")] : null;
  return [badge(breaker.state, TONES[breaker.state]), until];
}

const COLUMNS = [
  { name: "name", title: "Jobs", class: "name", cell: whose },
  { name: "state", title: "State", cell: state },
  { name: "error", title: "Because of", class: "wide preview", cell: (breaker) => (breaker.error && breaker.state !== "closed" ? h("span", { class: "bad", title: breaker.error }, breaker.error.slice(0, 160)) : "") },
  { name: "opens", title: "Opens after", cell: (breaker) => opens(breaker.config) },
  { name: "opened", title: "Times opened", class: "number", cell: (breaker) => num(breaker.opened) },
];

function settings(queue, changed, breaker) {
  const now = breaker?.config ?? { failures: 5, rate: null, window: 60_000, pause: 30_000, maxPause: 600_000, trials: 1, errors: [] };
  return ask({ title: `Circuit breaker of ${queue}`, body: "Jobs rest when too many of them fail, and try again by themselves.", action: "Save", fields: [
    breaker ? null : { name: "job", label: "Name of the jobs", hint: "Empty: all jobs of the queue." },
    { name: "failures", label: "Failures in a row", kind: "number", min: 1, step: 1, value: now.failures, required: true },
    { name: "rate", label: "Or the part that fails", kind: "number", min: 0, step: "any", value: now.rate, hint: "0.5 is one half; empty: only failures in a row count." },
    { name: "window", label: "in so many ms", kind: "number", min: 1, value: now.window, required: true },
    { name: "pause", label: "Pause in ms", kind: "number", min: 1, value: now.pause, required: true },
    { name: "maxPause", label: "Longest pause in ms", kind: "number", min: 1, value: now.maxPause, required: true },
    { name: "trials", label: "Jobs let through to try", kind: "number", min: 1, step: 1, value: now.trials, required: true },
    { name: "errors", label: "Classes of errors that count", value: now.errors.join(", "), hint: "With commas between; empty: all." },
  ].filter(Boolean), submit: async ({ job, rate, errors, ...config }) => {
    const classes = (errors ?? "").split(",").map((each) => each.trim()).filter(Boolean);
    await call("SetBreaker", { queue, name: breaker?.name ?? job, config: { ...config, rate: rate ?? null, errors: classes } });
    changed();
  } });
}

function trip(breaker, changed) {
  return ask({ title: `Open the breaker of ${whose(breaker)}`, body: "No other job starts until it is tried again, or you close it.", action: "Open", fields: [
    { name: "pause", label: "For so many ms", kind: "number", min: 1, value: breaker.config.pause },
    { name: "reason", label: "Reason" },
  ], submit: async (given) => { await call("TripBreaker", { ...of(breaker), ...given }); changed(); } });
}

const remove = (breaker, changed) => confirm({ title: `Remove the breaker of ${whose(breaker)}?`, body: "What it holds back runs.", action: "Remove",
  submit: async () => { await call("ClearBreaker", of(breaker)); changed(); } });

function actions(breaker, changed) {
  const close = () => attempt(async () => { await call("ResetBreaker", of(breaker)); changed(); });
  return h("span", { class: "row-actions" },
    breaker.state === "closed" ? button("Open", () => trip(breaker, changed), "small") : button("Close", close, "small"),
    button("Change", () => settings(breaker.queue, changed, breaker), "small"), button("Remove", () => remove(breaker, changed), "small"));
}

/** The breakers of a queue. */
export function breakers(queue, changed) {
  const list = table({ columns: may("SetBreaker") ? [...COLUMNS, { name: "do", title: "", class: "number", cell: (breaker) => actions(breaker, changed) }] : COLUMNS,
    key: (breaker) => breaker.name ?? "", label: "Circuit breakers", none: empty("No circuit breaker", "Jobs run, however many of them fail.") });
  const extra = may("SetBreaker") ? button("Add", () => settings(queue, changed), "small") : null;
  return { element: h("section", { class: "card flush" }, h("div", { class: "card-head" }, h("h2", {}, "Circuit breakers"), extra), list.element),
    async refresh(signal) { list.update((await call("ListBreakers", { queue }, signal)).breakers); } };
}

/** The breakers of all queues that hold jobs back; empty without any. */
export function openBreakers() {
  const where = { name: "queue", title: "Queue", class: "name", cell: (breaker) => h("a", { href: `/queues/${encodeURIComponent(breaker.queue)}` }, breaker.queue) };
  const list = table({ columns: [where, ...COLUMNS], key: (breaker) => `${breaker.queue}/${breaker.name ?? ""}`, label: "Open circuit breakers", none: empty("None") });
  const element = card("Open circuit breakers", null, list.element);
  element.hidden = true;
  return { element, async refresh(signal) {
    const found = (await call("ListBreakers", {}, signal)).breakers.filter((breaker) => breaker.state !== "closed");
    element.hidden = !found.length;
    list.update(found);
  } };
}
