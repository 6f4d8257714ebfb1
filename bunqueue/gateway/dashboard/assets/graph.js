// Graphs in plain SVG: boxes in layers, each box after all boxes that it depends on.  They run from left to right if
// there is room, otherwise from top to bottom.

import { h, s } from "./dom.js";

const WIDE = 178, LEAST_WIDE = 100, HIGH = 48; // of a box, in pixels; boxes are narrower where there is little room
const GAP = 12; // between boxes of a layer
const THIN = 12; // of an edge that passes through a layer
const ALONG = { right: 46, down: 34 }; // between two layers
const EDGE = 3; // around the whole graph
const SWEEPS = 4;
const BESIDE = 40; // of the width of a box, not available for its text
const SIZES = { title: "570 13px", note: "11.5px" }; // as the stylesheet says

/**
 * A graph.  `update({nodes, edges, picked})` draws it: nodes are {id, title, note, state, kind, hint, count},
 * edges are pairs of ids, without cycles.  `onpick(id)` is called when the user selects a box; boxes without `kind`
 * cannot be selected.
 */
export function graph({ label, onpick }) {
  const plot = s("svg", { role: "group", "aria-label": label });
  const element = h("div", { class: "graph", tabindex: "0" }, plot);
  let model = null, drawn = "", first = true;

  function draw() {
    if (!model || !element.clientWidth) return;
    const layout = arranged(model);
    const size = sizes(layout.layers, element.clientWidth);
    const now = JSON.stringify([model, size]);
    if (now === drawn) return;
    drawn = now;
    const held = element.contains(document.activeElement) ? document.activeElement.getAttribute("data-id") : null;
    const { at, width, height } = placed(layout, size);
    plot.replaceChildren();
    for (const [name, value] of [["width", width], ["height", height], ["viewBox", `0 0 ${width} ${height}`]]) plot.setAttribute(name, value);
    plot.append(...layout.chains.map((chain) => edge(chain, layout, at, size.right)),
      ...model.nodes.map((node) => box(node, at.get(node.id), node.id === model.picked, onpick)));
    if (first) element.scrollLeft = (width - element.clientWidth) / 2;
    first = false;
    if (held !== null) plot.querySelector(`[data-id="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
  }

  new ResizeObserver(draw).observe(element); // ends with the element
  return { element, update(now) {
    model = now;
    draw();
  } };
}

/** The layer of each box, and the order within it; `chains` are the edges with everything that they pass. */
function arranged({ nodes, edges }) {
  const known = new Map(nodes.map((node) => [node.id, node]));
  const valid = edges.filter(([from, to]) => known.has(from) && known.has(to));
  const depth = depths([...known.keys()], valid);
  const layers = [];
  const enter = (id, layer) => (layers[layer] ??= []).push(id);
  for (const id of known.keys()) enter(id, depth.get(id));
  const chains = valid.map(([from, to]) => {
    const chain = [from];
    for (let layer = depth.get(from) + 1; layer < depth.get(to); layer++) {
      const passing = `${from}\n${to}\n${layer}`; // never a real id
      enter(passing, layer);
      chain.push(passing);
    }
    return [...chain, to];
  });
  untangle(layers, chains);
  return { known, layers, chains };
}

function depths(ids, edges) {
  const depth = new Map(ids.map((id) => [id, 0])), open = new Map(ids.map((id) => [id, 0])), after = new Map(ids.map((id) => [id, []]));
  for (const [from, to] of edges) { after.get(from).push(to); open.set(to, open.get(to) + 1); }
  const ready = ids.filter((id) => !open.get(id));
  for (let id = ready.shift(); id !== undefined; id = ready.shift()) {
    for (const next of after.get(id)) {
      depth.set(next, Math.max(depth.get(next), depth.get(id) + 1));
      open.set(next, open.get(next) - 1);
      if (!open.get(next)) ready.push(next);
    }
  }
  const first = new Set(ids);
  for (const [, to] of edges) first.delete(to);
  for (const id of first) if (after.get(id).length) depth.set(id, Math.min(...after.get(id).map((next) => depth.get(next))) - 1); // close to the jobs that wait for it
  return depth;
}

/** Move neighbours close together: each box to the middle of those that it is joined to, in both directions. */
function untangle(layers, chains) {
  const before = new Map(), after = new Map();
  const join = (map, one, other) => { if (map.has(one)) map.get(one).push(other); else map.set(one, [other]); };
  for (const chain of chains) for (let place = 1; place < chain.length; place++) { join(before, chain[place], chain[place - 1]); join(after, chain[place - 1], chain[place]); }
  const place = new Map();
  const number = (layer) => layer.forEach((id, at) => place.set(id, at - (layer.length - 1) / 2));
  layers.forEach(number);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const neighbours = sweep % 2 ? after : before;
    for (const layer of sweep % 2 ? [...layers].reverse() : layers) {
      const middle = (id) => { const some = neighbours.get(id); return some ? some.reduce((sum, each) => sum + place.get(each), 0) / some.length : place.get(id); };
      const wanted = new Map(layer.map((id) => [id, middle(id)]));
      layer.sort((one, other) => wanted.get(one) - wanted.get(other));
      number(layer);
    }
  }
}

/** Whether the graph runs from left to right (if there is room), and the width of the boxes of each layer. */
function sizes(layers, room) {
  const right = layers.length * (WIDE + ALONG.right) - ALONG.right + 2 * EDGE <= room;
  const fitting = (count) => Math.floor((room - 2 * EDGE - (count - 1) * GAP) / count);
  return { right, wide: layers.map(({ length }) => (right ? WIDE : Math.min(WIDE, Math.max(LEAST_WIDE, fitting(length))))) };
}

/** The upper left corner of each box. */
function placed({ known, layers }, { right, wide }) {
  const across = (id, layer) => (known.has(id) ? (right ? HIGH : wide[layer]) : THIN);
  const extent = (ids, layer) => ids.reduce((sum, id) => sum + across(id, layer) + GAP, -GAP);
  const most = Math.max(...layers.map(extent));
  const at = new Map();
  layers.forEach((layer, number) => {
    let offset = EDGE + (most - extent(layer, number)) / 2;
    const along = EDGE + number * (right ? WIDE + ALONG.right : HIGH + ALONG.down);
    for (const id of layer) {
      at.set(id, { x: right ? along : offset, y: right ? offset : along, wide: wide[number], thick: across(id, number) });
      offset += across(id, number) + GAP;
    }
  });
  const length = layers.length * (right ? WIDE + ALONG.right : HIGH + ALONG.down) - (right ? ALONG.right : ALONG.down) + 2 * EDGE;
  return right ? { at, width: length, height: most + 2 * EDGE } : { at, width: most + 2 * EDGE, height: length };
}

function edge(chain, { known }, at, right) {
  const points = chain.flatMap((id) => {
    const { x, y, wide, thick } = at.get(id);
    const ends = right ? [[x, y + thick / 2], [x + wide, y + thick / 2]] : [[x + thick / 2, y], [x + thick / 2, y + HIGH]];
    return known.has(id) ? [ends[id === chain[0] ? 1 : 0]] : ends;
  });
  let path = `M${points[0]}`;
  for (let place = 1; place < points.length; place++) {
    const [fromX, fromY] = points[place - 1], [toX, toY] = points[place];
    const middleX = (fromX + toX) / 2, middleY = (fromY + toY) / 2;
    path += right ? `C${middleX},${fromY} ${middleX},${toY} ${toX},${toY}` : `C${fromX},${middleY} ${toX},${middleY} ${toX},${toY}`;
  }
  return s("path", { class: "edge", "data-state": known.get(chain[chain.length - 1]).state, d: path });
}

const pen = document.createElement("canvas").getContext("2d");

/** The text, or as much of it as fits into a box. */
function cut(text, wide, kind) {
  pen.font = `${SIZES[kind]} ${getComputedStyle(document.body).fontFamily}`;
  const fits = (length) => pen.measureText(length < text.length ? `${text.slice(0, length)}…` : text).width <= wide - BESIDE;
  let length = text.length;
  while (length > 1 && !fits(length)) length = Math.min(length - 1, Math.ceil(length * 0.9));
  return length < text.length ? `${text.slice(0, length)}…` : text;
}

function box({ id, title, note, state, kind, hint, count }, { x, y, wide }, picked, onpick) {
  const pick = (event) => {
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    onpick(id);
  };
  const able = kind ? { role: "button", tabindex: "0", "aria-pressed": String(picked), onclick: pick, onkeydown: pick } : {};
  const shape = (away) => s("rect", { class: "shape", x: away, y: away, width: wide, height: HIGH, rx: kind ? 9 : HIGH / 2 });
  return s("g", { class: "node", "data-id": id, "data-state": state, "data-kind-of": kind, "data-picked": picked, transform: `translate(${x} ${y})`, "aria-label": `${title}: ${note}`, ...able },
    s("title", {}, hint ?? title), count > 1 ? shape(3) : null, shape(0), s("circle", { class: "sign", cx: 17, cy: HIGH / 2, r: 4.5 }),
    s("text", { class: "title", x: 31, y: 20 }, cut(title, wide, "title")), s("text", { class: "note", x: 31, y: 37 }, cut(note, wide, "note")));
}
