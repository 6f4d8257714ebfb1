// The dashboard's connection to the server: commands, each a POST to /commands/NAME, and the stream of events.
// Who has signed in has a cookie that scripts cannot read. It counts only beside the header below, which the server
// takes from no other origin. A request that needs a session waits until somebody has signed in, and is then repeated.

import { parse, write } from "./numbers.js";

const OURS = { "X-Bunqueue-Session": "1" };
const NOBODY = { known: false, commands: [], bulk: [], verbs: [], everywhere: false };
let rights = NOBODY;
let askToSignIn = async () => {};

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

/** What the server says of this user: `known`, `identity`, `verbs`, `until` (epoch ms), and of itself. */
export const user = () => rights;
/** Whether this user may use a command, as its declaration says. A queue may still be another's. */
export const may = (command) => rights.commands.includes(command);
/** Whether this user may do this to all jobs that a search finds. */
export const mayToAll = (action) => rights.bulk.includes(action);
/** Whether this user may administer the server. */
export const mayAdminister = () => rights.everywhere && rights.verbs.includes("administer");
/** The name of this server's cluster; "" without a cluster. */
export const cluster = () => rights.cluster ?? "";

/** `ask` is called when the server wants to know who this is, and returns when somebody has signed in. */
export function onUnknown(ask) { askToSignIn = ask; }

const headers = (more = {}) => ({ ...OURS, ...more });

async function answer(response) {
  const reply = read(await response.text()) ?? { ok: false, error: `the server answered ${response.status}` };
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
  return answer(await send(`/commands/${name}`, request));
}

export async function testWebhook(id) {
  const request = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: "{}" };
  return answer(await send(`/webhooks/${encodeURIComponent(id)}/test`, request));
}

/** The trail: {entries, cursor}, those of `who` with each of the words `what`, not older than `since` (epoch ms), the
 * newest last. */
export async function trail({ what = [], ...filter }, signal) {
  const query = new URLSearchParams(what.map((word) => ["what", word]));
  for (const [name, value] of Object.entries(filter)) if (value) query.set(name, value);
  return (await answer(await send(`/audit?${query}`, { headers: headers(), signal }))).data;
}

/** Who is signed in. */
export async function sessions(signal) {
  return (await answer(await send("/sessions", { headers: headers(), signal }))).data.sessions;
}

export const endSession = async (id) => answer(await send(`/sessions/${encodeURIComponent(id)}`, { method: "DELETE", headers: headers() }));

/** Send a request as this user; once somebody has signed in again, if the session has ended. */
async function send(path, request) {
  for (;;) {
    const response = await reach(path, request);
    if (response.status !== 401) return response;
    await askToSignIn();
    request.signal?.throwIfAborted();
  }
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
  const { data } = await answer(await send(`/history?after=${after}`, { headers: headers(), signal }));
  return data.points.map((values) => Object.fromEntries(data.names.map((name, place) => [name, values[place]])));
}

/** Find out who this is, and what they may do. */
export async function greet() {
  rights = { ...NOBODY, ...(await answer(await reach("/session", { headers: headers() }))).data };
}

/** Sign in. The token is sent once, and kept nowhere. */
export async function signIn(token) {
  await answer(await reach("/session", { method: "POST", headers: headers({ Authorization: `Bearer ${token}` }) }));
  await greet();
}

/** Sign out: the session ends, also in other tabs. */
export async function signOut() {
  await answer(await reach("/session", { method: "DELETE", headers: headers() }));
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
      const response = await send(`/events?${query}`, { headers: headers(more), signal });
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
