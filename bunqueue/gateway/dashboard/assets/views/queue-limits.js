// The limits of a queue, and its groups with theirs.

import { call, may } from "../api.js";
import { ask, attempt } from "../dialogs.js";
import { badge, button, card, empty, fill, h } from "../dom.js";
import { duration, num, plural } from "../format.js";
import { pager, table } from "../table.js";
import { bounds } from "./queue-bounds.js";

const SIZE = 25;

export function limits(queue, changed) {
  const box = h("dl", { class: "facts" });
  const count = h("span", { class: "muted" });
  const pages = pager((to) => { page = to; changed(); });
  let page = 0, now = {};
  const edit = may("RateLimit") ? button("Change", () => change(queue, now, changed), "small") : null;
  const groups = table({ columns: columns(queue, changed), key: (group) => group.id, label: "Groups",
    none: empty("No groups", "Jobs with a groupId share limits.") });
  const bounded = bounds(queue, changed);
  const element = h("div", { class: "columns" }, h("div", {}, card("Limits", edit, box), bounded.element),
    h("section", { class: "card flush" }, h("div", { class: "card-head" }, h("h2", {}, "Groups"), count), groups.element, pages.element));

  async function refresh(signal) {
    const [found, usual, list] = await Promise.all([call("GetQueueLimits", { queue }, signal), call("GetGroupDefaults", { queue }, signal), call("ListGroups", { queue, limit: SIZE, offset: page * SIZE }, signal)]);
    now = { ...found.data.limits, groups: usual.config };
    const rate = now.rateLimit;
    fill(box, fact("Rate", rate ? `${num(rate.max)} jobs in ${duration(rate.duration)}` : "no limit"),
      fact("Active at a time", now.concurrencyLimit === null ? "any number" : `at most ${num(now.concurrencyLimit)}`, now.maxed ? badge("reached") : null),
      fact("Active of a group", usual.config.concurrency === null ? "any number" : `at most ${num(usual.config.concurrency)}`),
      fact("Rate of a group", usual.config.max === null ? "no limit" : `${num(usual.config.max)} jobs in ${duration(usual.config.duration)}`));
    count.textContent = list.data.total ? plural(list.data.total, "group") : "";
    groups.update(list.data.groups);
    pages.update({ page, size: SIZE, total: list.data.total, more: list.data.total > (page + 1) * SIZE });
    await bounded.refresh(signal);
  }
  return { element, refresh };
}

const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, value)];

function change(queue, now, changed) {
  return ask({ title: `Limits of ${queue}`, body: "Leave a field empty for no limit. To let no job start, pause the queue.", action: "Save", fields: [
    { name: "rate", label: "Jobs", kind: "number", min: 1, step: 1, value: now.rateLimit?.max },
    { name: "duration", label: "in so many ms", kind: "number", min: 1, value: now.rateLimit?.duration ?? 1000 },
    { name: "most", label: "Active at a time", kind: "number", min: 1, step: 1, value: now.concurrencyLimit },
    { name: "groupMost", label: "Active of each group", kind: "number", min: 1, step: 1, value: now.groups.concurrency },
    { name: "groupRate", label: "Jobs of each group", kind: "number", min: 1, step: 1, value: now.groups.max },
    { name: "groupWithin", label: "in so many ms", kind: "number", min: 1, value: now.groups.duration },
  ], submit: async ({ rate, duration: within, most, groupMost, groupRate, groupWithin }) => {
    if (rate === undefined) await call("RateLimitClear", { queue });
    else await call("RateLimit", { queue, limit: rate, duration: within });
    if (most === undefined) await call("ClearConcurrency", { queue });
    else await call("SetConcurrency", { queue, limit: most });
    const config = { concurrency: groupMost ?? null, max: groupRate ?? null, duration: groupWithin ?? now.groups.duration };
    if (Object.keys(config).some((name) => config[name] !== now.groups[name])) await call("SetGroupDefaults", { queue, config });
    changed();
  } });
}

function columns(queue, changed) {
  const act = (name, group, fields = {}) => attempt(async () => { await call(name, { queue, groupId: group.id, ...fields }); changed(); });
  return [
    { name: "id", title: "Group", class: "name", cell: (group) => [h("a", { href: `?group=${encodeURIComponent(group.id)}` }, group.id), group.paused ? [" ", badge("paused")] : null] },
    { name: "waiting", title: "Queued", class: "number", cell: (group) => num(group.waiting) },
    { name: "active", title: "Active", class: "number", cell: (group) => (group.concurrency ? `${num(group.active)} of ${num(group.concurrency)}` : num(group.active)) },
    { name: "rate", title: "Rate", class: "number", cell: (group) => (group.max === null ? h("span", { class: "none" }, "–") : `${num(group.max)} in ${duration(group.duration)}`) },
    { name: "weight", title: "Weight", class: "number", cell: (group) => num(group.weight ?? 1) },
    { name: "do", title: "", class: "number", cell: (group) => (may("PauseGroup") ? h("span", { class: "row-actions" },
      button(group.paused ? "Resume" : "Pause", () => act(group.paused ? "ResumeGroup" : "PauseGroup", group), "small"),
      button("Limits", () => groupLimits(queue, group, changed), "small")) : "") },
  ];
}

function groupLimits(queue, group, changed) {
  const of = { queue, groupId: group.id };
  return ask({ title: `Limits of the group ${group.id}`, body: "Leave a field empty for no limit.", action: "Save", fields: [
    { name: "most", label: "Active at a time", kind: "number", min: 1, value: group.concurrency },
    { name: "max", label: "Jobs", kind: "number", min: 1, value: group.max },
    { name: "duration", label: "in so many ms", kind: "number", min: 1, value: group.duration ?? 1000 },
    { name: "weight", label: "Weight", kind: "number", min: 1, step: 1, value: group.weight, hint: "How many turns for each one of a group without a weight." },
  ], submit: async ({ most, max, duration: within, weight }) => {
    if (most === undefined) await call("RemoveGroupConcurrency", of);
    else await call("SetGroupConcurrency", { ...of, concurrency: most });
    if (max === undefined) await call("RemoveGroupRateLimit", of);
    else await call("SetGroupRateLimit", { ...of, max, duration: within });
    if (weight === undefined) await call("RemoveGroupWeight", of);
    else await call("SetGroupWeight", { ...of, weight });
    changed();
  } });
}
