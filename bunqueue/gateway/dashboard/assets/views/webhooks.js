// Webhooks: the receivers, the results of their deliveries, and a test delivery.

import { call, may, Refused, testWebhook } from "../api.js";
import { since } from "../clock.js";
import { ask, attempt, confirm, toast } from "../dialogs.js";
import { badge, button, empty, fill, h, text } from "../dom.js";
import { num, plural } from "../format.js";
import { keepFresh } from "../live.js";
import { table } from "../table.js";

const EVERY_MS = 5000;
const EVENTS = ["job.pushed", "job.started", "job.completed", "job.failed", "job.progress", "error.returned"];

export function webhooks({ main, signal }) {
  const note = h("p", { class: "problem" });
  const count = h("span", { class: "muted" });
  const again = () => fresh.refresh();
  const list = table({ columns: columns(again), key: (hook) => hook.id, label: "Webhooks",
    none: empty("No webhooks", "A webhook is a URL of yours that the server calls when something happens to jobs.") });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Webhooks"), note,
    h("div", { class: "actions" }, may("AddWebhook") ? button("Add webhook", () => addHook(again), "primary") : null)),
  h("section", { class: "card flush" }, h("div", { class: "card-head" }, count), list.element));
  const fresh = keepFresh({ every: EVERY_MS, signal, note, refresh: async () => {
    const { webhooks: found } = (await call("ListWebhooks", {}, signal)).data;
    text(count, plural(found.length, "webhook"));
    list.update(found);
  } });
}

function columns(again) {
  const flip = async (hook) => { if (await attempt(() => call("SetWebhookEnabled", { id: hook.id, enabled: !hook.enabled }), hook.enabled ? "It is switched off" : "It is switched on")) again(); };
  return [
    { name: "url", title: "URL", class: "name wide", cell: (hook) => [h("span", { class: "url" }, hook.url), hook.lastError ? h("p", { class: "error" }, hook.lastError) : null] },
    { name: "state", title: "State", cell: (hook) => badge(hook.enabled ? "on" : "off") },
    { name: "events", title: "Events", cell: (hook) => hook.events.join(", ") },
    { name: "queue", title: "Queue", cell: (hook) => (hook.queue ? h("a", { href: `/queues/${encodeURIComponent(hook.queue)}` }, hook.queue) : h("span", { class: "muted" }, "all")) },
    { name: "ok", title: "Delivered", class: "number", cell: (hook) => num(hook.successCount ?? 0) },
    { name: "bad", title: "Failed", class: "number", cell: (hook) => (hook.failureCount ? h("span", { class: "bad" }, num(hook.failureCount)) : h("span", { class: "none" }, "0")) },
    { name: "last", title: "Last", class: "number", cell: (hook) => (hook.lastTriggered ? since(hook.lastTriggered) : h("span", { class: "none" }, "never")) },
    { name: "do", title: "", class: "number", cell: (hook) => (may("SetWebhookEnabled") ? h("span", { class: "row-actions" }, button("Test", () => test(hook), "small"),
      button(hook.enabled ? "Switch off" : "Switch on", () => flip(hook), "small"), button("Delete", () => remove(hook, again), "small bad")) : "") },
  ];
}

async function test(hook) {
  await attempt(async () => {
    const { data } = await testWebhook(hook.id);
    if (!data.delivered) throw new Refused(`The test was not delivered: ${data.error ?? `the receiver answered ${data.status}`}`);
    toast(`The test was delivered: status ${data.status}`);
  });
}

function remove(hook, again) {
  return confirm({ title: "Delete this webhook?", body: `${hook.url} is told nothing any more, of what is on its way neither.`, action: "Delete", submit: async () => {
    await call("RemoveWebhook", { webhookId: hook.id });
    toast("The webhook is deleted");
    again();
  } });
}

function addHook(again) {
  return ask({ title: "Add a webhook", action: "Add webhook", fields: [
    { name: "url", label: "URL", kind: "url", required: true, hint: "https://…" },
    ...EVENTS.map((name) => ({ name, label: name, kind: "check", value: name === "job.failed" })),
    { name: "queue", label: "Queue", hint: "all unless set" },
    { name: "secret", label: "Secret", hint: "signs what is sent" },
  ], submit: async ({ url, queue, secret, ...chosen }) => {
    await call("AddWebhook", { url, queue, secret, events: EVENTS.filter((name) => chosen[name]) });
    toast("The webhook is added");
    again();
  } });
}
