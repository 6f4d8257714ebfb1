// One job: its data, the outcome of every attempt, and why it waits.

import { call } from "../api.js";
import { since } from "../clock.js";
import { badge, card, empty, fill, h, skeleton, text } from "../dom.js";
import { bytes, duration, moment, num, outcomeOf, plural, relative, shortId, time } from "../format.js";
import { json } from "../json.js";
import { keepFresh } from "../live.js";
import { byWhom } from "./by-whom.js";
import { flowGraph } from "./job-flow-graph.js";
import { wordOf } from "./job-columns.js";
import { flowOf, relatives } from "./job-relatives.js";
import { jobActions } from "./job-actions.js";
import { kept, stateOf, steps, stuck, waitsOf } from "./workflow/steps.js";

const EVERY_MS = 10_000;
const FINISHED = ["completed", "failed", "cancelled", "stuck"];

/** Change an element only when its content differs, so open details and selections stay. */
function part(make) {
  const element = h("div", { class: "part" });
  let last = "";
  return { element, update(...values) {
    const now = JSON.stringify(values) ?? "";
    if (now === last) return;
    last = now;
    fill(element, make(...values));
  } };
}

function waiting(reasons) {
  if (!reasons.length) return null;
  return h("section", { class: "why", "aria-label": "Why it is waiting" }, h("h2", {}, reasons[0].kind === "turn" ? "Ready to run" : "Why it is waiting"),
    h("ul", {}, reasons.map((reason) => h("li", { "data-kind": reason.kind }, sentence(reason),
      reason.ids.length ? h("span", { class: "ids" }, reason.ids.slice(0, 10).map((id) => [" ", h("a", { href: `/jobs/${encodeURIComponent(id)}`, title: id }, shortId(id))]), reason.ids.length > 10 ? " …" : null) : null))));
}

function sentence({ text: words, until }) {
  const start = words.charAt(0).toUpperCase() + words.slice(1);
  return until === null ? start : [start, ": ", since(until), `, at ${time(until)}`];
}

/** A workflow that is undone runs once more: that is no attempt of the user's code. */
const isUndo = ({ errorType }) => /(^|\.)Undone$/.test(errorType ?? "");

/** The finished attempts, the last first, after the one that runs. */
function attempts(list, last) {
  if (!list.length && !last) return empty("It has not been tried yet");
  return h("ol", { class: "attempts" }, last ? current(last) : null, [...list].reverse().map((attempt, place) => h("li", {},
    h("div", { class: "attempt-head" }, h("b", {}, isUndo(attempt) ? "Undo" : `Attempt ${attempt.number}`), isUndo(attempt) ? badge("undone", "paused") : badge(outcomeOf(attempt.outcome), attempt.outcome === "completed" ? "completed" : "failed"),
      h("span", { class: "muted" }, [attempt.startedAt ? `ran ${duration(attempt.endedAt - attempt.startedAt)}, ` : "", "ended ", h("time", { title: moment(attempt.endedAt) }, time(attempt.endedAt)), attempt.worker ? ` on ${attempt.worker}` : "", attempt.delay === null ? "" : `, next after ${duration(attempt.delay)}`])),
    attempt.error && !isUndo(attempt) ? h("p", { class: "error", title: attempt.errorType ?? "" }, attempt.error) : null,
    attempt.stack && !isUndo(attempt) ? h("details", { open: place === 0 }, h("summary", {}, "Stack"), h("pre", { tabindex: "0" }, attempt.stack)) : null)));
}

function current({ number, startedAt }) {
  return h("li", {}, h("div", { class: "attempt-head" }, h("b", {}, `Attempt ${number}`), badge("active"), h("span", { class: "muted" }, [since(startedAt, "began ")])));
}

/** The running attempt, if there is one.  Its number follows the earlier ones; interrupted attempts do not count. */
function attemptOf({ state, attempts: failed, startedAt }, before) {
  const last = before[before.length - 1];
  const number = last ? last.number + (last.outcome === "interrupted" ? 0 : 1) : failed + 1;
  return state === "active" && startedAt ? { number, startedAt } : null;
}

function logs({ logs: lines, count }) {
  if (!lines.length) return empty("Nothing was logged");
  return [h("ol", { class: "logs" }, lines.map((line) => h("li", { "data-level": line.level },
    h("time", { title: moment(line.timestamp) }, time(line.timestamp)), h("span", { class: "level" }, line.level), h("span", { title: line.attempt ? `During attempt ${line.attempt}` : "" }, line.attempt > 1 ? `#${line.attempt} ` : "", line.message)))),
  count > lines.length ? h("p", { class: "muted" }, `The last ${num(lines.length)} of ${num(count)} lines.`) : null];
}

const isRevived = (entry, before) => entry.state === "waiting" && entry.attempt === undefined && ["failed", "completed", "cancelled", "stuck"].includes(before?.state);

function timeline(moments, { id, queue }) {
  return h("ol", { class: "timeline" }, moments.map((entry, place) => {
    const before = place ? moments[place - 1].timestamp : null;
    const whom = isRevived(entry, moments[place - 1]) ? byWhom("revived", { queue, job: id, at: entry.timestamp }) : null;
    return h("li", { "data-state": entry.state }, h("b", {}, entry.state, whom), h("time", { title: moment(entry.timestamp) }, time(entry.timestamp)),
      before === null ? null : h("span", { class: "muted" }, `after ${duration(entry.timestamp - before)}`), entry.error ? h("p", { class: "error" }, entry.error.slice(0, 200)) : null);
  }));
}

function facts(found) {
  const ran = found.startedAt && found.completedAt ? duration(found.completedAt - found.startedAt) : null;
  const rows = [["Queue", h("a", { href: `/queues/${encodeURIComponent(found.queue)}` }, found.queue)], ["Attempts", `${plural(found.attempts, "failure")}, ${num(found.maxAttempts)} allowed`],
    ["Priority", found.priority || null], ["Added", when(found.createdAt)], ["Added by", found.addedBy], ["Due", found.runAt > found.createdAt ? when(found.runAt) : null],
    ["Scheduled by", found.schedule ? h("a", { href: `/cron?find=${encodeURIComponent(found.schedule)}` }, found.schedule) : null], ["Scheduled for", found.scheduledFor ? when(found.scheduledFor) : null],
    ["Started", found.startedAt ? when(found.startedAt) : null], ["Completed", found.completedAt ? when(found.completedAt) : null], ["Took", ran],
    ["Group", found.groupId], ["Unique key", found.uniqueKey], ["Custom id", found.customId], ["Backoff", backoff(found)],
    ["Retried after", found.retryOn?.join(", ")], ["Never retried after", found.neverOn?.join(", ")],
    ["If it fails for good", found.onDead ? `${found.onDead.name} is added to ${found.onDead.queue}` : null],
    ["Added for", found.cause ? [h("a", { href: `/jobs/${encodeURIComponent(found.cause.id)}` }, `${found.cause.name} ${shortId(found.cause.id)}`), `, which failed for good: ${found.cause.error ?? found.cause.reason}`] : null],
    ["Timeout", found.timeout ? duration(found.timeout) : null], ["Expires", found.ttl ? when(found.createdAt + found.ttl) : null], ["Kept", retention(found)], ["Tags", found.tags?.length ? found.tags.join(", ") : null],
    ["Order", found.lifo ? "last in, first out" : null], ["Stalled", found.stallCount ? `${found.stallCount} times` : null],
    ["Repeats", found.repeat ? JSON.stringify(found.repeat) : null]];
  return h("dl", { class: "facts" }, rows.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** How long the job is kept after it has finished, in words. */
function retention({ keepCompleted, keepFailed, removeOnComplete, removeOnFail }) {
  const said = (age, removed, when) => (removed ? `not at all ${when}` : age ? `${duration(age)} ${when}` : null);
  return [said(keepCompleted, removeOnComplete, "when it has completed"), said(keepFailed, removeOnFail, "as a dead letter")].filter(Boolean).join(", ") || null;
}

/** The wait before a retry, in words. */
function backoff({ backoff: delay, backoffConfig: config }) {
  const waits = [...(config?.delays ?? []).map((each) => duration(each)), duration(delay), config?.type ?? "exponential"].join(", ");
  return waits + (config?.maxDelay ? `, at most ${duration(config.maxDelay)}` : "") + (config?.retryAfter ? ", or as the error says" : "");
}

const when = (at) => h("time", { title: relative(at) }, moment(at));

function progress(state, value, message, quiet) {
  if (quiet && !value && !message) return null;
  if (state !== "active" && !(value && state !== "completed") && !message) return null;
  return h("div", { class: "progress" }, h("progress", { max: 100, value: String(value || 0), "aria-label": "Progress" }), h("span", {}, `${Math.round(value || 0)} %`, message ? ` · ${message}` : ""));
}

export function job({ params, query, main, signal }) {
  const { id } = params;
  const refreshed = () => fresh.refresh();
  let flow = null; // its steps, if it is a workflow
  const parts = { why: part(waiting), progress: part(progress), data: part((value) => json(value, "Data")), result: part((value) => (value === undefined ? null : card("Result", null, json(value, "Result")))),
    failed: part((reason) => (reason ? h("p", { class: "error big" }, reason) : null)), attempts: part(attempts), logs: part(logs), timeline: part(timeline), facts: part(facts), flow: part(flowOf),
    waits: part((shown, why) => waitsOf(shown, why, refreshed)), stuck: part((shown) => stuck(shown, refreshed)), value: part(stateOf), kept: part((shown) => kept(shown, refreshed)) };
  const title = h("h1", {}, "Job");
  const status = h("span");
  const crumbs = h("p", { class: "crumbs" }, h("a", { href: "/" }, "Queues"));
  const note = h("p", { class: "problem" });
  const actions = h("div", { class: "actions" });
  const body = h("div", {}, skeleton(8));
  fill(main, crumbs, h("div", { class: "page-head" }, title, status, note, actions), h("p", { class: "job-id" }, h("code", {}, id)), body);
  const drawActions = jobActions(id, actions, refreshed);
  const around = relatives(), whole = flowGraph({ signal, changed: refreshed });
  let placed = false, gone = false;

  function place(found) {
    if (placed) return;
    [placed, gone] = [true, false];
    flow = found.workflow ? steps({ query, signal, refresh: refreshed }) : null;
    fill(crumbs, flow ? h("a", { href: "/workflows" }, "Workflows") : h("a", { href: "/" }, "Queues"), " / ", h("a", { href: `/queues/${encodeURIComponent(found.queue)}` }, found.queue));
    document.title = `${found.name} · ${found.queue} · bunqueue`;
    fill(body, parts.why.element, parts.waits.element, parts.stuck.element, parts.progress.element, parts.failed.element, flow?.element, whole.element, h("div", { class: "split" },
      h("div", {}, parts.value.element, parts.kept.element, card("Data", null, parts.data.element), parts.result.element, card("Attempts", null, parts.attempts.element), card("Log", null, parts.logs.element)),
      h("div", {}, card("Details", null, parts.facts.element), card("Timeline", null, parts.timeline.element), parts.flow.element)));
  }

  function missing(explanation) {
    if (gone) return;
    [placed, gone] = [false, true]; // a client that chose its id may use it again
    drawActions(null);
    fill(status);
    fill(body, empty("Job not found", explanation ?? "It may have been removed: by its options, by hand, or because it finished long ago.", byWhom("removed", { job: id })));
  }

  async function refresh() {
    try {
      const { state, explanation } = await call("GetState", { id }, signal);
      if (state === "unknown") {
        missing(explanation);
        return;
      }
      const [{ job: found }, past, why, log] = await Promise.all([call("GetJob", { id }, signal), call("GetAttempts", { id }, signal),
        call("WhyWaiting", { id }, signal), call("GetLogs", { id }, signal)]);
      const relations = await around(found, signal);
      place(found);
      const view = flow && await flow.load(id, signal);
      text(title, found.name);
      fill(status, badge(wordOf(found)));
      parts.why.update(view || FINISHED.includes(found.state) ? [] : why.data.reasons);
      parts.progress.update(found.state, found.progress, found.progressMessage, view !== null);
      parts.failed.update(["completed", "stuck"].includes(found.state) ? null : found.failedReason);
      const payload = (name) => {
        const left = found[`${name}Bytes`];
        if (left !== undefined) return `left out, as it has ${bytes(left)}: bunqueue job result ${id}`;
        return found.unreadable?.startsWith(`${name} `) ? found.unreadable : found[name];
      };
      parts.data.update(payload("data"));
      parts.result.update(payload("returnvalue"));
      parts.attempts.update(past.data.attempts, attemptOf(found, past.data.attempts));
      parts.logs.update(log.data);
      parts.timeline.update(found.timeline, { id, queue: found.queue });
      parts.facts.update(found);
      parts.flow.update(relations);
      whole.start(found);
      if (view) {
        flow.update({ job: found, view });
        parts.waits.update({ job: found, view }, why.data.reasons);
        parts.stuck.update({ job: found, view });
        parts.value.update(view.value);
        parts.kept.update({ job: { id: found.id }, view: { signals: view.signals } });
      }
      drawActions(found, view);
    } catch (error) {
      if (signal.aborted || error.status !== 404) throw error;
      missing();
    }
  }
  const fresh = keepFresh({ every: EVERY_MS, filter: { job: id }, signal, note, refresh });
}
