// Who paused a queue, for those who may read the trail.

import { mayAdminister, trail } from "../api.js";
import { since } from "../clock.js";
import { attempt, toast } from "../dialogs.js";
import { badge, h } from "../dom.js";

/** "paused", and a button that says by whom. */
export const pausedBadge = (queue) => [badge("paused"), mayAdminister() ? [" ", h("button", { type: "button", class: "plain who", onclick: () => tell(queue) }, "by whom?")] : null];

async function tell(queue) {
  await attempt(async () => {
    const [entry] = (await trail({ what: ["Pause", queue, "ok"], limit: 1 })).entries;
    const all = h("a", { href: `/audit?${new URLSearchParams({ what: queue })}` }, "what else happened to it");
    if (!entry) return toast(h("span", {}, `The trail here does not say who paused ${queue}: `, all));
    return toast(h("span", {}, `${queue} was paused by ${entry.who || "somebody without a name"} from ${entry.address || "here"}, `, since(entry.at), ": ", all));
  });
}
