// Who is signed in to the dashboard; an administrator may end that.

import { endSession, sessions as found } from "../api.js";
import { since } from "../clock.js";
import { confirm, toast } from "../dialogs.js";
import { badge, button, empty, fill, h, text } from "../dom.js";
import { plural } from "../format.js";
import { keepFresh } from "../live.js";
import { table } from "../table.js";

const EVERY_MS = 8000;

const columns = (again) => [
  { name: "who", title: "Who", class: "name", cell: (each) => [each.identity, each.own ? [" ", badge("you", "active")] : null] },
  { name: "address", title: "From", cell: (each) => h("span", { class: "muted" }, each.address) },
  { name: "since", title: "Since", class: "number", cell: (each) => since(each.since) },
  { name: "until", title: "Ends", class: "number", cell: (each) => since(each.until) },
  { name: "do", title: "", class: "number", cell: (each) => (each.own ? "" : h("span", { class: "row-actions" }, button("End", () => end(each, again), "small bad"))) },
];

export function sessions({ main, signal }) {
  const note = h("p", { class: "problem" }), count = h("span", { class: "muted" });
  const list = table({ columns: columns(() => fresh.refresh()), key: (each) => each.id, label: "Sessions", none: empty("Nobody is signed in", "Tokens in programs have no sessions: bunqueue identity list shows when each was used.") });
  fill(main, h("div", { class: "page-head" }, h("h1", {}, "Sessions"), note),
    h("section", { class: "card flush" }, h("div", { class: "card-head" }, count), list.element));
  const fresh = keepFresh({ every: EVERY_MS, signal, note, refresh: async () => {
    const all = (await found(signal)).reverse();
    text(count, plural(all.length, "session"));
    list.update(all);
  } });
}

function end(session, again) {
  return confirm({ title: `End a session of ${session.identity}?`, body: `Signed in from ${session.address}. Whoever it is has to sign in again; to keep them out, revoke the identity.`, action: "End it", submit: async () => {
    await endSession(session.id);
    toast("The session has ended");
    again();
  } });
}
