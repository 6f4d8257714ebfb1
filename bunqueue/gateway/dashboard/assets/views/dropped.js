// Dead letters that were dropped without being removed by a user: a red note with their number.

import { since } from "../clock.js";
import { fill, h } from "../dom.js";
import { num, plural } from "../format.js";

const RECENT_MS = 7 * 86_400_000; // after that it is old, and not red

const sum = (list, field) => list.reduce((all, each) => all + each[field], 0);

/** The note.  Call `update` with the server's field `dropped` of one queue or several. */
export function droppedNote() {
  const element = h("p", { class: "dropped", role: "status", hidden: true });
  return { element, update(found) {
    const many = sum(found, "tooMany"), old = sum(found, "tooOld");
    element.hidden = !many && !old;
    if (element.hidden) return;
    const last = Math.max(...found.map(({ lastAt }) => lastAt ?? 0));
    element.classList.toggle("bad", Date.now() - last < RECENT_MS);
    const why = [many ? `${num(many)} as there were more than are kept` : "", old ? `${num(old)} as they were too old` : ""].filter(Boolean);
    fill(element, h("b", {}, `${plural(many + old, "dead letter")} ${many + old === 1 ? "was" : "were"} dropped`), `: ${why.join(", ")}. `, since(last, "The last one "),
      ". How many are kept, and how long, is among the bounds of the queue.");
  } };
}
