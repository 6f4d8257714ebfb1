// One queue: its jobs by state, page by page, and its actions.

import { call } from "../api.js";
import { minuteBars } from "../charts.js";
import { card, empty, fill, h, text } from "../dom.js";
import { compact } from "../format.js";
import { keepFresh } from "../live.js";
import { note as address } from "../router.js";
import { pager, table } from "../table.js";
import { breakers } from "./breakers.js";
import { droppedNote } from "./dropped.js";
import { errorGroups } from "./error-groups.js";
import { COLUMNS, SHOWN_BYTES } from "./job-columns.js";
import { jobKey } from "./job-link.js";
import { queueActions } from "./queue-actions.js";
import { limits } from "./queue-limits.js";
import { pausedBadge } from "./by-whom.js";

const SIZE = 50;
const EVERY_MS = 8000;
const STATES = [["", "All"], ["waiting", "Waiting"], ["prioritized", "Prioritized"], ["paused", "Paused"], ["active", "Active"], ["delayed", "Delayed"],
  ["waiting-children", "Waits for jobs"], ["waiting-signal", "Waits for a signal"], ["completed", "Completed, kept"], ["failed", "Dead letters"]];

function tabs(state) {
  const counts = Object.fromEntries(STATES.map(([name]) => [name, h("span", { class: "count" })]));
  const links = STATES.map(([name, label]) => h("a", { href: `?${name ? `state=${name}` : ""}`, "aria-current": name === state ? "page" : null, "data-state": name, id: `tab-${name}` }, label, " ", counts[name]));
  return { element: h("nav", { class: "tabs", "aria-label": "States" }, links), update(found) {
    const all = Object.values(found).reduce((sum, count) => sum + count, 0);
    STATES.forEach(([name], place) => {
      const count = name ? found[name] || 0 : all;
      text(counts[name], compact(count));
      links[place].hidden = !count && name !== state && ["prioritized", "paused", "waiting-children", "waiting-signal"].includes(name);
    });
  } };
}

export function queue({ params, query, main, signal }) {
  const { name } = params;
  const state = STATES.some(([key]) => key === query.state) ? query.state : "", group = query.group || "";
  let page = Math.max(0, Math.floor(Number(query.page))) || 0, oldest = query.order === "oldest", wasPaused = null;
  const status = h("span");
  const note = h("p", { class: "problem" });
  const actions = h("div", { class: "actions" });
  const dropped = droppedNote(name);
  const strip = tabs(state);
  const bars = h("div", { class: "plot" });
  const pages = pager((to) => { page = to; address({ page: to || null }, { replace: false }); fresh.refresh(); });
  const word = STATES.find(([key]) => key === state)?.[1].toLowerCase();
  const list = table({ columns: COLUMNS, key: jobKey, label: `Jobs of ${name}`,
    none: group ? empty("The group has no unfinished jobs", "Finished jobs are found by their state.") : state ? empty(`No ${word === "dead letters" ? word : `${word} jobs`}`) : empty("This queue has no jobs", "Add one, or look whether its name is right.") });
  const order = h("select", { "aria-label": "Order", onchange: () => {
    [page, oldest] = [0, order.value === "oldest"];
    address({ order: oldest ? "oldest" : null, page: null });
    fresh.refresh();
  } },
    h("option", { value: "newest", selected: !oldest }, "newest first"), h("option", { value: "oldest", selected: oldest }, "oldest first"));
  const errors = errorGroups(name, () => fresh.refresh());
  const extra = [limits(name, () => fresh.refresh()), breakers(name, () => fresh.refresh())];
  fill(main, h("p", { class: "crumbs" }, h("a", { href: "/" }, "Queues"), group ? [" / ", h("a", { href: `/queues/${encodeURIComponent(name)}` }, name), ` / group ${group}`] : null),
    h("div", { class: "page-head" }, h("h1", {}, name, " ", status), note, actions), dropped.element,
    errors.element, card("Finished jobs in the last hour", h("span", { class: "muted" }, "a minute"), bars),
    h("section", { class: "card flush" }, h("div", { class: "card-head tabbed" }, group ? h("h2", {}, `Unfinished jobs of the group ${group}`) : [strip.element, h("a", { class: "aside", href: `/search?queue=${encodeURIComponent(name)}` }, "Search"), h("a", { class: "aside", href: `/flows?queue=${encodeURIComponent(name)}` }, "Flows"), order]), list.element, pages.element), extra.map((part) => part.element));
  const drawActions = queueActions(name, actions, () => fresh.refresh());

  async function refresh() {
    const [counts, jobs, paused, done, failed, dead] = await Promise.all([
      call("GetJobCounts", { queue: name }, signal),
      group ? call("GetGroupJobs", { queue: name, groupId: group, limit: SIZE + 1, offset: page * SIZE, dataLimit: SHOWN_BYTES }, signal)
        : call("GetJobs", { queue: name, state: state || undefined, limit: SIZE, offset: page * SIZE, asc: oldest, dataLimit: SHOWN_BYTES }, signal),
      call("IsPaused", { queue: name }, signal),
      call("Metrics", { queue: name, type: "completed" }, signal),
      call("Metrics", { queue: name, type: "failed" }, signal),
      call("GetDlqConfig", { queue: name }, signal)]);
    dropped.update([dead.dropped], counts.counts.failed, dead.config.maxEntries);
    strip.update(counts.counts);
    if (paused.paused !== wasPaused) fill(status, paused.paused ? pausedBadge(name) : null);
    wasPaused = paused.paused;
    drawActions(counts.counts, paused.paused);
    const total = group ? page * SIZE + jobs.jobs.length // they are not counted: one more than a page shows whether there is another page
      : state ? counts.counts[state] : Object.values(counts.counts).reduce((sum, count) => sum + count, 0);
    const last = Math.max(0, Math.ceil(total / SIZE) - 1);
    if (page > last && !jobs.jobs.length) { // jobs were removed, or it is an old address: show the last page
      page = last;
      address({ page: page || null });
      return await refresh();
    }
    const shown = jobs.jobs.slice(0, SIZE);
    list.update(shown);
    pages.update({ page, size: SIZE, total: Math.max(total, page * SIZE + jobs.jobs.length), more: shown.length === SIZE && total > (page + 1) * SIZE });
    fill(bars, minuteBars(done.data.data, failed.data.data));
    await Promise.all([errors, ...extra].map((part) => part.refresh(signal)));
  }
  const fresh = keepFresh({ every: EVERY_MS, filter: { queue: name }, signal, note, refresh });
}
