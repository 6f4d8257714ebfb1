// Flows with named jobs, and batches, in alphabetical order: all, those of a queue, or those with a prefix.

import { call } from "../api.js";
import { since } from "../clock.js";
import { badge, button, empty, fill, h, text } from "../dom.js";
import { num, plural } from "../format.js";
import { keepFresh } from "../live.js";
import { note as noted, setQuery } from "../router.js";
import { table } from "../table.js";

const SIZE = 50;
const EVERY_MS = 8000;

const sum = (counts) => Object.values(counts).reduce((all, count) => all + count, 0);
const done = ({ counts, more }) => `${num(counts.completed ?? 0)} of ${more ? "more than " : ""}${num(sum(counts))} completed`;
const dead = ({ counts }) => { const count = (counts.failed ?? 0) + (counts.cancelled ?? 0); return count ? h("span", { class: "bad" }, `${num(count)} failed`) : ""; };
const COLUMNS = [
  { name: "id", title: "Flow", class: "name", cell: ({ id }) => h("a", { href: `/flows/${encodeURIComponent(id)}`, title: id }, id) },
  { name: "state", title: "State", cell: ({ state }) => (state ? badge(state, state === "running" ? "active" : state) : h("span", { class: "none" }, "–")) },
  { name: "batch", title: "", cell: ({ open }) => (open === null ? "" : `batch, ${open ? "open" : "closed"}`) },
  { name: "done", title: "Jobs", class: "number", cell: done },
  { name: "dead", title: "", class: "number", cell: dead },
  { name: "created", title: "Added", class: "number", cell: ({ createdAt }) => since(createdAt) },
];

function form(query) {
  const element = h("form", { class: "filters", role: "search", "aria-label": "Search" },
    h("label", { class: "grow" }, h("span", {}, "Begins with"), h("input", { type: "search", name: "prefix", value: query.prefix ?? "", placeholder: "order-", autocomplete: "off", spellcheck: "false" })),
    h("label", {}, h("span", {}, "Queue"), h("input", { type: "text", name: "queue", value: query.queue ?? "", placeholder: "any", autocomplete: "off", spellcheck: "false" })),
    h("button", { type: "submit", class: "button primary" }, "Search"));
  element.addEventListener("submit", (event) => {
    event.preventDefault();
    const found = Object.fromEntries(new FormData(element));
    setQuery({ prefix: found.prefix.trim(), queue: found.queue.trim(), after: null, page: null });
  });
  return element;
}

export function flows({ query, main, signal }) {
  let page = Math.max(0, Math.floor(Number(query.page))) || 0, begin = query.after || undefined, following;
  const note = h("p", { class: "problem", role: "alert" });
  const list = table({ columns: COLUMNS, key: ({ id }) => id, label: "Flows", none: query.prefix || query.queue ? empty("No flow meets these conditions")
    : empty("No flows yet", "Jobs that wait for each other under names: ", h("code", {}, "flows.add_graph({...})"), ", or a batch.") });
  const turn = (to, after) => { [page, begin] = [to, after]; noted({ page: to || null, after }, { replace: false }); fresh.refresh(); };
  const first = button("First page", () => { if (page) turn(0); }, "small");
  const where = h("span"), next = button("Next", () => { if (following) turn(page + 1, following); }, "small");
  const pages = h("nav", { class: "pager", "aria-label": "Pages", hidden: true }, first, where, next);
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Flows"), note), form(query), h("section", { class: "card flush" }, list.element, pages));

  async function find() {
    const found = [];
    let after = begin;
    do { // a page may be short: the server checks a limited number of ids at a time
      const { data } = await call("ListFlows", { prefix: query.prefix || undefined, queue: query.queue || undefined, after, limit: SIZE - found.length }, signal);
      found.push(...data.flows);
      after = data.cursor ?? undefined;
    } while (after && found.length < SIZE);
    return { found, after };
  }

  const fresh = keepFresh({ every: EVERY_MS, signal, note, refresh: async () => {
    const { found, after } = await find();
    list.update(found);
    following = after;
    pages.hidden = !page && !following;
    first.ariaDisabled = String(!page);
    next.ariaDisabled = String(!following);
    text(where, found.length ? `${num(page * SIZE + 1)}–${num(page * SIZE + found.length)}` : plural(0, "flow"));
  } });
}
