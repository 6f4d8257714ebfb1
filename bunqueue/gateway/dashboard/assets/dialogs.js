// Questions and messages: destructive actions ask first, and refusals appear in the server's own words.

import { explain, Refused } from "./api.js";
import { button, h } from "./dom.js";
import { parse } from "./numbers.js";

/** A short message that disappears automatically. */
export function toast(message, kind = "done") {
  const box = h("div", { class: `toast ${kind}` }, message);
  const close = () => box.remove();
  box.append(h("button", { type: "button", class: "plain", "aria-label": "Dismiss", onclick: close }, "×"));
  document.getElementById("toasts").append(box);
  setTimeout(close, kind === "bad" ? 12000 : 5000);
}

/** Do something that may be refused.  Returns whether it was done. */
export async function attempt(work, done) {
  try {
    const result = await work();
    if (done) toast(typeof done === "function" ? done(result) : done);
    return true;
  } catch (error) {
    if (error.name !== "AbortError") toast(explain(error), "bad");
    return false;
  }
}

/**
 * Ask with a form.  The dialog shows errors of `submit(values)`.  Returns true when it was done.
 * Fields: {name, label, kind, value, hint, required, options, min}; kind is text, number, area, check or choice.
 */
export function ask({ title, body, fields = [], action, danger = false, submit }) {
  return new Promise((resolve) => {
    const inputs = {};
    const rows = fields.map((field) => row(field, inputs));
    const problem = h("p", { class: "problem", role: "alert" });
    const yes = h("button", { type: "submit", class: `button ${danger ? "danger" : "primary"}` }, action);
    const form = h("form", { method: "dialog" },
      h("h2", { id: "dialog-title" }, title),
      body ? h("div", { class: "dialog-body" }, body) : null,
      rows, problem,
      h("div", { class: "dialog-end" }, button("Cancel", () => finish(false)), yes));
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);

    function finish(result) {
      if (dialog.open) dialog.close();
      dialog.remove();
      resolve(result);
    }

    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      problem.textContent = "";
      yes.disabled = true;
      try {
        await submit?.(values(fields, inputs));
        finish(true);
      } catch (error) {
        problem.textContent = explain(error);
        yes.disabled = false;
      }
    });
    dialog.addEventListener("close", () => finish(false)); // by Escape, or because the user leaves the view
    dialog.addEventListener("click", (event) => { if (event.target === dialog) finish(false); });
    document.body.append(dialog);
    dialog.showModal();
    const typed = fields.find((field) => field.match !== undefined);
    if (typed) {
      yes.disabled = true;
      inputs[typed.name].addEventListener("input", () => { yes.disabled = inputs[typed.name].value !== typed.match; });
    }
    if (danger && !fields.length) form.querySelector(".dialog-end button").focus(); // Enter must not destroy by accident
  });
}

/** A question before something is destroyed; `typed`: a name that the user must type. */
export function confirm({ title, body, action, typed, submit, danger = true }) {
  const fields = typed === undefined ? [] : [{ name: "typed", label: `Type ${typed} to go on`, match: typed }];
  return ask({ title, body, fields, action, danger, submit });
}

function row(field, inputs) {
  const id = `field-${field.name}`;
  const common = { id, name: field.name, required: field.required, "aria-describedby": field.hint ? `${id}-hint` : null };
  let input;
  if (field.kind === "area") input = h("textarea", { ...common, rows: field.rows || 7, spellcheck: "false" }, field.value ?? "");
  else if (field.kind === "choice") {
    input = h("select", common, field.options.map(([value, label]) => h("option", { value, selected: value === field.value }, label)));
  } else if (field.kind === "check") input = h("input", { ...common, type: "checkbox", checked: field.value });
  else {
    const type = field.kind || "text";
    input = h("input", { ...common, type, value: field.value ?? "", min: field.min, step: type === "number" ? field.step ?? "any" : null,
      autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
  }
  inputs[field.name] = input;
  const label = h("label", { for: id }, field.label);
  const hint = field.hint ? h("small", { id: `${id}-hint` }, field.hint) : null;
  if (field.kind === "check") return h("div", { class: "field check" }, input, label, hint);
  return h("div", { class: "field" }, label, input, hint);
}

function values(fields, inputs) {
  const found = {};
  for (const { name, kind } of fields) {
    const input = inputs[name];
    if (kind === "check") found[name] = input.checked;
    else if (kind === "number") found[name] = input.value === "" ? undefined : Number(input.value);
    else found[name] = input.value === "" ? undefined : input.value;
  }
  return found;
}

/** JSON that the user typed.  Throws Refused, which says where it is wrong. */
export function readJson(source, name) {
  if (source === undefined) return undefined;
  try {
    return parse(source);
  } catch (error) {
    throw new Refused(`${name} is not JSON: ${error.message}`, 0, error);
  }
}
