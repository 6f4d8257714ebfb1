// The trail: who changed what, the newest first.

import { trail as found } from "../api.js";
import { badge, button, empty, fill, h } from "../dom.js";
import { num, time } from "../format.js";
import { keepFresh } from "../live.js";
import { setQuery } from "../router.js";
import { table } from "../table.js";
import { write } from "../numbers.js";

const SIZE = 50;
const EVERY_MS = 5000;
const DAY_MS = 86_400_000;
const SPANS = [["", "all that is kept"], ["1", "the last day"], ["7", "the last week"], ["30", "the last month"]];

const OVER = { tcp: "", http: "HTTP", ws: "WebSocket" };

const COLUMNS = [
  { name: "at", title: "Time", class: "id", cell: (entry) => time(entry.at) },
  { name: "who", title: "Who", class: "name", cell: (entry) => entry.who || h("span", { class: "none" }, "unknown") },
  { name: "from", title: "From", class: "id", cell: (entry) => h("span", { class: "muted" }, `${entry.address ?? ""} ${OVER[entry.over] ?? ""}`) },
  { name: "what", title: "What", cell: (entry) => entry.what },
  { name: "on", title: "On", class: "wide preview", cell: (entry) => h("span", {}, Object.entries(entry.on ?? {}).map(([name, value], place) => [place ? ", " : null, `${name} `, name === "queue" ? link(entry, value) : shown(value)])) },
  { name: "count", title: "Jobs", class: "number", cell: (entry) => (entry.count === undefined ? "" : num(entry.count)) },
  { name: "outcome", title: "Outcome", cell: (entry) => badge(entry.outcome, entry.outcome === "ok" ? "completed" : "failed") },
  { name: "request", title: "Request", class: "id", cell: (entry) => entry.request ?? "" },
];

/** A queue; in an entry of somebody in a namespace, the one of that namespace. */
function link(entry, value) {
  const name = entry.namespace ? `${entry.namespace}/${value}` : value;
  return h("a", { href: `/queues/${encodeURIComponent(name)}` }, name);
}

const shown = (value) => (typeof value === "object" ? write(value) : String(value)).slice(0, 120);

export function trail({ query, main, signal }) {
  const note = h("p", { class: "problem" });
  const list = table({ columns: COLUMNS, key: (entry) => entry.key, label: "Entries", none: empty("No entries", "What changes queues or the server is kept here, and what was refused; adding and running jobs is not.") });
  const field = (name, label, hint) => h("input", { type: "search", id: `trail-${name}`, value: query[name] ?? "", placeholder: hint, "aria-label": label,
    onchange: (event) => setQuery({ [name]: event.target.value.trim(), cursor: null }) });
  const span = h("select", { "aria-label": "How far back", onchange: () => setQuery({ days: span.value, cursor: null }) },
    SPANS.map(([value, label]) => h("option", { value, selected: value === (query.days ?? "") }, label)));
  let next = null;
  const older = button("Older", () => { if (next) setQuery({ cursor: next }, { replace: false }); }, "small");
  const newest = button("Newest", () => setQuery({ cursor: null }, { replace: false }), "small");
  const pages = h("nav", { class: "pager", "aria-label": "Pages", hidden: true }, newest, h("span"), older);
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Trail"), note),
    h("section", { class: "card flush" }, h("div", { class: "card-head filters" }, field("who", "Only of this identity or address", "Who"), field("what", "Only with these words: a command, a queue, an id", "What"), span), list.element, pages));

  keepFresh({ every: EVERY_MS, signal, note, refresh: async () => {
    const since = SPANS.some(([value]) => value && value === query.days) ? Date.now() - Number(query.days) * DAY_MS : 0;
    const { entries, cursor } = await found({ who: query.who, what: (query.what ?? "").split(/\s+/).filter(Boolean), since, cursor: query.cursor, limit: SIZE }, signal);
    const seen = new Map(); // entries have no ids: the same one twice gets numbers
    const rows = entries.map((entry) => {
      const key = write(entry);
      seen.set(key, (seen.get(key) ?? 0) + 1);
      return { ...entry, key: `${key}#${seen.get(key)}` };
    });
    list.update(rows.reverse());
    next = cursor ?? null;
    older.disabled = !next;
    newest.disabled = !query.cursor;
    pages.hidden = !next && !query.cursor;
  } });
}
