// The place of a job in its flow: its parent, its children, and what else it depends on.

import { call } from "../api.js";
import { badge, card, h } from "../dom.js";
import { num, plural, shortId } from "../format.js";

const entry = ({ id, state }) => h("li", {}, h("a", { href: `/jobs/${encodeURIComponent(id)}`, title: id }, shortId(id)), badge(state));

export function flowOf({ parent, children, depends, more }) {
  if (!parent && !children.length && !depends.length) return null;
  const done = children.filter(({ state }) => state === "completed").length;
  const all = more ? `the first ${children.length} of ${num(children.length + more)}` : children.length;
  return card("Parent and children", children.length ? h("span", { class: "muted" }, `${done} of ${all} children completed`) : null,
    h("div", { class: "flow" },
      parent ? [h("h3", {}, "Parent"), h("ul", {}, entry(parent))] : null,
      children.length ? [h("h3", {}, "Children"), h("ul", {}, children.map(entry), more ? h("li", { class: "muted" }, `and ${plural(more, "other")}`) : null)] : null,
      depends.length ? [h("h3", {}, "Depends on"), h("ul", {}, depends.map(entry))] : null));
}

const MOST = 30; // children that are shown, and other jobs that it depends on

/** Reads the jobs related to one repeatedly; completed jobs are read once. */
export function relatives() {
  const completed = new Set();
  return async (found, signal) => {
    const look = async (id) => {
      if (completed.has(id)) return { id, state: "completed" };
      const reply = await call("GetState", { id }, signal).catch(() => null);
      if (reply?.state === "completed") completed.add(id);
      return { id, state: reply?.state ?? "unknown" };
    };
    const some = (ids) => Promise.all(ids.slice(0, MOST).map(look));
    const children = found.childrenIds ?? [];
    const others = (found.dependsOn ?? []).filter((id) => !children.includes(id));
    const [parent, mine, depends] = await Promise.all([found.parentId ? look(found.parentId) : null, some(children), some(others)]);
    return { parent, children: mine, depends, more: Math.max(0, children.length - MOST) };
  };
}
