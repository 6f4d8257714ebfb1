// The entry point: the frame around all views, the user, and the view for each address.

import { cluster, greet, may, mayAdminister, onUnknown, signOut, user } from "./api.js";
import { attempt } from "./dialogs.js";
import { fill, h } from "./dom.js";
import { moment } from "./format.js";
import { help, shortcuts } from "./keyboard.js";
import { go, route, start } from "./router.js";
import * as theme from "./theme.js";
import { cron } from "./views/cron.js";
import { dlq } from "./views/dlq.js";
import { events } from "./views/events.js";
import { flow } from "./views/flow.js";
import { flows } from "./views/flows.js";
import { functions } from "./views/functions.js";
import { hosts } from "./views/hosts.js";
import { job } from "./views/job.js";
import { overview } from "./views/overview.js";
import { queue } from "./views/queue.js";
import { search, searchOf } from "./views/search.js";
import { sessions } from "./views/sessions.js";
import { signedIn, signIn } from "./views/sign-in.js";
import { trail } from "./views/trail.js";
import { webhooks } from "./views/webhooks.js";
import { workers } from "./views/workers.js";
import { workflows } from "./views/workflow/list.js";

const AGAIN_MS = 2000; // to look for a server that cannot be reached
const CHANGES = ["add", "run", "operate", "destroy", "administer"];
/** The views, and who sees them: those who may use what they begin with. */
const VIEWS = [["/", "Overview", () => true], ["/workflows", "Workflows", () => may("FindJobs")], ["/flows", "Flows", () => may("ListFlows")],
  ["/search", "Search", () => may("FindJobs")], ["/dlq", "Dead letters", () => may("Dlq")], ["/cron", "Schedules", () => may("CronList")],
  ["/functions", "Functions", () => may("ListFunctions")], ["/workers", "Workers", () => may("ListWorkers")], ["/webhooks", "Webhooks", () => may("ListWebhooks")],
  ["/events", "Events", () => may("GetEvents")], ["/hosts", "Hosts", () => cluster() && may("ClusterStatus")], ["/audit", "Trail", mayAdminister],
  ["/sessions", "Sessions", () => mayAdminister() && user().identity]];

function frame() {
  fill(document.getElementById("nav"), VIEWS.filter(([, , seen]) => seen()).map(([href, name]) => h("a", { href }, name)));
  const find = h("input", { id: "find", class: "find", type: "text", placeholder: "Id or conditions", "aria-label": "Go to a job by its id, or search", autocomplete: "off", spellcheck: "false" });
  const form = h("form", { role: "search", onsubmit: (event) => {
    event.preventDefault();
    const wanted = find.value.trim();
    if (wanted) go(searchOf(wanted) ?? `/jobs/${encodeURIComponent(wanted)}`);
    find.value = "";
  } }, find);
  const tool = (label, sign, onclick) => h("button", { type: "button", class: "tool", title: label, "aria-label": label, onclick }, sign);
  fill(document.getElementById("tools"), form,
    user().known && !CHANGES.some((verb) => user().verbs.includes(verb)) ? h("span", { class: "badge", title: "You may look, and change nothing" }, "read only") : null,
    tool("Switch between light and dark", "◐", theme.toggle),
    tool("Keyboard shortcuts", "?", help),
    user().until ? h("button", { type: "button", class: "button small", title: `${user().identity}, until ${moment(user().until)}`, onclick: leave }, "Sign out") : null);
  fill(document.getElementById("warning"), user().plaintext ? "plaintext: tokens and payloads travel unencrypted to this server. Give it TLS." : null);
}

async function leave() {
  if (await attempt(signOut)) location.reload(); // nothing of what was shown stays in the page
}

/** Find out what this user may do, and wait for a sign-in if that is nothing. */
async function enter() {
  for (;;) {
    try {
      await greet();
      break;
    } catch (error) {
      fill(document.getElementById("main"), h("p", { class: "problem" }, error.message));
      await new Promise((again) => setTimeout(again, AGAIN_MS));
    }
  }
  if (!user().known) await signIn({ busy: false });
  frame();
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
route("/functions", "Functions", functions);
route("/workers", "Workers", workers);
route("/hosts", "Hosts", hosts);
route("/webhooks", "Webhooks", webhooks);
route("/events", "Events", events);
route("/audit", "Trail", trail);
route("/sessions", "Sessions", sessions);
route("/signed-in", "Signed in", signedIn);

theme.apply();
shortcuts();
onUnknown(async () => {
  await signIn();
  frame();
});
await enter();
start();
