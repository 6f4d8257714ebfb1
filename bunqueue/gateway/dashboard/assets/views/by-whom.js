// Who paused a queue, retried a job or removed one, for those who may read the trail.

import { mayAdminister, trail } from "../api.js";
import { since } from "../clock.js";
import { attempt, toast } from "../dialogs.js";
import { badge, h } from "../dom.js";

const LATER_MS = 1000; // an entry is about what happens next
const BULK_MS = 60_000; // how long before what happened to a job a command may have begun
const LOOKED_AT = 100; // entries

/** What may have caused it: commands that name the job, and those that change jobs of a queue. */
const CAUSES = {
  paused: { one: [], all: ["Pause"] },
  resumed: { one: [], all: ["Resume"] },
  revived: { one: ["RetryDlq", "RetryCompleted", "RetryWorkflow"], all: ["RetryDlq", "RetryCompleted", "ChangeJobs", "RetryFlow"] },
  removed: { one: ["RemoveJob", "RemoveDlqJob", "Cancel"], all: ["Drain", "Clean", "PurgeDlq", "Obliterate", "ChangeJobs", "CancelFlow", "RemoveUnprocessedChildren"] },
};

/** "paused", and a button that says by whom. */
export const pausedBadge = (queue) => [badge("paused"), byWhom("paused", { queue })];

/** A button that says by whom a queue, or a job of one, was changed like this, at a time if that is known. */
export const byWhom = (change, about) => (CAUSES[change] && mayAdminister() ? [" ", h("button", { type: "button", class: "plain who", onclick: () => tell(change, about) }, "by whom?")] : null);

async function tell(change, { queue, job, at }) {
  await attempt(async () => {
    const { one, all } = CAUSES[change];
    const near = at ? { cursor: `${Math.ceil(at) + LATER_MS}.0`, since: job ? at - BULK_MS : 0 } : {};
    const [named, whole] = await Promise.all([job ? newest([job], one, near) : null, queue ? newest([queue], all, near, job) : null]);
    const entry = named ?? whole;
    const more = h("a", { href: `/audit?${new URLSearchParams({ what: job ?? queue })}` }, "what else happened to it");
    const thing = job ? "The job" : queue;
    if (!entry) return toast(h("span", {}, `The trail here does not say who ${change} ${job ? "the job" : queue}${job ? ": perhaps the server did, as its options say" : ""}. `, more));
    const how = job && entry === whole ? `, with ${entry.what} for jobs of ${queue},` : "";
    return toast(h("span", {}, `${thing} was ${change}${how} by ${entry.who || "somebody without a name"} from ${entry.address || "here"}, `, since(entry.at), ": ", more));
  });
}

/** The newest entry with these words about one of these commands, and not about another job than this one. */
async function newest(words, commands, rest, job) {
  const { entries } = await trail({ what: [...words, "ok"], limit: LOOKED_AT, ...rest });
  return entries.reverse().find(({ what, on }) => commands.includes(what) && (!job || [undefined, job].includes(on?.id ?? on?.jobId))) ?? null;
}
