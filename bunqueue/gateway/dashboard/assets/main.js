// The entry point: the frame around all views, the user, and the view for each address.

import { cluster, forget, greet, hasToken, mayRead, mayWrite } from "./api.js";
import { fill, h } from "./dom.js";
import { help, shortcuts } from "./keyboard.js";
import { go, route, start } from "./router.js";
import * as theme from "./theme.js";
import { cron } from "./views/cron.js";
import { dlq } from "./views/dlq.js";
import { events } from "./views/events.js";
import { flow } from "./views/flow.js";
import { flows } from "./views/flows.js";
import { hosts } from "./views/hosts.js";
import { job } from "./views/job.js";
import { login } from "./views/login.js";
import { overview } from "./views/overview.js";
import { queue } from "./views/queue.js";
import { search, searchOf } from "./views/search.js";
import { webhooks } from "./views/webhooks.js";
import { workers } from "./views/workers.js";
import { workflows } from "./views/workflow/list.js";

const VIEWS = [["/", "Overview"], ["/workflows", "Workflows"], ["/flows", "Flows"], ["/search", "Search"], ["/dlq", "Dead letters"], ["/cron", "Schedules"], ["/workers", "Workers"],
  ["/webhooks", "Webhooks"], ["/events", "Events"]];

function frame() {
  const views = cluster() ? [...VIEWS, ["/hosts", "Hosts"]] : VIEWS;
  fill(document.getElementById("nav"), views.map(([href, name]) => h("a", { href }, name)));
  const find = h("input", { id: "find", class: "find", type: "text", placeholder: "Job id or conditions", "aria-label": "Go to a job by its id, or search", autocomplete: "off", spellcheck: "false" });
  const form = h("form", { role: "search", onsubmit: (event) => {
    event.preventDefault();
    const wanted = find.value.trim();
    if (wanted) go(searchOf(wanted) ?? `/jobs/${encodeURIComponent(wanted)}`);
    find.value = "";
  } }, find);
  const tool = (label, sign, onclick) => h("button", { type: "button", class: "tool", title: label, "aria-label": label, onclick }, sign);
  fill(document.getElementById("tools"), form,
    mayWrite() || !mayRead() ? null : h("span", { class: "badge", title: "This token may look at everything and change nothing" }, "read only"),
    tool("Switch between light and dark", "◐", theme.toggle),
    tool("Keyboard shortcuts", "?", help),
    hasToken() ? h("button", { type: "button", class: "button small", onclick: leave }, "Log out") : null);
}

async function leave() {
  forget();
  toLogin(); // before any other request
  await enter();
}

/** Find out what this user may do.  Without a token that may read, ask for one. */
async function enter() {
  await greet().catch(() => {});
  frame();
  document.body.dataset.role = mayWrite() ? "writer" : "reader";
  return mayRead();
}

route("/", "Overview", overview);
route("/queues/:name", "Queue", queue);
route("/jobs/:id", "Job", job);
route("/workflows", "Workflows", workflows);
route("/workflows/:id", "Workflow", job);
route("/flows", "Flows", flows);
route("/flows/:id", "Flow", flow);
route("/search", "Search", search);
route("/dlq", "Dead letters", dlq);
route("/dlq/:name", "Dead letters", dlq);
route("/cron", "Schedules", cron);
route("/workers", "Workers", workers);
route("/hosts", "Hosts", hosts);
route("/webhooks", "Webhooks", webhooks);
route("/events", "Events", events);
route("/login", "Log in", (context) => login(context, enter));

function toLogin() {
  if (location.pathname === "/login") return;
  const back = location.pathname + location.search;
  go(`/login${back === "/" ? "" : `?to=${encodeURIComponent(back)}`}`, { replace: true });
}

theme.apply();
shortcuts();
document.addEventListener("token-needed", toLogin);
const known = await enter();
if (!known && location.pathname !== "/login") {
  history.replaceState(null, "", `/login${location.pathname === "/" ? "" : `?to=${encodeURIComponent(location.pathname + location.search)}`}`);
}
start();
