// Shortcuts: g and a letter to go somewhere, / to search, ? for help.

import { h } from "./dom.js";
import { go } from "./router.js";

const PLACES = { o: ["/", "Overview"], q: ["/", "Queues"], f: ["/workflows", "Workflows"], l: ["/flows", "Flows"], s: ["/search", "Search"], d: ["/dlq", "Dead letters"], c: ["/cron", "Schedules"],
  w: ["/workers", "Workers"], h: ["/webhooks", "Webhooks"], e: ["/events", "Events"] };
const PAUSE_MS = 1500; // between g and the letter

let began = 0;

function typing(target) {
  return target.closest?.("input:not([type=checkbox]), textarea, select, dialog[open]");
}

export function shortcuts() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && event.target.matches?.("input[type=search]")) event.target.blur();
    if (typing(event.target) || event.defaultPrevented) return;
    const second = performance.now() - began < PAUSE_MS;
    began = 0;
    if (second && PLACES[event.key]) {
      event.preventDefault();
      go(PLACES[event.key][0]);
      if (event.key === "q") setTimeout(firstRow, 400);
    } else if (event.key === "g") began = performance.now();
    else if (event.key === "/") search(event);
    else if (event.key === "?") help();
    else if (event.key === "ArrowDown" || event.key === "j") {
      if (document.activeElement === document.body || document.activeElement.id === "main") firstRow(event);
    }
  });
}

function search(event) {
  const input = document.querySelector("main input[type=search]") || document.getElementById("find");
  if (input) { event.preventDefault(); input.focus(); input.select(); }
}

function firstRow(event) {
  const first = document.querySelector("main tbody a, main tbody button");
  if (first) { event?.preventDefault?.(); first.focus(); }
}

export function help() {
  const rows = [["/", "search"], ...Object.entries(PLACES).map(([key, [, name]]) => [`g ${key}`, name]),
    ["↓ ↑ or j k", "from row to row"], ["Enter", "open"], ["Esc", "close"], ["?", "this help"]];
  const close = h("button", { type: "submit", class: "button primary" }, "Close");
  const dialog = h("dialog", { "aria-labelledby": "help-title" }, h("form", { method: "dialog" },
    h("h2", { id: "help-title" }, "Keyboard"),
    h("dl", { class: "keys" }, rows.map(([keys, what]) => [h("dt", {}, keys.split(" ").map((key) => h("kbd", {}, key))), h("dd", {}, what)])),
    h("div", { class: "dialog-end" }, close)));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
