// What fails, in groups of errors that are alike: how many, since when, how fast, an example; retried, removed, muted, watched.

import { call, may } from "../api.js";
import { since } from "../clock.js";
import { attempt, confirm, toast } from "../dialogs.js";
import { badge, button, card, empty, h, text } from "../dom.js";
import { compact, num, outcomeOf, plural, rate } from "../format.js";
import { table } from "../table.js";
import { jobLink } from "./job-link.js";

const SHOWN = 12;
const OTHER = "other";
const keyOf = (group) => `${group.queue}/${group.id}`;
const letters = (group) => `/dlq/${encodeURIComponent(group.queue)}?group=${group.id}`;

/** One line: the class, unless the text begins with it, and the shape of the text. */
export function shapeOf(group) {
  if (group.id === OTHER) return "other errors, of too many kinds";
  const kind = (group.errorType ?? "").split(".").pop(), said = group.pattern || "(no text)";
  return !kind || said.startsWith(kind) ? said : `${kind}: ${said}`;
}

const counts = (found) => Object.entries(found).sort((a, b) => b[1] - a[1]).map(([name, count]) => `${name} (${num(count)})`).join(", ");

function details(group) {
  const { example } = group;
  const rows = [["Class", group.errorType], ["How", counts(Object.fromEntries(Object.entries(group.outcomes).map(([outcome, count]) => [outcomeOf(outcome), count])))], ["Names", counts(group.names)], ["Workers", counts(group.workers)], ["Versions", counts(group.versions)],
    ["Failed for good", num(group.dead)], ["Muted", group.muted && since(group.muted)], ["Watched", group.watched && since(group.watched)], ["Resolved", group.resolved && since(group.resolved)], ["Came back", group.returned && since(group.returned)]];
  return [h("dl", { class: "facts" }, rows.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    example ? [h("p", {}, "Attempt ", num(example.attempt), " of ", jobLink({ id: example.jobId }), ` (${example.name}), `, since(example.at)), h("pre", { class: "code" }, example.stack || example.error || "(no text)")] : null];
}

/** The groups of a queue, or of all queues; `changed` is called after an action. */
export function errorGroups(queue, changed) {
  const opened = new Set();
  const element = card("Errors", null);
  const more = h("p", { class: "muted pad" });
  const list = table({ columns: columns(), key: keyOf, label: "Groups of errors", none: empty("Nothing has failed") });
  element.classList.add("flush");
  element.append(list.element, more);
  element.hidden = true;

  function columns() {
    return [
      { name: "error", title: "Error", class: "wide", cell: (group) => h("details", { open: opened.has(keyOf(group)), ontoggle: (event) => opened[event.target.open ? "add" : "delete"](keyOf(group)) },
        h("summary", {}, h("span", { class: "bad" }, shapeOf(group)), " ", group.muted ? badge("muted", "paused") : null, group.watched ? badge("watched", "active") : null, group.resolved ? badge("resolved", "completed") : null),
        h("div", { class: "detail" }, details(group))) },
      ...(queue ? [] : [{ name: "queue", title: "Queue", class: "name", cell: (group) => h("a", { href: `/queues/${encodeURIComponent(group.queue)}` }, group.queue) }]),
      { name: "kept", title: "Dead letters", class: "number", cell: (group) => (group.kept ? h("a", { class: "bad", href: letters(group) }, compact(group.kept)) : "0") },
      { name: "failures", title: "Failures", class: "number", cell: (group) => compact(group.failures) },
      { name: "rate", title: "/ min", class: "number", cell: (group) => rate(group.perMinute) },
      { name: "first", title: "Since", class: "number", cell: (group) => since(group.first) },
      { name: "last", title: "Last", class: "number", cell: (group) => since(group.last) },
      ...(may("SetErrorGroup") ? [{ name: "actions", title: "", class: "number", cell: (group) => h("span", { class: "actions" }, actions(group)) }] : []),
    ];
  }

  const set = (group, changes, said) => async () => {
    if (await attempt(() => call("SetErrorGroup", { queue: group.queue, group: group.id, ...changes }), said)) changed();
  };
  function actions(group) {
    const which = { queue: group.queue, filter: { errorGroup: group.id } };
    const retry = () => confirm({ title: `Retry ${plural(group.kept, "dead letter")}?`, body: `${shapeOf(group)}: they go back to ${group.queue}, with all their attempts.`, action: "Retry", danger: false, submit: async () => {
      toast(`${plural((await call("RetryDlq", which)).count, "job")} back in the queue`);
      changed();
    } });
    const remove = () => confirm({ title: `Remove ${plural(group.kept, "dead letter")}?`, body: `${shapeOf(group)}: the jobs go with their data and their history.`, action: "Remove", submit: async () => {
      toast(`${plural((await call("PurgeDlq", which)).count, "dead letter")} removed`);
      changed();
    } });
    return [group.kept ? [button("Retry these", retry, "primary"), may("PurgeDlq") ? button("Remove these", remove, "bad") : null] : null,
      group.muted ? button("Unmute", set(group, { muted: false }, "it raises alerts again")) : button("Mute", set(group, { muted: true }, "it raises no alert")),
      group.watched ? button("Unwatch", set(group, { watched: false }, "its return is not reported")) : button("Watch", set(group, { watched: true }, "its return will be reported"))];
  }

  return { element, async refresh(signal) {
    const { groups, total } = (await call("ListErrors", { queue: queue || undefined, limit: SHOWN }, signal)).data;
    groups.sort((a, b) => b.kept - a.kept || b.failures - a.failures || (keyOf(a) < keyOf(b) ? -1 : 1));
    const shown = groups.slice(0, SHOWN);
    element.hidden = !shown.length;
    list.update(shown);
    text(more, total > shown.length ? `${shown.length} of ${num(total)} groups are shown: bunqueue errors list` : "");
    more.hidden = !more.textContent;
  } };
}
