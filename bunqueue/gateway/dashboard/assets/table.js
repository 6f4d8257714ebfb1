// Tables that persist: a refresh changes only the rows that differ, so focus, selection and scroll position survive.

import { button, empty, fill, h, skeleton, text } from "./dom.js";
import { num } from "./format.js";

/**
 * Columns: {name, title, cell(row) -> node or text, class, sort(row) -> value}.
 * Options: key(row), none (an element for no rows), label, sorted ([column, descending]), onsort.
 */
export function table({ columns, key, none, label, onsort, sorted }) {
  const known = new Map(); // key -> {row element, its content}
  const head = h("tr", {}, columns.map((column) => header(column)));
  const body = h("tbody");
  const element = h("div", { class: "table-wrap" },
    h("table", { "aria-label": label }, h("thead", {}, head), body));
  const holder = h("div", {}, skeleton(5));
  body.addEventListener("keydown", walk);

  function header(column) {
    const props = { class: column.class, scope: "col" };
    if (!onsort || !column.sort) return h("th", props, column.title ?? "");
    const direction = sorted?.[0] === column.name ? (sorted[1] ? "descending" : "ascending") : null;
    return h("th", { ...props, "aria-sort": direction },
      h("button", { type: "button", class: "plain sort", onclick: () => onsort(column.name) }, column.title));
  }

  function update(rows) {
    if (!rows.length) {
      known.clear();
      body.replaceChildren();
      if (holder.firstChild !== none) fill(holder, none || empty("Nothing here"));
      return;
    }
    if (holder.firstChild !== element) fill(holder, element);
    const held = body.contains(document.activeElement) ? document.activeElement : null;
    const ids = rows.map(key), there = new Set(ids);
    for (const [id, entry] of known) if (!there.has(id)) { entry.element.remove(); known.delete(id); }
    let before = body.firstChild;
    rows.forEach((row, place) => {
      const id = ids[place];
      const entry = known.get(id) || { element: h("tr"), shows: "" };
      known.set(id, entry);
      draw(entry, row);
      if (entry.element === before) before = before.nextSibling;
      else body.insertBefore(entry.element, before);
    });
    if (held?.isConnected && document.activeElement === document.body) held.focus({ preventScroll: true }); // its row has moved
  }

  function draw(entry, row) {
    const cells = columns.map((column) => h("td", { class: column.class, "data-title": column.title || null }, column.cell(row)));
    const shows = cells.map((cell) => cell.outerHTML).join("");
    if (shows === entry.shows) return;
    const old = entry.element.children;
    entry.shows = shows;
    cells.forEach((cell, place) => {
      if (!old[place]) entry.element.append(cell);
      else if (old[place].outerHTML !== cell.outerHTML) exchange(old[place], cell);
    });
  }

  function resort(now) {
    sorted = now;
    const place = [...head.children].findIndex((cell) => cell.contains(document.activeElement));
    fill(head, columns.map((column) => header(column)));
    head.children[place]?.querySelector("button")?.focus();
  }

  return { element: holder, update, resort };
}

/** Replace a cell, and keep the focus. */
function exchange(old, cell) {
  const able = "a, button, input";
  const place = [...old.querySelectorAll(able)].indexOf(document.activeElement);
  old.replaceWith(cell);
  if (place >= 0) cell.querySelectorAll(able)[place]?.focus({ preventScroll: true });
}

/** Arrow keys move from row to row within the column. */
function walk(event) {
  const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
  const row = event.target.closest("tr");
  if (!step || !row || event.target.matches("input[type=text], textarea, select") || event.ctrlKey || event.metaKey) return;
  const next = step > 0 ? row.nextElementSibling : row.previousElementSibling;
  const place = [...row.children].findIndex((cell) => cell.contains(event.target));
  const wanted = next?.children[place]?.querySelector("a, button, input") || next?.querySelector("a, button, input");
  if (wanted) { event.preventDefault(); wanted.focus(); }
}

/** Next and previous.  They exist as long as the view, so they keep the focus.  Pages count from 0. */
export function pager(onpage) {
  let page = 0;
  const turn = (step, label) => button(label, (event) => { if (event.currentTarget.ariaDisabled !== "true") onpage(page + step); }, "small");
  const previous = turn(-1, "Previous"), next = turn(1, "Next"), where = h("span");
  const element = h("nav", { class: "pager", "aria-label": "Pages", hidden: true }, previous, where, next);
  return { element, update({ page: now, more, total, size }) {
    page = now;
    element.hidden = !page && !more;
    previous.ariaDisabled = String(page === 0);
    next.ariaDisabled = String(!more);
    const first = page * size + 1;
    text(where, `${num(first)}–${num(Math.min(total, first + size - 1))} of ${num(total)}`);
  } };
}
