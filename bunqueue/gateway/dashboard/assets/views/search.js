// Search: jobs of one queue or of all, by conditions.  The address contains the whole search, so it can be shared.

import { call, explain, mayToAll } from "../api.js";
import { button, empty, fill, h, text } from "../dom.js";
import { num, plural } from "../format.js";
import { menu } from "../menu.js";
import { go, note as noted } from "../router.js";
import { table } from "../table.js";
import { COLUMNS, QUEUE, SHOWN_BYTES } from "./job-columns.js";
import { jobKey } from "./job-link.js";
import { ACTIONS, changeAll } from "./search-actions.js";

const SIZE = 50;
const MAX_OFFERED = 500; // queues to choose from
const SHOWN = [COLUMNS[0], QUEUE, ...COLUMNS.slice(1)];
const EXAMPLES = ["state = failed and finished > 1h ago", "name = welcome and data.order.id = 7", "tag in (vip, eu) and error ~ timeout"];
const CONDITION = /^(?:state|queue|name|tag|group|worker|workflow|error_type|error|created|finished|priority|attempts|data\b\S*)\s*(?:!?=|~|<|>|in\b)/;

/** The address of a search, if the user has typed conditions; undefined if it is not a search. */
export const searchOf = (wanted) => (CONDITION.test(wanted) ? address(wanted) : undefined);
const address = (q, queue = "", order = "") => `/search?${new URLSearchParams(Object.entries({ q, queue, order }).filter(([, value]) => value))}`;

/** The fields.  A choice searches at once. */
function form(query, signal) {
  const queues = h("select", { name: "queue" }), options = (names) => fill(queues, h("option", { value: "" }, "all queues"), names.map((name) => h("option", { value: name, selected: name === query.queue }, name)));
  options(query.queue ? [query.queue] : []);
  const order = h("select", { name: "order" }, ["newest", "oldest"].map((word) => h("option", { value: word === "newest" ? "" : word, selected: word === query.order }, `${word} first`)));
  const element = h("form", { class: "filters", role: "search", "aria-label": "Search" },
    h("label", { class: "grow" }, h("span", {}, "Conditions"), h("input", { type: "search", name: "q", value: query.q ?? "", placeholder: EXAMPLES[0], autocomplete: "off", spellcheck: "false" })),
    h("label", {}, h("span", {}, "Queue"), queues), h("label", {}, h("span", {}, "Order"), order), h("button", { type: "submit", class: "button primary" }, "Search"));
  const apply = () => { const found = Object.fromEntries(new FormData(element)); go(address(found.q.trim(), found.queue, found.order)); };
  element.addEventListener("submit", (event) => { event.preventDefault(); apply(); });
  element.addEventListener("change", (event) => { if (event.target.matches("select")) apply(); });
  call("DashboardQueues", {}, signal).then(({ data }) => {
    const names = data.queues.map(({ name }) => name).sort().slice(0, MAX_OFFERED);
    if (query.queue && !names.includes(query.queue)) names.unshift(query.queue);
    options(names);
  }, () => {}); // the search itself reports the error
  return element;
}

export function search({ query, main, signal }) {
  const wanted = { queue: query.queue || undefined, where: query.q || undefined };
  let page = Math.max(0, Math.floor(Number(query.page))) || 0, begin = query.cursor || undefined, following;
  const note = h("p", { class: "problem", role: "alert" }), status = h("p", { class: "muted pad", role: "status" });
  const list = table({ columns: wanted.queue ? COLUMNS : SHOWN, key: jobKey, label: "Jobs found",
    none: empty("No job meets these conditions", "Try ", EXAMPLES.flatMap((each, place) => [place ? ", or " : "", h("a", { href: address(each) }, h("code", {}, each))])) });
  const turn = (to, cursor) => { [page, begin] = [to, cursor]; noted({ page: to || null, cursor }, { replace: false }); run(); };
  const first = button("First page", () => { if (page) turn(0); }, "small");
  const where = h("span"), next = button("Next", () => { if (following) turn(page + 1, following); }, "small");
  const pages = h("nav", { class: "pager", "aria-label": "Pages", hidden: true }, first, where, next);
  const known = wanted.queue || wanted.where; // otherwise an action would apply to all jobs
  const allowed = ACTIONS.filter(({ action }) => mayToAll(action));
  const actions = allowed.length && known ? menu("Change all that match", "search-menu", allowed.map((each) => [`${each.verb}…`, () => changeAll(each, wanted, run), each.danger ? "bad" : ""])) : null;
  const offered = h("div", { class: "actions" }, actions), answer = h("section", { class: "card flush" }, list.element, status, pages);
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Search"), note, offered),
    form(query, signal), answer);

  async function run() {
    const found = [];
    let broken = false;
    text(note, "");
    let cursor = begin, scanned = 0, plan, unreadable = 0;
    try {
      do { // an answer may have few jobs or none: the server checks a limited number at a time
        const reply = await call("FindJobs", { ...wanted, cursor, limit: SIZE - found.length, asc: query.order === "oldest", dataLimit: SHOWN_BYTES }, signal);
        found.push(...reply.jobs);
        cursor = reply.cursor ?? undefined;
        plan ??= reply.plan;
        scanned += reply.progress.scanned;
        unreadable += reply.progress.unreadable ?? 0;
        if (cursor && found.length < SIZE) text(status, `Looked at ${num(scanned)} of at most ${num(Math.max(plan.jobs, scanned))} jobs: no index leads to these`);
      } while (cursor && found.length < SIZE);
    } catch (error) {
      if (signal.aborted) return;
      text(note, explain(error));
      broken = true;
      cursor = undefined;
    }
    list.update(found);
    offered.hidden = answer.hidden = broken && !found.length; // nobody knows whether there are some
    text(status, unreadable ? `${plural(unreadable, "job")} stand in a damaged part of the file and could not be read` : "");
    status.hidden = !status.textContent;
    following = cursor;
    pages.hidden = !page && !following;
    first.ariaDisabled = String(!page);
    next.ariaDisabled = String(!following);
    text(where, found.length ? `${num(page * SIZE + 1)}–${num(page * SIZE + found.length)}` : "");
  }
  run();
}
