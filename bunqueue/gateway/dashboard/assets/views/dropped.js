// Dead letters that were dropped without being removed by a user, or soon will be: a note with their number, and what keeps the rest.

import { since } from "../clock.js";
import { fill, h } from "../dom.js";
import { num, plural } from "../format.js";

const NEARLY = 0.8; // of the dead letters that a queue keeps: somebody can still act
const RECENT_MS = 7 * 86_400_000; // after that it is old, and not red

const sum = (list, field) => list.reduce((all, each) => all + each[field], 0);

/** The note on a queue, or on all.  Call `update` with the server's field `dropped` of one queue or several, and how many dead letters there
 *  are, of how many that are kept at most. */
export function droppedNote(queue) {
  const element = h("p", { class: "dropped", role: "status", hidden: true });
  return { element, update(found, count = 0, most = null) {
    const many = sum(found, "tooMany"), old = sum(found, "tooOld");
    const near = most && count >= NEARLY * most;
    element.hidden = !many && !old && !near;
    if (element.hidden) return;
    const keep = ["To keep all from now on: ", h("code", {}, `bunqueue dlq config ${queue || "QUEUE"}${many || near ? " --max-entries 0" : ""}${old ? " --max-age never" : ""}`), ", or set the bounds of the queue."];
    if (!many && !old) {
      element.classList.remove("bad");
      return fill(element, h("b", {}, `${num(count)} dead letters`), `, and at most ${num(most)} are kept; beyond that the oldest are dropped. `, keep);
    }
    const last = Math.max(...found.map(({ lastAt }) => lastAt ?? 0));
    element.classList.toggle("bad", Date.now() - last < RECENT_MS);
    const why = [many ? `${num(many)} as there were more than are kept` : "", old ? `${num(old)} as they were too old` : ""].filter(Boolean);
    fill(element, h("b", {}, `${plural(many + old, "dead letter")} ${many + old === 1 ? "was" : "were"} dropped`), `: ${why.join(", ")}. `, since(last, "The last one "), ". ", keep);
  } };
}
