// Addresses and views: every view is a URL, links work as links do, and the back button goes back.

import { empty, fill, h } from "./dom.js";

const routes = [];
let current = null; // ends the view that is shown
let shown = "";

/** Enter a view: `pattern` like /queues/:name, `view({params, query, main, signal})`. */
export function route(pattern, title, view) {
  const names = [];
  const source = pattern.replace(/:(\w+)/g, (_, name) => (names.push(name), "([^/]+)"));
  routes.push({ test: new RegExp(`^${source}/?$`), names, title, view });
}

export function go(url, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  show();
}

/** Change what stands behind the ? of the address, and show the view anew. */
export function setQuery(changes, options) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  go(location.pathname + (text ? `?${text}` : ""), options);
}

export function show() {
  current?.abort();
  const end = (current = new AbortController());
  const main = document.getElementById("main");
  const path = location.pathname;
  const found = routes.map((entry) => [entry, entry.test.exec(path)]).find(([, match]) => match);
  const moved = shown !== path;
  shown = path;
  if (!found) {
    document.title = "Not found · bunqueue";
    fill(main, empty("There is no such page", h("a", { href: "/" }, "To the overview")));
    return;
  }
  const [{ names, title, view }, match] = found;
  const params = Object.fromEntries(names.map((name, place) => [name, decodeURIComponent(match[place + 1])]));
  document.title = `${Object.values(params)[0] || title} · bunqueue`;
  mark(path);
  if (moved) { fill(main); window.scrollTo(0, 0); }
  const query = Object.fromEntries(new URLSearchParams(location.search));
  view({ params, query, main, signal: end.signal, moved });
  if (moved && document.activeElement !== document.body) main.focus({ preventScroll: true });
}

function mark(path) {
  for (const link of document.querySelectorAll("#nav a")) {
    const own = link.getAttribute("href");
    const here = own === "/" ? path === "/" || /^\/(queues|jobs)\//.test(path) : path.startsWith(own);
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

export function start() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const url = new URL(link.href);
    if (url.origin !== location.origin || link.target || link.hasAttribute("data-plain") || link.classList.contains("skip")) return;
    event.preventDefault();
    go(url.pathname + url.search);
  });
  window.addEventListener("popstate", show);
  show();
}
