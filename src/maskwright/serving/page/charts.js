// Curves as SVG: thinned for the eye, smoothed, on plain or logarithmic scales. Points are pairs [x, y] in order of x.

import { formatFigure } from "./common.js";

const SVG = "http://www.w3.org/2000/svg";
const USUAL_WIDTH = 520;
const HEIGHT = 230;
const EDGES = { left: 52, right: 10, top: 8, bottom: 26 };

export function draw(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** At most about `most` points: of every stretch of x the lowest and the highest are kept. */
export function thinPoints(points, most) {
  if (points.length <= most) return points;
  const [first, last] = [points[0][0], points.at(-1)[0]];
  const count = Math.max(1, Math.floor(most / 2));
  const kept = [];
  let stretch = -1;
  let low = null;
  let high = null;
  const flush = () => {
    if (low === null) return;
    if (low === high) kept.push(low);
    else kept.push(...(low[0] <= high[0] ? [low, high] : [high, low]));
  };
  for (const point of points) {
    const place = last > first ? Math.min(count - 1, Math.floor(((point[0] - first) / (last - first)) * count)) : 0;
    if (place !== stretch) { flush(); [stretch, low, high] = [place, point, point]; }
    if (point[1] < low[1]) low = point;
    if (point[1] > high[1]) high = point;
  }
  flush();
  if (kept.at(-1) !== points.at(-1)) kept.push(points.at(-1));
  return kept;
}

/** A running mean over a share of the curve; it looks as far back as ahead, and less far at the ends. */
export function smoothPoints(points, share) {
  const reach = Math.floor((points.length * share) / 2);
  if (reach < 1) return points;
  const sums = [0];
  for (const [, y] of points) sums.push(sums.at(-1) + y);
  return points.map(([x], place) => {
    const around = Math.min(reach, place, points.length - 1 - place);
    return [x, (sums[place + around + 1] - sums[place - around]) / (2 * around + 1)];
  });
}

/** Where x is another figure of the same steps, such as tokens or seconds: read between the points that are known. */
export function changeAxis(points, axis) {
  if (!axis || axis.length < 1) return [];
  let place = 0;
  return points.map(([step, y]) => {
    while (place + 1 < axis.length && axis[place + 1][0] < step) place += 1;
    const [a, b] = [axis[place], axis[Math.min(place + 1, axis.length - 1)]];
    if (step <= a[0] || b[0] === a[0]) return [a[1] * (place === 0 && a[0] > 0 ? Math.min(1, step / a[0]) : 1), y];
    if (step >= b[0]) return [b[1], y];
    return [a[1] + ((b[1] - a[1]) * (step - a[0])) / (b[0] - a[0]), y];
  });
}

/** New points behind old ones; the last stretch of the old ones may come again. */
export function joinPoints(before, after) {
  if (!after.length) return before;
  return [...before.filter((point) => point[0] < after[0][0]), ...after];
}

export function chooseTicks(low, high, most = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) ticks.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  return ticks;
}

function chooseLogTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const one of [1, 2, 5]) ticks.push(one * 10 ** power);
  }
  const inside = ticks.filter((tick) => tick >= low && tick <= high);
  if (inside.length < 2) return chooseTicks(low, high, 4).filter((tick) => tick > 0);
  return inside.length > 6 ? inside.filter((tick) => String(tick.toExponential())[0] === "1") : inside;
}

/**
 * Draws series over each other: { points, hue, name, dots }. `format` writes values, `formatX` places.
 * Gives the SVG; moving over it shows the values, and so do the arrow keys.
 */
export function drawChart(series, { smoothing = 0, isLog = false, format = formatFigure, formatX = formatFigure, title = "", tell, width = USUAL_WIDTH } = {}) {
  const shown = series.map((one) => {
    const known = isLog ? one.points.filter(([, y]) => y > 0) : one.points;
    return { ...one, raw: known, line: one.dots ? known : smoothPoints(known, smoothing) };
  }).filter((one) => one.raw.length);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": describe(title, shown, format, formatX), tabindex: 0 });
  if (!shown.length) return svg;
  const scales = buildScales(shown, smoothing, isLog, width);
  drawAxes(svg, scales, isLog, format, formatX);
  for (const one of shown) {
    const path = (points, name) => draw("path", { class: `${name} stroke-${one.hue}`, d: writePath(thinPoints(points, 2 * width), scales) });
    if (one.line !== one.raw) svg.append(path(one.raw, "raw"));
    if (one.line.length > 1) svg.append(path(one.line, one.dots ? "curve dashed" : "curve"));
    if (one.dots || one.line.length === 1) {
      for (const [x, y] of thinPoints(one.raw, 60)) svg.append(draw("circle", { class: `dot fill-${one.hue}`, cx: scales.x(x).toFixed(1), cy: scales.y(y).toFixed(1), r: 2.7 }));
    }
  }
  if (tell) addCursor(svg, shown, scales, tell);
  return svg;
}

function describe(title, shown, format, formatX) {
  if (!shown.length) return `${title}: no values yet`;
  const parts = shown.map(({ name, raw }) => `${name} ${format(raw[0][1])} at ${formatX(raw[0][0])} to ${format(raw.at(-1)[1])} at ${formatX(raw.at(-1)[0])}`);
  return `${title}: ${parts.join("; ")}`;
}

function buildScales(shown, smoothing, isLog, width) {
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const one of shown) {
    // With smoothing the eye follows the smooth curve, so extreme single values may leave the picture.
    const points = smoothing > 0 && !one.dots && one.line.length > 20 ? [...one.line, one.raw.at(-1)] : one.raw;
    for (const [x, y] of points) {
      if (x < left) left = x;
      if (x > right) right = x;
      if (y < low) low = y;
      if (y > high) high = y;
    }
  }
  if (right === left) right = left + 1;
  if (high === low) [low, high] = isLog ? [low / 1.1, high * 1.1] : [low - Math.abs(low) * 0.05 - 1e-9, high + Math.abs(high) * 0.05 + 1e-9];
  const change = isLog ? Math.log10 : (value) => value;
  const [from, to] = [change(low), change(high)];
  const room = (to - from) * 0.05;
  const isFloored = !isLog && low >= 0 && from - room < 0;
  const [bottom, top] = [isFloored ? 0 : from - room, to + room];
  return {
    left, right, low: isLog ? 10 ** bottom : bottom, high: isLog ? 10 ** top : top,
    width,
    x: (value) => EDGES.left + ((value - left) / (right - left)) * (width - EDGES.left - EDGES.right),
    y: (value) => HEIGHT - EDGES.bottom - ((change(value) - bottom) / (top - bottom)) * (HEIGHT - EDGES.top - EDGES.bottom),
    place: (pixel) => left + ((pixel - EDGES.left) / (width - EDGES.left - EDGES.right)) * (right - left),
  };
}

function drawAxes(svg, scales, isLog, format, formatX) {
  for (const tick of isLog ? chooseLogTicks(scales.low, scales.high) : chooseTicks(scales.low, scales.high)) {
    const y = scales.y(tick).toFixed(1);
    svg.append(draw("line", { class: "grid", x1: EDGES.left, x2: scales.width - EDGES.right, y1: y, y2: y }));
    svg.append(write(format(tick), { x: EDGES.left - 7, y: Number(y) + 3.5, "text-anchor": "end" }));
  }
  for (const tick of chooseTicks(scales.left, scales.right, scales.width < 400 ? 4 : 5)) {
    svg.append(write(formatX(tick), { x: scales.x(tick).toFixed(1), y: HEIGHT - 8, "text-anchor": "middle" }));
  }
  const y = HEIGHT - EDGES.bottom;
  svg.append(draw("line", { class: "grid", x1: EDGES.left, x2: scales.width - EDGES.right, y1: y, y2: y }));
}

function write(text, attributes) {
  const node = draw("text", { class: "tick", ...attributes });
  node.textContent = text;
  return node;
}

function writePath(points, scales) {
  // What leaves the picture above or below is cut at its edge.
  const clip = (y) => Math.max(-4, Math.min(HEIGHT + 4, y));
  return points.map(([x, y], place) => `${place ? "L" : "M"}${scales.x(x).toFixed(1)} ${clip(scales.y(y)).toFixed(1)}`).join("");
}

function addCursor(svg, shown, scales, tell) {
  const line = draw("line", { class: "baseline", y1: EDGES.top, y2: HEIGHT - EDGES.bottom, visibility: "hidden" });
  svg.append(line);
  let at = null;
  const show = (x) => {
    at = Math.max(scales.left, Math.min(scales.right, x));
    line.setAttribute("x1", scales.x(at));
    line.setAttribute("x2", scales.x(at));
    line.setAttribute("visibility", "visible");
    tell(at, shown.map((one) => ({ ...one, value: findNearest(one.line, at) })));
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    show(scales.place(((event.clientX - box.left) / box.width) * scales.width));
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show((at ?? scales.right) + (step * (scales.right - scales.left)) / 50);
  });
  const hide = () => { line.setAttribute("visibility", "hidden"); at = null; tell(null, []); };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
}

export function findNearest(points, x) {
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= x) low = middle;
    else high = middle;
  }
  return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high];
}
