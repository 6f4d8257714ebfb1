// Functions that apps have declared: what jobs they run, with which options, and a form to add one.

import { call, may } from "../api.js";
import { since } from "../clock.js";
import { ask, attempt, confirm, readJson, toast } from "../dialogs.js";
import { badge, button, empty, fill, h, text } from "../dom.js";
import { num, plural } from "../format.js";
import { keepFresh } from "../live.js";
import { write } from "../numbers.js";
import { note as address } from "../router.js";
import { pager, table } from "../table.js";
import { formOf } from "./schema-form.js";

const EVERY_MS = 8000;
const SIZE = 50;
const INVALID = { accept: "are added, and fail when they run", warn: "are added with a warning", refuse: "are refused" };
const keyOf = (each) => `${each.queue}/${each.name}`;

export function functions({ query, main, signal }) {
  const note = h("p", { class: "problem" });
  const count = h("span", { class: "muted" });
  const pages = pager((to) => turn(to, wanted));
  const opened = new Set();
  let found = [], page = Math.max(0, Math.floor(Number(query.page))) || 0, wanted = query.find ?? "";
  function turn(to, word) {
    [page, wanted] = [to, word];
    address({ page: to || null, find: word });
    draw();
  }
  const search = h("input", { type: "search", placeholder: "Find a function", "aria-label": "Find a function", value: wanted, oninput: () => turn(0, search.value) });
  const list = table({ columns: columns(opened, () => fresh.refresh()), key: keyOf, label: "Functions",
    none: empty("No app has declared functions", "An app declares them when it starts, or without a worker: ", h("code", {}, "bunqueue function declare tasks:app")) });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Functions"), note),
    h("section", { class: "card flush" }, h("div", { class: "card-head" }, count, search), list.element, pages.element));

  function draw() {
    const some = found.filter((each) => `${each.name} ${each.queue} ${each.app} ${each.aliases.join(" ")}`.toLowerCase().includes(wanted.toLowerCase()));
    text(count, plural(some.length, "function"));
    page = Math.min(page, Math.max(0, Math.ceil(some.length / SIZE) - 1));
    list.update(some.slice(page * SIZE, (page + 1) * SIZE));
    pages.update({ page, size: SIZE, total: some.length, more: some.length > (page + 1) * SIZE });
  }
  const fresh = keepFresh({ every: EVERY_MS, signal, note, refresh: async () => {
    found = (await call("ListFunctions", {}, signal)).functions.sort((a, b) => (a.queue + a.name < b.queue + b.name ? -1 : 1));
    draw();
  } });
}

const options = (each) => Object.entries(each.options).map(([name, value]) => `${name} ${typeof value === "object" ? write(value) : value}`).join(", ");

function details(each) {
  const rows = [["Arguments", each.arguments], ["Options", options(each) || "the server's defaults"], ["Other names", each.aliases.join(", ")],
    ["Declared by", each.by], ["Revision", num(each.revision)], ["Last changed", since(each.changed)], ["Left out", each.retired && since(each.retired)],
    ["Invalid jobs", INVALID[each.invalidJobs]]];
  return [each.description ? h("p", { class: "prose" }, each.description) : null,
    h("dl", { class: "facts" }, rows.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))];
}

function columns(opened, refresh) {
  const toggle = (each) => (event) => opened[event.target.open ? "add" : "delete"](keyOf(each));
  return [
    { name: "name", title: "Function", class: "wide", cell: (each) => h("details", { open: opened.has(keyOf(each)), ontoggle: toggle(each) },
      h("summary", {}, h("strong", {}, each.name), each.retired ? [" ", badge("left out", "paused")] : null, " ", h("span", { class: "muted" }, each.description.split("\n")[0])),
      h("div", { class: "detail" }, details(each))) },
    { name: "queue", title: "Queue", class: "name", cell: (each) => h("a", { href: `/queues/${encodeURIComponent(each.queue)}` }, each.queue) },
    { name: "app", title: "App", cell: (each) => [each.app || h("span", { class: "none" }, "–"), each.version ? h("span", { class: "muted" }, ` ${each.version}`) : null] },
    { name: "declared", title: "Declared", class: "number", cell: (each) => since(each.declared) },
    ...(may("PUSH") || may("RemoveFunction") ? [{ name: "do", title: "", class: "number", cell: (each) => h("span", { class: "row-actions" },
      may("PUSH") ? button("Add a job", () => addJob(each, refresh), "small") : null, may("RemoveFunction") ? button("Forget", () => forget(each, refresh), "small bad") : null) }] : []),
  ];
}

/** Ask for the arguments of a function, and add a job with them. */
async function addJob({ queue, name }, refresh) {
  let found;
  if (!await attempt(async () => { found = (await call("GetFunction", { queue, name })).function; })) return;
  const form = formOf(found.schema), area = { name: "data", label: "Data, as JSON", kind: "area", value: "{}", hint: found.arguments };
  const fields = [...(form ? form.fields : found.schema && !Object.keys(found.schema.properties ?? { some: true }).length ? [] : [area]),
    { name: "delay", label: "Delay, ms", kind: "number", min: 0 }];
  await ask({ title: `Add ${name} to ${queue}`, body: found.description.split("\n")[0] || null, action: "Add job", fields, submit: async (values) => {
    const data = form ? form.data(values) : readJson(values.data ?? "{}", "data");
    const { id, existing, warnings } = await call("PUSH", { queue, name, data, delay: values.delay });
    const link = h("a", { href: `/jobs/${encodeURIComponent(id)}` }, id);
    if (warnings) toast(h("span", {}, `Added, but ${warnings[0]}: `, link), "bad");
    else toast(h("span", {}, existing ? "There already: " : "Added ", link));
    refresh();
  } });
}

const forget = ({ queue, name }, refresh) => confirm({ title: `Forget ${name}?`, action: "Forget", body: "Its options no longer apply to new jobs. Its app declares it again when it starts.", submit: async () => {
  await call("RemoveFunction", { queue, name });
  refresh();
} });
