// Addresses and views: every view is a URL, links work as links do, and the back button goes back.

import { empty, fill, h } from "./dom.js";

const routes = [];
let current = null; // ends the current view
let shown = "";

/** Register a view: `pattern` like /queues/:name, `view({params, query, main, signal})`. */
export function route(pattern, title, view) {
  const names = [];
  const source = pattern.replace(/:(\w+)/g, (_, name) => (names.push(name), "([^/]+)"));
  routes.push({ test: new RegExp(`^${source}/?$`), names, title, view });
}

export function go(url, { replace = false } = {}) {
  if (replace || url === location.pathname + location.search) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  show();
}

/** Change the query of the address, for a view that already shows the change. */
export function note(changes, { replace = true } = {}) {
  const url = changed(changes);
  if (replace) history.replaceState(null, "", url);
  else if (url !== location.pathname + location.search) history.pushState(null, "", url);
}

/** The same, and show the view again. */
export const setQuery = (changes, options) => go(changed(changes), options);

function changed(changes) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  return location.pathname + (text ? `?${text}` : "");
}

/** The decoded form of a part of an address; the part itself if it is not validly encoded. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function show() {
  current?.abort();
  for (const dialog of document.querySelectorAll("dialog[open]:not(#sign-in)")) dialog.close(); // it belongs to the view that ends now
  const end = (current = new AbortController());
  const main = document.getElementById("main");
  const path = location.pathname;
  const found = routes.map((entry) => [entry, entry.test.exec(path)]).find(([, match]) => match);
  const moved = shown !== path;
  shown = path;
  const held = document.activeElement === document.body ? null : document.activeElement; // the element with the focus
  if (!found) {
    document.title = "Not found · bunqueue";
    fill(main, empty("There is no such page", h("a", { href: "/" }, "To the overview")));
    return;
  }
  const [{ names, title, view }, match] = found;
  const params = Object.fromEntries(names.map((name, place) => [name, decoded(match[place + 1])]));
  document.title = `${Object.values(params)[0] || title} · bunqueue`;
  mark(path);
  if (moved) { fill(main); window.scrollTo(0, 0); }
  const query = Object.fromEntries(new URLSearchParams(location.search));
  view({ params, query, main, signal: end.signal, moved });
  if (held && document.activeElement === document.body) (moved ? main : document.getElementById(held.id))?.focus({ preventScroll: true });
  else if (held && moved && document.activeElement === held) main.focus({ preventScroll: true });
}

function mark(path) {
  for (const link of document.querySelectorAll("#nav a")) {
    const own = link.getAttribute("href");
    const here = own === "/" ? path === "/" || /^\/(queues|jobs)\//.test(path) : path.startsWith(own);
    if (here) {
      link.setAttribute("aria-current", "page");
      const [bar, place] = [link.parentElement, link.getBoundingClientRect()]; // scrollIntoView would move where Tab begins
      bar.scrollLeft += place.left + place.width / 2 - bar.getBoundingClientRect().left - bar.clientWidth / 2;
    } else link.removeAttribute("aria-current");
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
