// The place of a job in its flow: its parent, its children, and what else it depends on.

import { badge, card, h } from "../dom.js";
import { plural, shortId } from "../format.js";

const entry = ({ id, state }) => h("li", {}, h("a", { href: `/jobs/${encodeURIComponent(id)}`, title: id }, shortId(id)), badge(state));

export function flowOf({ parent, children, depends, more }) {
  if (!parent && !children.length && !depends.length) return null;
  const done = children.filter(({ state }) => state === "completed").length;
  return card("Flow", children.length ? h("span", { class: "muted" }, `${done} of ${children.length + more} children completed`) : null,
    h("div", { class: "flow" },
      parent ? [h("h3", {}, "Parent"), h("ul", {}, entry(parent))] : null,
      children.length ? [h("h3", {}, "Children"), h("ul", {}, children.map(entry), more ? h("li", { class: "muted" }, `and ${plural(more, "other")}`) : null)] : null,
      depends.length ? [h("h3", {}, "Depends on"), h("ul", {}, depends.map(entry))] : null));
}
