// A button that opens a list of others.

import { button, fill, h } from "./dom.js";

/** The button and its list; entries are [label, onclick, kind]. */
export function menu(label, id, entries) {
  const list = h("div", { class: "menu", popover: "auto", id });
  const opener = h("button", { type: "button", class: "button", popovertarget: id }, label);
  fill(list, entries.map(([name, onclick, kind = ""]) => button(name, () => { list.hidePopover(); onclick(); }, `entry ${kind}`)));
  // Below its button, as far as the window reaches.
  list.addEventListener("beforetoggle", () => {
    const place = opener.getBoundingClientRect();
    list.style.top = `${place.bottom + 6}px`;
    list.style.maxHeight = `${Math.max(120, window.innerHeight - place.bottom - 14)}px`;
    list.style.left = `${Math.max(8, Math.min(place.left, window.innerWidth - 228))}px`;
  });
  return [opener, list];
}
