// Dead letters of one queue or of all: filtered by name, error, reason and date, retried or removed in bulk.

import { call, may } from "../api.js";
import { since } from "../clock.js";
import { attempt, confirm, toast } from "../dialogs.js";
import { badge, button, empty, fill, h, text } from "../dom.js";
import { num, plural } from "../format.js";
import { keepFresh } from "../live.js";
import { go, note as address } from "../router.js";
import { pager, table } from "../table.js";
import { droppedNote } from "./dropped.js";
import { errorGroups } from "./error-groups.js";
import { jobKey, jobLink } from "./job-link.js";

const SIZE = 50;
const EVERY_MS = 10_000;
const MAX_OFFERED = 500; // queues to choose from
const MAX_QUEUES = 20; // with dead letters that are shown together; those with the most
const REASONS = [["", "any reason"], ["max_attempts", "attempts used up"], ["unrecoverable", "unrecoverable"], ["never_on", "never retried on this error"], ["retry_on", "not retried on this error"], ["timeout", "timeout"], ["stalled", "stalled"], ["child_failed", "a child failed"], ["cancelled", "cancelled"], ["discarded", "discarded"], ["stuck", "stuck"], ["undone", "undone"]];
const WORDS = Object.fromEntries(REASONS);

/** The local start of a day, `later` days ahead: not every day has 24 hours. */
function midnight(day, later = 0) {
  const at = new Date(`${day}T00:00`);
  at.setDate(at.getDate() + later);
  return Number.isNaN(at.getTime()) ? undefined : at.getTime();
}

function filterOf(query) {
  const from = midnight(query.from);
  const filter = { name: query.name, error: query.error, errorGroup: query.group, reason: query.reason, newerThan: from && from - 1, olderThan: midnight(query.to, 1) };
  return Object.values(filter).some((value) => value !== undefined) ? filter : undefined;
}

/** The fields.  Call `update` with the queues that have dead letters.  Text that the user is typing stays. */
function form(query, chosen) {
  const field = (name, label, props) => h("label", {}, h("span", {}, label), h("input", { name, value: query[name] ?? "", autocomplete: "off", ...props }));
  const options = (pairs, value) => pairs.map(([key, word]) => h("option", { value: key, selected: key === value }, word));
  const select = (name, label, pairs, value) => h("label", {}, h("span", {}, label), h("select", { name }, options(pairs, value)));
  const element = h("form", { class: "filters", role: "search", "aria-label": "Filter" },
    select("queue", "Queue", [["", "all queues"], ...(chosen ? [[chosen, chosen]] : [])], chosen ?? ""), field("error", "Error has", { type: "search", placeholder: "text" }),
    field("name", "Job name", { type: "text" }), select("reason", "Reason", REASONS, query.reason ?? ""),
    field("from", "From", { type: "date" }), field("to", "To", { type: "date" }), h("button", { type: "submit", class: "button" }, "Filter"));
  const apply = () => {
    const { queue, ...rest } = Object.fromEntries(new FormData(element));
    const kept = new URLSearchParams(Object.entries(rest).filter(([, value]) => value));
    go(`/dlq${queue ? `/${encodeURIComponent(queue)}` : ""}${kept.size ? `?${kept}` : ""}`);
  };
  element.addEventListener("submit", (event) => { event.preventDefault(); apply(); });
  element.addEventListener("change", (event) => { if (event.target.matches("select, [type=date]")) apply(); });
  const box = element.elements.queue;
  return { element, update(queues) {
    if (box === document.activeElement) return;
    const names = queues.map(({ name, dlq: count }) => [name, `${name} (${count})`]);
    if (chosen && !names.some(([name]) => name === chosen)) names.unshift([chosen, chosen]);
    fill(box, options([["", "all queues"], ...names], chosen ?? ""));
  } };
}

export function dlq({ params, query, main, signal }) {
  const chosen = params.name, filter = filterOf(query), filters = form(query, chosen);
  let page = Math.max(0, Math.floor(Number(query.page))) || 0;
  const selected = new Map(); // id -> entry
  let queues = [], total = 0, drawn = "";
  const note = h("p", { class: "problem" }), bulk = h("div", { class: "actions" }), hidden = h("p", { class: "muted pad" }), dropped = droppedNote(chosen);
  const groups = errorGroups(chosen, () => done());
  const list = table({ columns: columns(), key: (entry) => jobKey(entry.job), label: "Dead letters",
    none: filter ? empty("Nothing matches this filter") : empty("No dead letters", "Jobs that used up their attempts wait here for a person.") });
  const pages = pager((to) => { page = to; address({ page: to || null }, { replace: false }); fresh.refresh(); });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Dead letters"), query.group ? h("a", { href: `/dlq${chosen ? `/${encodeURIComponent(chosen)}` : ""}` }, "of one group of errors: show all") : null, note, bulk), dropped.element, groups.element, filters.element, h("section", { class: "card flush" }, list.element, pages.element, hidden));

  function columns() {
    const tick = (entry) => entry.job.id && h("input", { type: "checkbox", "aria-label": `Select ${entry.job.id}`, checked: selected.has(entry.job.id), onchange: (event) => {
      if (event.target.checked) selected.set(entry.job.id, entry);
      else selected.delete(entry.job.id);
      drawBulk();
    } });
    return [...(may("RetryDlq") ? [{ name: "tick", title: "", class: "tick", cell: tick }] : []),
      { name: "id", title: "Job", class: "id", cell: ({ job }) => jobLink(job) },
      ...(chosen ? [] : [{ name: "queue", title: "Queue", class: "name", cell: ({ job }) => h("a", { href: `/queues/${encodeURIComponent(job.queue)}` }, job.queue) }]),
      { name: "name", title: "Name", class: "name", cell: ({ job }) => job.name },
      { name: "error", title: "Error", class: "wide preview", cell: ({ error }) => h("span", { class: "bad" }, (error || "").slice(0, 200)) },
      { name: "cause", title: "Reason", cell: ({ cause }) => badge(WORDS[cause] || cause) },
      { name: "attempts", title: "Attempts", class: "number", cell: ({ job }) => job.attempts || "" },
      { name: "when", title: "Died", class: "number", cell: ({ enteredAt }) => since(enteredAt) },
      { name: "until", title: "Kept until", class: "number", cell: ({ expiresAt }) => expiresAt === null ? "" : since(expiresAt) }];
  }

  function drawBulk() {
    const key = `${selected.size}/${total}`;
    if (!may("RetryDlq") || key === drawn) return;
    drawn = key;
    const some = [...selected.values()];
    fill(bulk, some.length
      ? [button(`Retry ${plural(some.length, "selected job")}`, () => retrySelected(some), "primary"), may("RemoveDlqJob") ? button(`Remove ${plural(some.length, "selected job")}`, () => removeSelected(some), "bad") : null]
      : total ? [button(filter ? `Retry all ${num(total)} that match` : `Retry all ${num(total)}`, retryAll, "primary"), filter || !may("PurgeDlq") ? null : button("Purge", purge, "bad")] : null);
  }

  const where = chosen ? `of ${chosen}` : "of all queues";
  const retrySelected = async (some) => {
    if (await attempt(() => each(some, ({ job }) => call("RetryDlq", { queue: job.queue, jobId: job.id })), `${plural(some.length, "job")} waits for another try`)) done();
  };
  const removeSelected = (some) => confirm({ title: `Remove ${plural(some.length, "dead letter")}?`, body: "The jobs go with their data and their history.", action: "Remove", submit: async () => {
    await each(some, ({ job }) => call("RemoveDlqJob", { queue: job.queue, jobId: job.id }));
    toast(`${plural(some.length, "dead letter")} removed`);
    done();
  } });
  const retryAll = () => confirm({ title: `Retry ${plural(total, "dead letter")}?`, body: `All ${filter ? "that match the filter " : ""}${where} go back to their queues, with all their attempts.${filter?.reason ? "" : " Cancelled ones stay: select them, or filter for them."}`, action: "Retry", danger: false, submit: async () => {
    const replies = await each(queues, (queue) => call("RetryDlq", { queue: queue.name, filter }));
    const spared = replies.reduce((sum, reply) => sum + (reply.cancelled ?? 0), 0);
    const lost = replies.reduce((sum, { dropped: found }) => sum + (found ? found.tooMany + found.tooOld : 0), 0);
    toast(`${plural(replies.reduce((sum, reply) => sum + reply.count, 0), "job")} back in the queue${spared ? `; ${num(spared)} cancelled left out` : ""}${lost ? `; ${num(lost)} had been dropped before` : ""}`);
    done();
  } });
  const purge = () => confirm({ title: `Purge ${plural(total, "dead letter")}?`, body: `All dead letters ${where} are removed. They cannot be brought back.`, action: "Purge", typed: chosen ?? "all queues", submit: async () => {
    const replies = await each(queues, (queue) => call("PurgeDlq", { queue: queue.name }));
    toast(`${plural(replies.reduce((sum, reply) => sum + reply.count, 0), "dead letter")} removed`);
    done();
  } });
  function done() { selected.clear(); fresh.refresh(); }

  async function refresh() {
    const known = (await call("DashboardQueues", {}, signal)).data.queues;
    dropped.update(known.filter((queue) => queue.dropped && (!chosen || queue.name === chosen)).map((queue) => queue.dropped));
    const all = known.filter((queue) => queue.dlq).sort((a, b) => b.dlq - a.dlq);
    filters.update(all.slice(0, MAX_OFFERED));
    await groups.refresh(signal);
    queues = chosen ? all.filter((queue) => queue.name === chosen) : all;
    const shown = queues.slice(0, chosen ? 1 : MAX_QUEUES);
    const counts = filter ? await each(queues, (queue) => call("CountDlq", { queue: queue.name, filter }, signal)) : queues.map((queue) => ({ count: queue.dlq }));
    total = counts.reduce((sum, { count }) => sum + count, 0);
    page = chosen ? Math.min(page, Math.max(0, Math.ceil(total / SIZE) - 1)) : 0; // entries were removed, or it is an old address
    const replies = await each(shown, (queue) => call("Dlq", { queue: queue.name, filter: { ...filter, limit: SIZE, offset: page * SIZE } }, signal));
    const entries = replies.flatMap((reply) => reply.entries).sort((a, b) => b.enteredAt - a.enteredAt).slice(0, SIZE);
    list.update(entries);
    for (const id of selected.keys()) if (!entries.some((entry) => entry.job.id === id)) selected.delete(id);
    drawBulk();
    if (chosen) pages.update({ page, size: SIZE, total, more: total > (page + 1) * SIZE });
    text(hidden, !chosen && total > entries.length ? `${entries.length} of ${num(total)} are shown: choose a queue to see all of its dead letters.` : "");
    hidden.hidden = !hidden.textContent;
  }
  const fresh = keepFresh({ every: EVERY_MS, filter: { event: ["failed", "retried"], queue: chosen }, signal, note, refresh });
}

/** One queue after the other: a million dead letters are enough work at a time. */
async function each(list, work) {
  const found = [];
  for (const entry of list) found.push(await work(entry));
  return found;
}
