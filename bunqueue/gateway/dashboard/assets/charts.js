// Charts drawn by hand in SVG: lines over the last minutes, and bars by the minute.

import { fill, h, s } from "./dom.js";

const WIDTH = 480, HEIGHT = 150, LEFT = 44, BOTTOM = 18, TOP = 8;
const SPAN_MS = 300_000; // that a line chart shows

function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10, 20].map((step) => step * power).find((step) => step >= value * 1.02);
}

function grid(top, format) {
  return [0, 0.5, 1].map((part) => {
    const y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - part);
    return s("g", {}, s("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y, y2: y }),
      s("text", { class: "tick", x: LEFT - 8, y: y + 4, "text-anchor": "end" }, part ? format(top * part) : "0"));
  });
}

/**
 * A line chart.  Series: {name, of(point) -> number or null, kind}; points have `at` (ms).
 * `update(points)` draws them; pointing at it tells the numbers.
 */
export function lineChart({ title, series, format }) {
  const plot = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", preserveAspectRatio: "none" });
  const outer = h("div", { class: "plot" }, plot);
  const values = series.map(() => h("b", {}, "–"));
  const legend = h("div", { class: "legend" },
    series.map(({ name, kind }, place) => h("span", { "data-kind": kind }, h("i"), name, " ", values[place])));
  let drawn = [], x = () => 0, pointed = null;

  function tell(point) {
    series.forEach(({ of }, place) => {
      const value = point ? of(point) : null;
      values[place].textContent = value === null || value === undefined ? "–" : format(value);
    });
  }

  function update(points) {
    const now = points.length ? points[points.length - 1].at : Date.now();
    drawn = points.filter((point) => point.at >= now - SPAN_MS);
    const span = Math.min(SPAN_MS, Math.max(30_000, drawn.length ? now - drawn[0].at : 0));
    const top = ceiling(Math.max(0, ...drawn.flatMap((point) => series.map(({ of }) => of(point) ?? 0))));
    x = (at) => WIDTH - ((now - at) / span) * (WIDTH - LEFT);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
    const paths = series.map(({ of, kind }) => line(drawn, of, x, y, kind));
    const labels = s("g", {}, s("text", { class: "tick", x: LEFT, y: HEIGHT - 3 }, `${Math.round(span / 1000) >= 120 ? `${Math.round(span / 60000)} min` : `${Math.round(span / 1000)} s`} ago`),
      s("text", { class: "tick", x: WIDTH, y: HEIGHT - 3, "text-anchor": "end" }, "now"));
    fill(plot, grid(top, format), labels, paths, s("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }));
    tell(pointed === null ? drawn[drawn.length - 1] : nearest(pointed));
    plot.setAttribute("aria-label", `${title}: ${series.map(({ name }, place) => `${name} ${values[place].textContent}`).join(", ")}`);
  }

  const nearest = (place) => drawn.reduce((best, point) =>
    (best && Math.abs(x(best.at) - place) <= Math.abs(x(point.at) - place) ? best : point), null);

  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    pointed = ((event.clientX - box.left) / box.width) * WIDTH;
    const point = nearest(pointed);
    const cursor = plot.querySelector(".cursor");
    if (!point || !cursor) return;
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(point.at));
    cursor.setAttribute("visibility", "visible");
    tell(point);
  });
  plot.addEventListener("pointerleave", () => {
    pointed = null;
    plot.querySelector(".cursor")?.setAttribute("visibility", "hidden");
    tell(drawn[drawn.length - 1]);
  });
  return { element: h("div", { class: "chart" }, legend, outer), update };
}

function line(points, of, x, y, kind) {
  let path = "", pen = "M";
  for (const point of points) {
    const value = of(point);
    if (value === null || value === undefined) { pen = "M"; continue; }
    path += `${pen}${x(point.at).toFixed(1)},${y(value).toFixed(1)}`;
    pen = "L";
  }
  return s("path", { class: "line", "data-kind": kind, d: path || "M0,0" });
}

/** Bars by the minute, the newest at the right: completed ones, with the failed on top. */
export function minuteBars(completed, failed, minutes = 60) {
  const wide = WIDTH / minutes;
  const all = Array.from({ length: minutes }, (_, place) => [completed[place] || 0, failed[place] || 0]);
  const top = Math.max(1, ...all.map(([good, bad]) => good + bad));
  const scale = 56 / top;
  const bars = all.map(([good, bad], place) => {
    const x = WIDTH - (place + 1) * wide + 1;
    const bar = (kind, value, above) => value ? s("rect", { "data-kind": kind, x, width: wide - 2, height: Math.max(1, value * scale), y: 60 - above - Math.max(1, value * scale), rx: 1 }) : null;
    const title = s("title", {}, `${place ? `${place} min ago` : "this minute"}: ${good} completed, ${bad} failed`);
    return s("g", { class: "bar" }, title, s("rect", { class: "ghost", x, y: 0, width: wide - 2, height: 60 }), bar("completed", good, 0), bar("failed", bad, good * scale));
  });
  const sum = (list) => list.reduce((total, value) => total + value, 0);
  return s("svg", { class: "bars", viewBox: `0 0 ${WIDTH} 60`, role: "img", preserveAspectRatio: "none",
    "aria-label": `In the last hour ${sum(all.map(([good]) => good))} jobs completed and ${sum(all.map(([, bad]) => bad))} failed` }, bars);
}

/** How a queue's jobs are spread over the states, as one bar. */
export function spread(parts) {
  const all = parts.reduce((sum, [, count]) => sum + count, 0);
  let x = 0;
  const pieces = parts.filter(([, count]) => count).map(([kind, count]) => {
    const width = Math.max(2, (100 * count) / all);
    const piece = s("rect", { "data-kind": kind, x, width, height: 6 });
    x += width;
    return piece;
  });
  const label = parts.filter(([, count]) => count).map(([kind, count]) => `${count} ${kind}`).join(", ") || "empty";
  return s("svg", { class: "spread", viewBox: `0 0 ${Math.max(100, x)} 6`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("rect", { class: "ghost", width: Math.max(100, x), height: 6 }), pieces);
}
