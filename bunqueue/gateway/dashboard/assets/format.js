// Numbers, sizes and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const stamp = new Intl.DateTimeFormat("en-GB", {
  day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
});
const day = new Intl.DateTimeFormat("en-GB", {
  weekday: "short", day: "2-digit", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
});

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", timeZoneName: "short" });

export const num = (value) => whole.format(value);
/** 12.3K, for numbers with little room. */
export const compact = (value) => (Math.abs(value) < 10000 ? whole.format(value) : short.format(value));
export const rate = (value) => (value >= 100 ? compact(value) : value >= 10 ? value.toFixed(0) : value.toFixed(value ? 1 : 0));

/** ms as 340 ms, 2.1 s, 4 min 10 s, 3 h 5 min, 2 d 4 h. */
export function duration(ms) {
  if (ms < 0) return `-${duration(-ms)}`;
  if (ms < 1) return ms ? "<1 ms" : "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const at = units.findIndex(([, size]) => seconds >= size);
  const [unit, size] = units[at];
  const first = Math.floor(seconds / size);
  const rest = at + 1 < units.length ? Math.floor((seconds - first * size) / units[at + 1][1]) : 0;
  return rest ? `${first} ${unit} ${rest} ${units[at + 1][0]}` : `${first} ${unit}`;
}

export const time = (at) => stamp.format(at);
export const moment = (at) => day.format(at);
/** 14:05 CET. */
export const hour = (at) => clock.format(at);

/** "3 s ago", "in 5 min". */
export function relative(at, now = Date.now()) {
  const apart = at - now, far = Math.abs(apart);
  if (far < 1000) return "now";
  if (far < 60_000) return apart > 0 ? `in ${Math.floor(far / 1000)} s` : `${Math.floor(far / 1000)} s ago`;
  if (apart > 0) return `in ${duration(far)}`;
  return `${far < 3_600_000 ? `${Math.floor(far / 60_000)} min` : duration(far)} ago`;
}

export function megabytes(value) {
  if (value >= 1024) return `${(value / 1024).toFixed(1)} GB`;
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} MB`;
}

/** 512 B, 2.1 KB, 3.4 MB. */
export const bytes = (size) => (size < 1000 ? `${size} B` : size < 1_000_000 ? `${(size / 1000).toFixed(1)} KB` : `${(size / 1_000_000).toFixed(1)} MB`);

export function percent(part, all) {
  if (!all) return "–";
  const share = (100 * part) / all;
  return part && share < 0.1 ? "<0.1 %" : `${share.toFixed(part && share < 10 ? 1 : 0)} %`;
}

/** Ids of jobs are long and begin alike, so their ends distinguish them. */
export const shortId = (id) => (id.length > 20 ? `…${id.slice(-12)}` : id);

export const plural = (count, noun) => `${num(count)} ${noun}${count === 1 ? "" : "s"}`;

/** What ended an attempt, in words: the server's name of an error that the handler raised is an older one. */
export const outcomeOf = (outcome) => (outcome === "explicit_fail" ? "failed" : outcome.replaceAll("_", " "));
