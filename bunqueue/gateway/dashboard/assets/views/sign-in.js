// Asks who this is, over whatever is shown: what was typed there stays, and goes on afterwards.

import { explain, greet, signIn as withToken, user } from "../api.js";
import { button, empty, fill, h } from "../dom.js";

let asking = null;

const tabs = new BroadcastChannel("bunqueue"); // who signs in in one tab has done so in all

/** Wait until somebody has signed in. However many requests need that, one dialog asks. `busy`: there is something in
 * the page that must not be lost. */
export function signIn({ busy = true } = {}) {
  asking ??= ask(busy).finally(() => { asking = null; });
  return asking;
}

/** The page to which a provider comes back in a window of its own. */
export function signedIn({ main }) {
  tabs.postMessage("signed in");
  window.close();
  fill(main, empty("You are signed in", "This window may be closed."));
}

function elsewhere(busy) {
  const back = busy ? "/signed-in" : location.pathname + location.search;
  const address = `/oidc/login?to=${encodeURIComponent(back)}`;
  if (busy) window.open(address, "_blank", "popup,width=520,height=680");
  else location.assign(address);
}

function ask(busy) {
  return new Promise((resolve) => {
    const token = h("input", { id: "token", type: "password", required: true, autocomplete: "current-password" });
    const problem = h("p", { class: "problem", role: "alert" });
    const yes = h("button", { type: "submit", class: "button primary" }, "Sign in");
    const form = h("form", {},
      h("h2", { id: "sign-in-title" }, "Sign in"),
      h("p", { class: "muted" }, "This server wants to know who you are. Your token is that of an ", h("code", {}, "identity"), ", or one of the settings."),
      h("div", { class: "field" }, h("label", { for: "token" }, "Token"), token),
      problem, yes, user().oidc ? button(`Sign in at ${user().oidc}`, () => elsewhere(busy)) : null,
      h("p", { class: "muted small" }, "It is sent once. The browser keeps a cookie that ends with your session."));
    const dialog = h("dialog", { id: "sign-in", "aria-labelledby": "sign-in-title" }, form);
    let done = false;
    const end = () => {
      done = true;
      tabs.removeEventListener("message", look);
      dialog.close();
      dialog.remove();
      resolve();
    };
    const look = async () => {
      await greet().catch(() => {});
      if (user().known && !done) end();
    };
    tabs.addEventListener("message", look);

    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      problem.textContent = "";
      yes.disabled = true;
      try {
        await withToken(token.value.trim());
        tabs.postMessage("signed in");
        end();
      } catch (error) {
        problem.textContent = error.status === 401 ? "The server does not know this token." : explain(error);
        yes.disabled = false;
        token.select();
      }
    });
    dialog.addEventListener("close", () => { if (!done) dialog.showModal(); }); // Escape does not get past it
    document.body.append(dialog);
    dialog.showModal();
    token.focus();
  });
}
