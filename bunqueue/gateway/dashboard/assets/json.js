// JSON with colours, made of text nodes.  Very large values are cut, with a note.

import { toast } from "./dialogs.js";
import { button, h } from "./dom.js";
import { inWords } from "./encoded.js";
import { write } from "./numbers.js";

const MAX_SHOWN = 60_000; // characters
const TOKEN = /("(?:\\.|[^"\\])*")(\s*:)?|\b(true|false|null)\b|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/g;

export function json(value, label = "JSON") {
  const whole = value === undefined ? "" : write(value, 2, inWords);
  const cut = whole.length > MAX_SHOWN;
  const source = cut ? whole.slice(0, MAX_SHOWN) : whole;
  const code = h("code");
  let last = 0;
  for (const match of source.matchAll(TOKEN)) {
    const [all, string, colon, word, number] = match;
    code.append(source.slice(last, match.index));
    const kind = string ? (colon ? "key" : "string") : word ? "word" : number ? "number" : "";
    code.append(h("span", { class: `j-${kind}` }, string || all), colon || "");
    last = match.index + all.length;
  }
  code.append(source.slice(last));
  const copy = button("Copy", async () => {
    if (await copied(whole)) copy.textContent = "Copied";
    else toast("This browser does not let pages copy: select the text", "bad");
  }, "small copy");
  return h("div", { class: "json" }, copy, h("pre", { tabindex: "0", "aria-label": label }, code),
    cut ? h("p", { class: "muted" }, `The first ${MAX_SHOWN.toLocaleString("en")} of ${whole.length.toLocaleString("en")} characters; Copy takes all.`) : null);
}

/** Copy a text to the clipboard; returns whether it worked.  Pages without TLS can only use the old API. */
async function copied(whole) {
  try {
    await navigator.clipboard.writeText(whole);
    return true;
  } catch {
    const holder = document.activeElement;
    const area = h("textarea", { class: "off", readonly: true, value: whole });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    holder?.focus();
    return done;
  }
}
