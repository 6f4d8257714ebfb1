// Actions on all jobs that a search finds: count them, ask, and then proceed in pieces.

import { call } from "../api.js";
import { ask, toast } from "../dialogs.js";
import { h, text } from "../dom.js";
import { num, plural } from "../format.js";

const PIECE = 1000; // jobs that one command changes, at most
const LIMIT = 10_000; // the same as in the SDK and the command line

export const ACTIONS = [
  { action: "retry", verb: "Retry", done: "run again", hint: "Dead letters run again, with all their attempts. Cancelled and completed jobs are left alone unless the conditions name their state." },
  { action: "priority", verb: "Prioritise", done: "have the priority", hint: "Waiting and delayed jobs get another priority.", fields: [{ name: "priority", label: "Priority", kind: "number", value: 0, required: true, hint: "a higher one goes first" }] },
  { action: "move", verb: "Move", done: "moved", hint: "Waiting and delayed jobs, and dead letters, go to another queue. They keep their ids; jobs of flows, and workflows, are left alone.", fields: [{ name: "to", label: "To the queue", required: true }] },
  { action: "cancel", verb: "Cancel jobs", done: "cancelled", danger: true, hint: "Jobs that have not ended are cancelled, also those that run.", fields: [{ name: "reason", label: "Reason", hint: "workers see it" }] },
  { action: "remove", verb: "Remove", done: "removed", danger: true, hint: "Jobs go with their data, results and logs, and cannot be brought back. Those that run are left alone." },
];

const leftAlone = (skipped) => Object.entries(skipped).map(([reason, count]) => `${reason} ${num(count)}`).join(", ");

/** Carry out one action on all results, until `limit` are changed or the progress `box` is closed. */
async function change(fields, limit, dryRun, box) {
  const most = dryRun ? Infinity : limit;
  const sum = { changed: 0, skipped: {}, more: false };
  let cursor, scanned = 0, plan;
  do {
    const { data, ...reply } = await call("ChangeJobs", { ...fields, dryRun, cursor, limit: Math.min(PIECE, most - sum.changed) });
    sum.changed += data.changed;
    for (const [reason, count] of Object.entries(data.skipped)) sum.skipped[reason] = (sum.skipped[reason] ?? 0) + count;
    cursor = reply.cursor ?? undefined;
    plan ??= reply.plan;
    scanned += reply.progress.scanned;
    sum.more = cursor !== undefined;
    text(box, `${dryRun ? "Found" : "Changed"} ${num(sum.changed)}; looked at ${num(scanned)} of at most ${num(Math.max(plan.jobs, scanned))} jobs`);
  } while (sum.more && box.isConnected && sum.changed < most);
  return sum;
}

/** Ask for details, count, ask again, and do it.  Closing the dialog ends it after the current piece. */
export async function changeAll({ action, verb, done, danger, hint, fields = [] }, wanted, refresh) {
  let box = h("span", { role: "status" }), given, limit, dry;
  const counted = await ask({ title: `${verb}: all that match`, body: [h("p", {}, hint), box], action: "Count them",
    fields: [...fields, { name: "limit", label: "At most", kind: "number", value: LIMIT, min: 1, step: 1, required: true, hint: "the oldest first" }],
    submit: async (values) => {
      ({ limit, ...given } = { ...values });
      given = { ...wanted, action, ...given };
      dry = await change(given, limit, true, box);
    } });
  if (!counted) return;
  const spared = leftAlone(dry.skipped);
  if (!dry.changed) return void toast(spared ? `Nothing to change; left alone: ${spared}` : "Nothing to change: no job meets the conditions");
  const count = Math.min(dry.changed, limit);
  box = h("span", { role: "status" });
  const which = dry.changed > count ? `The oldest ${num(count)} of ${num(dry.changed)}. ` : "";
  await ask({ title: `${verb}: ${plural(count, "job")}?`, danger, action: `${verb} ${num(count)}`,
    body: [h("p", {}, which, spared ? `Left alone: ${spared}. ` : "", "Jobs that arrive from now on are not meant."), box],
    submit: async () => {
      const sum = await change(given, limit, false, box);
      const also = leftAlone(sum.skipped);
      toast(`${plural(sum.changed, "job")} ${done}${also ? `; left alone: ${also}` : ""}`);
      refresh();
    } });
}
