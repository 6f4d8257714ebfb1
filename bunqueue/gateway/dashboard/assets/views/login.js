// Asks for a token if the server requires one.

import { forget, mayRead, setToken } from "../api.js";
import { fill, h } from "../dom.js";
import { go } from "../router.js";

export function login({ main, query }, enter) {
  const token = h("input", { id: "token", type: "password", required: true, autocomplete: "current-password" });
  const problem = h("p", { class: "problem", role: "alert" });
  const form = h("form", { class: "card login", onsubmit: async (event) => {
    event.preventDefault();
    setToken(token.value.trim());
    if (await enter()) {
      go(within(query.to), { replace: true });
      return;
    }
    forget();
    problem.textContent = "The server does not know this token.";
    token.select();
  } },
  h("h1", {}, "Log in"),
  h("p", { class: "muted" }, "This server wants a token: one of its ", h("code", {}, "auth_token"), " settings, or a ", h("code", {}, "read_only_token"), " to look around."),
  h("div", { class: "field" }, h("label", { for: "token" }, "Token"), token),
  problem, h("button", { type: "submit", class: "button primary" }, "Log in"),
  h("p", { class: "muted small" }, "It is kept until this tab is closed."));
  fill(main, mayRead() ? h("p", { class: "note" }, "You are logged in, or this server wants no token.") : null, form);
  token.focus();
}

/** An address from the query, if it belongs to this dashboard. */
function within(address = "/") {
  try {
    const url = new URL(address, location.origin);
    return url.origin === location.origin ? url.pathname + url.search : "/";
  } catch {
    return "/";
  }
}
