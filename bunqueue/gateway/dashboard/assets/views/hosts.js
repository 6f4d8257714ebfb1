// The hosts of a cluster: whether they are alive and what they own; the place, the copies and the moves of each shard.

import { call, cluster, may } from "../api.js";
import { ask, attempt, confirm, toast } from "../dialogs.js";
import { badge, button, empty, fill, h, text } from "../dom.js";
import { duration, num, plural } from "../format.js";
import { keepFresh } from "../live.js";
import { table } from "../table.js";

const EVERY_MS = 2000;

const stateOf = (host) => (!host.alive ? "dead" : !host.reached ? "not reached" : host.draining ? "draining" : "alive");
const TONES = { alive: "on", dead: "failed", "not reached": "failed", draining: "paused" };
const moving = (place) => place.owner && place.home && place.owner !== place.home;

const hostColumns = (act) => [
  { name: "name", title: "Host", class: "name", cell: (host) => [host.name, " ", badge(stateOf(host), TONES[stateOf(host)])] },
  { name: "owns", title: "Owns", class: "number", cell: (host) => num(host.owns) },
  { name: "follows", title: "Follows", class: "number", cell: (host) => num(host.follows) },
  { name: "beat", title: "Last beat", class: "number", cell: (host) => (host.beatAge == null ? "–" : duration(host.beatAge)) },
  { name: "load", title: "Load", class: "number", cell: (host) => (host.load == null ? "–" : h("span", { class: host.load > 1 ? "bad" : "", title: "Processes that want a core, per core, in the mean of a minute" }, host.load.toFixed(2))) },
  { name: "clients", title: "Clients", cell: (host) => h("span", { class: "muted" }, host.clients) },
  { name: "link", title: "Hosts", cell: (host) => h("span", { class: "muted" }, host.link) },
  { name: "version", title: "Version", cell: (host) => host.version },
  { name: "do", title: "", class: "number", cell: (host) => (may("ClusterDrain") ? h("span", { class: "row-actions" }, act.of(host)) : "") },
];

const shardColumns = (act, state) => [
  { name: "shard", title: "Shard", class: "number", cell: (place) => num(place.shard) },
  { name: "owner", title: "Owner", cell: (place) => [place.owner || badge("no owner", "failed"), moving(place) ? h("span", { class: "muted" }, ` moves to ${place.home}`) : null] },
  { name: "position", title: "Position", class: "number", cell: (place) => num(place.position) },
  { name: "snapshot", title: "Snapshot", class: "number", cell: (place) => num(place.snapshot) },
  { name: "epoch", title: "Epoch", class: "number", cell: (place) => num(place.epoch) },
  { name: "copies", title: "Copies", cell: (place) => (place.copies.length ? place.copies.map((copy, at) => copyOf(copy, at, state.lagLimit)) : h("span", { class: "bad" }, "none")) },
  { name: "do", title: "", class: "number", cell: (place) => (may("ClusterMove") ? button("Move", () => act.move(place), "small") : "") },
];

const copyOf = (copy, at, lagLimit) => [at ? ", " : null, `${copy.host} `,
  h("span", { class: copy.behind >= lagLimit ? "bad" : "muted" }, copy.behind ? `${num(copy.behind)} behind` : "up to date")];

/** The actions of the buttons; `state.hosts` are the displayed hosts. */
function actions(state, again) {
  const told = async (work, done) => { if (await attempt(work, done)) again(); };
  return {
    of(host) {
      if (!host.alive) return button("Forget", () => this.forget(host), "small");
      if (host.draining) return button("End drain", () => told(() => call("ClusterDrain", { host: host.name, draining: false }), `${host.name} may own shards again`), "small");
      return button("Drain", () => this.drain(host), "small");
    },
    drain: (host) => confirm({ title: `Drain ${host.name}?`, action: "Drain", body: `${plural(host.owns, "shard")} move to other hosts. It owns none until its drain is ended.`,
      submit: async () => {
        await call("ClusterDrain", { host: host.name });
        toast(`The shards of ${host.name} move to others`);
        again();
      } }),
    forget: (host) => confirm({ title: `Forget ${host.name}?`, action: "Forget", body: "It is dead. Do this if it will not come back under its name.",
      submit: async () => {
        await call("ClusterForget", { host: host.name });
        toast(`${host.name} is removed`);
        again();
      } }),
    move(place) {
      const others = state.hosts.filter((host) => host.alive && !host.draining && host.name !== place.owner);
      if (!others.length) { toast("There is no other host that could have it", "bad"); return; }
      ask({ title: `Move shard ${place.shard}`, action: "Move", body: "It stays there until the shards are rebalanced.",
        fields: [{ name: "host", label: "To", kind: "choice", options: others.map((host) => [host.name, host.name]), value: others[0].name }],
        submit: async ({ host }) => {
          await call("ClusterMove", { shard: place.shard, host });
          toast(`Shard ${place.shard} moves to ${host}`);
          again();
        } });
    },
    rebalance: () => told(() => call("ClusterRebalance"), "The hosts get their shares"),
  };
}

export function hosts({ main, signal }) {
  const note = h("p", { class: "problem" });
  const head = h("div", { class: "page-head" }, h("h1", {}, "Hosts"), note);
  if (!cluster()) {
    fill(main, head, empty("This server is not a host of a cluster", "It serves all its shards by itself. ", h("code", {}, "bunqueue start --cluster"), " starts one that shares them."));
    return;
  }
  const state = { hosts: [], lagLimit: Infinity };
  const act = actions(state, () => fresh.refresh());
  const living = h("span", { class: "muted" }), places = h("span", { class: "muted" });
  const hostList = table({ columns: hostColumns(act), key: (host) => host.id, label: "Hosts", none: empty("There are no hosts") });
  const shardList = table({ columns: shardColumns(act, state), key: (place) => place.shard, label: "Shards", none: empty("There are no shards") });
  fill(main, head,
    h("section", { class: "card flush" }, h("div", { class: "card-head" }, h("h2", {}, `Hosts of ${cluster()}`), living), hostList.element),
    h("section", { class: "card flush" }, h("div", { class: "card-head" }, h("h2", {}, "Shards"), places, may("ClusterRebalance") ? button("Rebalance", act.rebalance, "small") : null), shardList.element));

  const fresh = keepFresh({ every: EVERY_MS, signal, note, refresh: async () => {
    const found = (await call("ClusterStatus", {}, signal)).data;
    state.hosts = found.hosts;
    state.lagLimit = found.lagLimit;
    hostList.update(found.hosts);
    shardList.update(found.shards);
    const alive = found.hosts.filter((host) => host.alive).length;
    text(living, `${num(alive)} of ${num(found.hosts.length)} alive, as ${found.host} sees it${found.error ? `; this is old, as the store cannot be read: ${found.error}` : ""}`);
    const alone = found.shards.filter((place) => !place.owner).length;
    text(places, `${plural(found.shards.length, "shard")}, ${num(found.shards.filter(moving).length)} moving, ${num(alone)} without an owner`);
  } });
}
