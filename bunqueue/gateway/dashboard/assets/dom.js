// Creates elements.  Text is always text: nothing here ever parses HTML, so no payload can become markup.

import { readable } from "./encoded.js";

const SVG = "http://www.w3.org/2000/svg";

function build(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : readable(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(readable(child));
  }
}

/** An HTML element: h("a", {href, class, onclick}, children...). */
export const h = (tag, props, ...children) => build(document.createElement(tag), props, children);

/** An SVG element. */
export const s = (tag, props, ...children) => build(document.createElementNS(SVG, tag), props, children);

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/** Set text only if it differs, so screen readers and selections are not disturbed. */
export function text(element, value) {
  const shown = readable(value);
  if (element.textContent !== shown) element.textContent = shown;
}

/** The placeholder when there is nothing to show. */
export const empty = (title, ...hint) =>
  h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), hint.length ? h("p", {}, hint) : null);

/** Grey lines in place of content that is loading. */
export const skeleton = (lines = 4) =>
  h("div", { class: "skeleton", "aria-hidden": "true" }, Array.from({ length: lines }, () => h("span")));

export const card = (title, extra, ...children) =>
  h("section", { class: "card" },
    title ? h("div", { class: "card-head" }, h("h2", {}, title), extra) : null, children);

export const button = (label, onclick, kind = "") =>
  h("button", { type: "button", class: `button ${kind}`, onclick }, label);

const WORDS = { "waiting-children": "waits for jobs", "waiting-signal": "waits for a signal" };

/** The state of a job, never shown by colour alone. */
export const badge = (state, tone = state) => h("span", { class: "badge", "data-state": tone }, (WORDS[state] ?? state));
