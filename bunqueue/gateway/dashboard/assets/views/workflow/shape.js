// The layout of a workflow's steps: which are shown as one, their places in time, and their order.  Nothing here
// draws.

const FEW = 6; // steps of one name side by side; more are shown as one
const LONG = 0.6; // of the total time: a single longer stretch makes all others too small to see
const OPEN = ["running", "retrying", "waiting"];
const WORST = ["failed", "running", "retrying", "waiting", "timed-out", "completed", "cancelled", "skipped"];

export const isOpen = (step) => step.endedAt === null && OPEN.includes(step.status);
const undone = /^undo:/;
/** The step that an undo belongs to. */
export const undoneBy = (step) => step.name.replace(undone, "");
/** pack#2 and pack-7 of a loop: pack. */
export const baseOf = (name) => name.replace(undone, "").replace(/#\d+$/, "");

/** Steps in order as entries {name, kind, status, startedAt, endedAt, steps}; many of one name become one entry. */
export function entries(steps) {
  const runs = [];
  for (const step of steps) {
    const last = runs[runs.length - 1];
    if (last && last[0].kind === step.kind && baseOf(last[0].name) === baseOf(step.name)) last.push(step);
    else runs.push([step]);
  }
  return runs.flatMap((run) => (run.length > FEW ? [many(run)] : run.map(one)));
}

const one = (step) => ({ ...step, steps: [step] });

function many(run) {
  const open = run.some(isOpen);
  return { ...run[0], name: baseOf(run[0].name), status: WORST.find((status) => run.some((step) => step.status === status)), steps: run,
    startedAt: Math.min(...run.map((step) => step.startedAt)), endedAt: open ? null : Math.max(...run.map((step) => step.endedAt)),
    until: null, attempts: Math.max(...run.map((step) => step.attempts)), error: run.find((step) => step.error)?.error ?? null };
}

/** The number of steps in each state: "97 completed, 3 running". */
export function counted(steps) {
  const counts = new Map();
  for (const { status } of steps) counts.set(status, (counts.get(status) ?? 0) + 1);
  return [...counts].map(([status, count]) => `${count} ${status}`).join(", ");
}

/**
 * The position of a moment between the first and the last, from 0 to 1.  If one stretch of time is much longer than all
 * others, such as a sleep of days between steps of milliseconds, stretches are drawn on a logarithmic scale.
 */
export function scale(list, now) {
  const times = [...new Set(list.flatMap(({ startedAt, endedAt }) => [startedAt, endedAt ?? Math.max(now, startedAt)]))].sort((a, b) => a - b);
  const from = times[0] ?? now, to = times[times.length - 1] ?? now;
  const stretches = times.slice(1).map((time, place) => time - times[place]);
  const shortened = stretches.length > 2 && Math.max(...stretches) > LONG * (to - from);
  const lengths = shortened ? stretches.map((stretch) => Math.log2(2 + stretch)) : stretches;
  const all = lengths.reduce((sum, length) => sum + length, 0) || 1;
  const places = new Map([[from, 0]]);
  lengths.reduce((sum, length, place) => { places.set(times[place + 1], (sum + length) / all); return sum + length; }, 0);
  return { from, to, shortened, at: (time) => places.get(time) ?? places.get(to) };
}

/** Pairs of indexes: an entry, and one that had ended when it began, with no other entry in between. */
export function followers(list) {
  const ends = list.map(({ endedAt }) => endedAt ?? Infinity);
  const pairs = [];
  list.forEach((entry, place) => {
    let latest = -Infinity; // the latest start of those that ended before this one
    for (let other = place - 1; other >= 0; other--) {
      if (ends[other] > entry.startedAt) continue;
      if (ends[other] > latest) pairs.push([other, place]);
      latest = Math.max(latest, list[other].startedAt);
    }
  });
  return pairs;
}
