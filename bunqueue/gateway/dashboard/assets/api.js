// The dashboard's connection to the server: commands, each a POST to /commands/NAME, and the stream of events.
// The token is kept as long as the tab is open, and sent with each request. There are no cookies.

import { parse, write } from "./numbers.js";

const KEY = "bunqueue-token";
let role = "nobody";
let shared = "";

/** A refused request, with a text for the user, mostly the server's own.  `status` is 0 if no server has answered. */
export class Refused extends Error {
  constructor(message, status = 0, cause = undefined) {
    super(message, { cause });
    this.status = status;
  }
}

/** The text of an error.  Any error except Refused is a bug in this page, and also goes to the console and `window.onerror`. */
export function explain(error) {
  if (!(error instanceof Refused)) reportError(error);
  return error.message;
}

export const setToken = (token) => sessionStorage.setItem(KEY, token);
/** Forget the token: the user has logged out. */
export function forget() {
  sessionStorage.removeItem(KEY);
  role = "nobody";
  shared = "";
}
export const hasToken = () => sessionStorage.getItem(KEY) !== null;
/** Whether this user may change things. */
export const mayWrite = () => role === "writer";
/** The name of this server's cluster; "" without a cluster. */
export const cluster = () => shared;
export const mayRead = () => role !== "nobody";

function headers(more = {}) {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}`, ...more } : more;
}

async function answer(response) {
  const reply = read(await response.text()) ?? { ok: false, error: `the server answered ${response.status}` };
  if (response.status === 401) document.dispatchEvent(new CustomEvent("token-needed"));
  if (!response.ok || reply.ok === false) throw new Refused(reply.error || `status ${response.status}`, response.status);
  return reply;
}

function read(source) {
  try {
    return parse(source);
  } catch {
    return null; // for example a proxy's page
  }
}

/** Carry out a command of the protocol.  Throws Refused. */
export async function call(name, fields = {}, signal = undefined) {
  const request = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: write(fields), signal };
  return answer(await reach(`/commands/${name}`, request));
}

export async function testWebhook(id) {
  const request = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: "{}" };
  return answer(await reach(`/webhooks/${encodeURIComponent(id)}/test`, request));
}

async function reach(path, request) {
  try {
    return await fetch(path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server cannot be reached", 0, error);
  }
}

/** The gateway's history of the last hour, after a moment (epoch ms). */
export async function history(after, signal) {
  const { data } = await answer(await reach(`/history?after=${after}`, { headers: headers(), signal }));
  return data.points.map((values) => Object.fromEntries(data.names.map((name, place) => [name, values[place]])));
}

/** Find out what the token allows.  Returns the server's version. */
export async function greet() {
  const response = await reach("/health", { headers: headers() });
  const health = await response.json();
  role = health.role || "nobody";
  shared = health.cluster || "";
  return health;
}

/**
 * Listen to events until `signal` aborts.  Resumes after a lost connection.  Ends when the server refuses, because
 * another request would not help.
 * @param {{queue?: string[], event?: string[], job?: string}} filter
 * @param {(state: "live" | "away" | "refused", why?: string) => void} onState
 */
export async function listen(filter, onEvent, signal, onState = () => {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(filter)) for (const each of [value].flat()) if (each) query.append(name, each);
  const deliver = (event) => { try { onEvent(event); } catch (error) { reportError(error); } }; // not a lost connection
  let last = "";
  while (!signal.aborted) {
    try {
      const more = last ? { "Last-Event-ID": last } : {};
      const response = await fetch(`/events?${query}`, { headers: headers(more), signal });
      if (response.status >= 400 && response.status < 500 && response.status !== 429) {
        const refused = await answer(response).catch((error) => error);
        onState("refused", refused.message);
        return;
      }
      if (!response.ok) throw new Error(`status ${response.status}`);
      onState("live");
      for await (const event of events(response.body)) {
        last = event.id || last;
        if (event.data) deliver(event.data);
      }
    } catch {
      if (signal.aborted) return;
    }
    onState("away");
    await new Promise((resume) => setTimeout(resume, 2000));
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]));
      if (fields.id || fields.data) yield { id: fields.id, data: fields.data && parse(fields.data) };
    }
  }
}
