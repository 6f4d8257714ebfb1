// Charts in plain SVG: lines over the last minutes, and bars per minute.

import { fill, h, s, text } from "./dom.js";
import { hour, num, plural, time } from "./format.js";

const WIDTH = 480, BARS_HEIGHT = 60; // of bars, which stretch to the available width
const MINUTE_MS = 60_000;
const HEIGHT = 150, LEFT = 46, BOTTOM = 18, TOP = 8; // of lines, in pixels
const LEAST_MS = 60_000; // the shortest time span of a chart, for a server that has just started
const PIXELS = 2; // between two points; closer points are merged
const GAP_MS = 45_000; // without points: the values in between are unknown

function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10, 20].map((step) => step * power).find((step) => step >= value * 1.02);
}

function grid(top, width, format) {
  return [0, 0.5, 1].map((part) => {
    const y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - part);
    return s("g", {}, s("line", { class: "grid", x1: LEFT, x2: width, y1: y, y2: y }),
      s("text", { class: "tick", x: LEFT - 8, y: y + 4, "text-anchor": "end" }, part ? format(top * part) : "0"));
  });
}

/** The mean of points that are close together, so that an hour looks as smooth as a minute. */
function thinned(points, fields, step) {
  const groups = new Map();
  for (const point of points) {
    const group = Math.floor(point.at / step);
    if (groups.has(group)) groups.get(group).push(point);
    else groups.set(group, [point]);
  }
  return [...groups.values()].map((group) => {
    const mean = { at: group[group.length - 1].at };
    for (const field of fields) {
      const known = group.map((point) => point[field]).filter((value) => value !== null);
      mean[field] = known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
    }
    return mean;
  });
}

/**
 * A line chart.  Series: {name, field of a point (its name unless given), kind, upper: another field, of the same
 * kind, above which the first one is drawn faintly}; points have `at` (ms).
 * `update(points, span)` draws the points of the last `span` ms.  Hovering shows the numbers.
 */
export function lineChart({ title, series, format }) {
  const lines = series.flatMap(({ name, field = name, kind, upper }) =>
    (upper ? [{ name, field, kind, faint: true }, { field: upper, kind }] : [{ name, field, kind }]));
  const fields = lines.map(({ field }) => field);
  const plot = s("svg", { role: "img", height: HEIGHT });
  const values = lines.map(() => h("b", {}, "–"));
  const when = h("span", { class: "when" });
  const legend = h("div", { class: "legend" },
    lines.map(({ name, kind, faint }, place) => (name ? h("span", { "data-kind": kind }, h("i"), name, " ", values[place], faint ? [" / ", values[place + 1]] : null) : null)), when);
  let all = [], span = LEAST_MS, drawn = [], x = () => 0, pointed = null;

  function tell(point) {
    lines.forEach(({ field }, place) => text(values[place], shown(point?.[field])));
    text(when, pointed === null || !point ? "" : time(point.at));
  }
  const shown = (value) => (value === null || value === undefined ? "–" : format(value));

  function draw() {
    const width = plot.clientWidth || WIDTH;
    const now = all.length ? all[all.length - 1].at : Date.now();
    const length = Math.min(span, Math.max(LEAST_MS, all.length ? now - all[0].at : 0));
    drawn = thinned(all.filter((point) => point.at >= now - length), fields, (length / (width - LEFT)) * PIXELS);
    const top = ceiling(Math.max(0, ...drawn.flatMap((point) => fields.map((field) => point[field] ?? 0))));
    x = (at) => width - ((now - at) / length) * (width - LEFT);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
    const labels = s("g", {}, s("text", { class: "tick", x: LEFT, y: HEIGHT - 3 }, `${Math.round(length / 60_000)} min ago`),
      s("text", { class: "tick", x: width, y: HEIGHT - 3, "text-anchor": "end" }, "now"));
    plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    fill(plot, grid(top, width, format), labels, lines.map((each) => line(drawn, each, x, y)),
      s("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }));
    follow();
    plot.setAttribute("aria-label", `${title}: ${lines.map(({ name }, place) => `${name ?? "and"} ${values[place].textContent}`).join(", ")}`);
  }

  const nearest = (place) => drawn.reduce((best, each) =>
    (best && Math.abs(x(best.at) - place) <= Math.abs(x(each.at) - place) ? best : each), null);

  function follow() {
    const found = pointed === null ? drawn[drawn.length - 1] : nearest(pointed);
    const cursor = plot.querySelector(".cursor");
    if (cursor && found) for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(found.at));
    cursor?.setAttribute("visibility", found && pointed !== null ? "visible" : "hidden");
    tell(found);
  }

  plot.addEventListener("pointermove", (event) => {
    pointed = event.clientX - plot.getBoundingClientRect().left;
    follow();
  });
  plot.addEventListener("pointerleave", () => {
    pointed = null;
    follow();
  });
  new ResizeObserver(draw).observe(plot); // ends with the element
  return { element: h("div", { class: "chart" }, legend, h("div", { class: "plot" }, plot)), update(points, within) {
    [all, span] = [points, within];
    draw();
  } };
}

function line(points, { field, kind, faint }, x, y) {
  let path = "", pen = "M", last = 0;
  for (const point of points) {
    const value = point[field];
    if (point.at - last > GAP_MS) pen = "M";
    last = point.at;
    if (value === null || value === undefined) { pen = "M"; continue; }
    path += `${pen}${x(point.at).toFixed(1)},${y(value).toFixed(1)}`;
    pen = "L";
  }
  return s("path", { class: faint ? "line faint" : "line", "data-kind": kind, d: path || "M0,0" });
}

/** Bars per minute, the newest on the right: completed jobs, with failed ones on top; their sums, a scale and times. */
export function minuteBars(completed, failed, minutes = 60) {
  const wide = WIDTH / minutes;
  const all = Array.from({ length: minutes }, (_, place) => [completed[place] || 0, failed[place] || 0]);
  const top = ceiling(Math.max(1, ...all.map(([good, bad]) => good + bad)));
  const scale = BARS_HEIGHT / top;
  const bars = all.map(([good, bad], place) => {
    const x = WIDTH - (place + 1) * wide + 1;
    const bar = (kind, value, above) => value ? s("rect", { "data-kind": kind, x, width: wide - 2, height: Math.max(1, value * scale), y: BARS_HEIGHT - above - Math.max(1, value * scale), rx: 1 }) : null;
    const title = s("title", {}, `${place ? `${place} min ago` : "this minute"}: ${num(good)} completed, ${num(bad)} failed`);
    return s("g", { class: "bar" }, title, s("rect", { class: "ghost", x, y: 0, width: wide - 2, height: BARS_HEIGHT }), bar("completed", good, 0), bar("failed", bad, good * scale));
  });
  const sum = (place) => all.reduce((total, each) => total + each[place], 0);
  const lines = [0, 0.5].map((part) => s("line", { class: "grid", x1: 0, x2: WIDTH, y1: BARS_HEIGHT * part, y2: BARS_HEIGHT * part }));
  const plot = s("svg", { class: "bars", viewBox: `0 0 ${WIDTH} ${BARS_HEIGHT}`, role: "img", preserveAspectRatio: "none",
    "aria-label": `In the last hour ${plural(sum(0), "job")} completed and ${num(sum(1))} failed` }, lines, bars);
  const now = Date.now(), ago = (part) => hour(now - part * minutes * MINUTE_MS);
  return [h("div", { class: "legend" }, ["completed", "failed"].map((kind, place) => h("span", { "data-kind": kind }, h("i"), kind, " ", h("b", {}, num(sum(place)))))),
    h("div", { class: "minutes" }, h("div", { class: "heights muted" }, [1, 0.5, 0].map((part) => h("span", {}, top * part % 1 ? "" : num(top * part)))), plot,
      h("div", { class: "hours muted" }, [h("span", {}, ago(1)), h("span", {}, ago(0.5)), h("span", {}, "now")]))];
}

/** What the colours of `spread` mean. */
export const spreadLegend = (kinds) => h("div", { class: "legend pad" }, kinds.map(([kind, label]) => h("span", { "data-kind": kind }, h("i"), label)));

const SLIVER = 1.5; // of 100: the minimum width of a state with few jobs
const FULL = 20; // jobs that fill a bar; with fewer, part of it stays empty, so a single job does not look like many

/** The distribution of a queue's jobs over the states, as one bar: each is as wide as its share, but always visible. */
export function spread(parts) {
  const some = parts.filter(([, count]) => count);
  const all = Math.max(FULL, some.reduce((sum, [, count]) => sum + count, 0));
  const wide = some.map(([, count]) => Math.max(SLIVER, (100 * count) / all));
  const whole = Math.max(100, wide.reduce((sum, width) => sum + width, 0));
  let x = 0;
  const pieces = some.map(([kind], place) => {
    const width = (100 * wide[place]) / whole;
    const piece = s("rect", { "data-kind": kind, x, width, height: 6 });
    x += width;
    return piece;
  });
  const label = some.map(([kind, count]) => `${num(count)} ${kind}`).join(", ") || "empty";
  return s("svg", { class: "spread", viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("title", {}, label), s("rect", { class: "ghost", width: 100, height: 6 }), pieces);
}
