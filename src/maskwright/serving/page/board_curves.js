// Curves of the chosen runs over each other, fetched as they grow.

import { changeAxis, drawChart, joinPoints } from "./charts.js";
import { fill, formatCount, formatDuration, formatFigure, formatPercent, formatBytes, h, request } from "./common.js";
import { writeName } from "./board_details.js";

const POINTS = 1500;
const MOST_VALUES = 4;
const HELD_OUT = "val_";
const PANELS = [
  { title: "Loss", keys: ["loss"] },
  { title: "Accuracy", keys: ["mlm_accuracy", "clm_accuracy", "accuracy", "pearson", "exact"], format: formatShare },
  { title: "Learning rate", keys: ["lr"] },
  { title: "Tokens per second", keys: ["tokens_per_s"], format: formatCount },
  { title: "Waiting for data", keys: ["data_wait"], format: formatShare, hint: "of the time" },
  { title: "Gradient norm", keys: ["grad_norm"] },
  { title: "GPU memory", keys: ["gpu_memory_bytes"], format: formatBytes, hint: "most used so far" },
];
/** What is no curve of its own: places, and what hardly ever changes. */
const PLACES = new Set(["epoch", "tokens", "progress", "elapsed_s"]);
const AXES = {
  step: { title: "steps", format: formatCount },
  tokens: { title: "tokens", format: formatCount },
  elapsed_s: { title: "training time", format: (seconds) => (seconds < 1 ? `${seconds.toFixed(1)} s` : formatDuration(seconds)) },
};
const view = { smoothing: 0, isLog: false, axis: "step", added: [] };
const caches = new Map();

function formatShare(value) {
  return value === 0 ? "0%" : Math.abs(value) <= 1 ? formatPercent(value).replace(/\.00?%$/, "%") : formatFigure(value);
}

export function buildCurves(chosen) {
  const charts = h("div", { class: "charts" });
  const notes = h("div", { class: "notes" });
  const panels = new Map();
  const show = () => {
    showAdder(adder, chosen, show);
    showNotes(notes, chosen);
    const wanted = listPanels(chosen);
    for (const panel of wanted) if (!panels.has(panel.title)) panels.set(panel.title, buildPanel(panel));
    const elements = wanted.map((panel) => panels.get(panel.title).element);
    if (elements.length !== charts.children.length || elements.some((one, place) => charts.children[place] !== one)) fill(charts, elements);
    for (const panel of wanted) panels.get(panel.title).show(chosen);
  };
  const redraw = () => { for (const panel of panels.values()) panel.forget(); show(); };
  const smoothing = h("input", { type: "range", min: 0, max: 100, value: view.smoothing, id: "smoothing", oninput: (event) => { view.smoothing = Number(event.target.value); redraw(); } });
  const log = h("input", { type: "checkbox", id: "log-scale", checked: view.isLog, onchange: (event) => { view.isLog = event.target.checked; redraw(); } });
  const axis = h("select", { id: "axis", onchange: (event) => { view.axis = event.target.value; redraw(); } }, Object.entries(AXES).map(([key, one]) => h("option", { value: key, selected: key === view.axis }, one.title)));
  const adder = h("select", { id: "adder", onchange: (event) => { if (event.target.value) view.added.push(event.target.value); event.target.value = ""; show(); } });
  const controls = h("div", { class: "controls" },
    h("label", { for: "smoothing" }, "Smoothing", smoothing), h("label", { for: "axis" }, "Across", axis),
    h("label", { class: "check", for: "log-scale" }, log, "Logarithmic"), h("label", { for: "adder" }, "Also show", adder));
  return { element: h("div", {}, controls, notes, charts), refresh: async () => { await Promise.all(chosen.map(loadCurves)); show(); } };
}

/** All curves once, then only what is new; all again when the server says that what was read no longer stands. */
async function loadCurves(one) {
  const cache = caches.get(one.name) ?? { curves: new Map(), generation: null, updated: null, share: 0, last: null };
  caches.set(one.name, cache);
  if (cache.updated !== null && cache.updated === one.run?.updated && cache.share === 1) return;
  const isMore = cache.share === 1 && cache.last !== null;
  const asked = new URLSearchParams(isMore ? { points: POINTS, after_step: cache.last - 1 } : { points: POINTS });
  try {
    const updated = one.run?.updated ?? null;
    const { answer, headers } = await request(`/api/runs/${writeName(one.name)}/metrics?${asked}`);
    const generation = headers.get("X-Generation");
    if (isMore && generation !== cache.generation) { cache.share = 0; await loadCurves(one); return; }
    for (const [key, points] of Object.entries(answer)) cache.curves.set(key, isMore ? joinPoints(cache.curves.get(key) ?? [], points) : points);
    const share = Number(headers.get("X-Read-Share"));
    Object.assign(cache, { generation, share, updated, damaged: Number(headers.get("X-Damaged-Lines")), lines: Number(headers.get("X-Lines")), problem: null, version: (cache.version ?? 0) + 1 });
    cache.last = Math.max(-1, ...[...cache.curves.values()].map((points) => points.at(-1)?.[0] ?? -1));
    if (cache.last < 0) cache.last = null;
  } catch (error) {
    cache.problem = error.message;
  }
}

function showNotes(notes, chosen) {
  const said = chosen.flatMap((one) => {
    const cache = caches.get(one.name);
    if (!cache) return [];
    const parts = [];
    if (cache.problem) parts.push(`${one.name}: ${cache.problem}`);
    else if (cache.share < 1) parts.push(`${one.name}: the curves are those of samples while the file is read, ${Math.round(cache.share * 100)}% so far`);
    else if (!cache.curves.size) parts.push(`${one.name}: no figures yet`);
    if (cache.damaged) parts.push(`${one.name}: ${formatCount(cache.damaged)} damaged lines are left out`);
    return parts;
  });
  fill(notes, said.map((text) => h("p", { class: "hint" }, text)));
}

function listKeys(chosen) {
  return new Set(chosen.flatMap((one) => [...(caches.get(one.name)?.curves.keys() ?? [])]));
}

function listPanels(chosen) {
  const keys = listKeys(chosen);
  const has = (key) => keys.has(key) || keys.has(HELD_OUT + key);
  const added = view.added.filter(has).map((key) => ({ title: key, keys: [key] }));
  return [...PANELS.filter((panel) => panel.keys.some(has)), ...added];
}

function showAdder(adder, chosen, show) {
  const shown = new Set([...PANELS.flatMap((panel) => panel.keys), ...view.added]);
  const others = [...new Set([...listKeys(chosen)].map((key) => (key.startsWith(HELD_OUT) ? key.slice(HELD_OUT.length) : key)))].filter((key) => !shown.has(key) && !PLACES.has(key)).sort();
  const options = ["", ...others];
  if (options.length === adder.options.length && options.every((key, place) => adder.options[place].value === key)) return;
  fill(adder, h("option", { value: "" }, others.length ? "another figure" : "nothing else is logged"), others.map((key) => h("option", { value: key }, key)));
  adder.disabled = !others.length;
}

function buildPanel(panel) {
  const value = h("span", { class: "value" });
  const picture = h("div", {});
  const legend = h("ul", { class: "legend" });
  const element = h("figure", { class: "chart" }, h("figcaption", {}, panel.title, panel.hint && h("span", { class: "hint" }, panel.hint), value), picture, legend);
  let drawn = "";
  return {
    element,
    forget: () => { drawn = ""; },
    show: (chosen) => {
      const versions = chosen.map((one) => `${one.name} ${caches.get(one.name)?.version}`).join("\n");
      if (versions === drawn || (drawn && element.matches(":hover, :focus-within"))) return;
      drawn = versions;
      const format = panel.format ?? formatFigure;
      const series = chosen.flatMap((one) => listSeries(panel, one, chosen.length === 1));
      const last = series.map((one) => ({ ...one, value: one.points.at(-1) }));
      const showValues = (found, place) => fill(value, place, found.slice(0, MOST_VALUES).map((one) => h("span", { class: `ink-${one.hue}`, title: one.name }, format(one.value[1]))));
      const tell = (x, found) => showValues(x === null ? last : found, x !== null && h("span", {}, AXES[view.axis].format(x)));
      tell(null, []);
      fill(picture, drawChart(series, { smoothing: (view.smoothing / 100) ** 2 * 0.5, isLog: view.isLog, format, formatX: AXES[view.axis].format, title: panel.title, tell, width: chooseWidth(picture) }));
      const names = series.filter((one) => one.points.length).map((one) => h("li", {}, h("span", { class: `key ink-${one.hue}${one.dots ? " dotted" : ""}`, "aria-hidden": "true" }), one.name));
      fill(legend, series.length > 1 ? names : []);
    },
  };
}

/** Of a chart on a phone the drawing is narrower, not its words smaller. */
function chooseWidth(picture) {
  return Math.round(Math.min(620, Math.max(280, picture.clientWidth || 520)));
}

function listSeries(panel, one, isAlone) {
  const curves = caches.get(one.name)?.curves ?? new Map();
  const read = (key) => {
    const points = curves.get(key) ?? [];
    return view.axis === "step" ? points : changeAxis(points, curves.get(view.axis));
  };
  return panel.keys.flatMap((key) => [
    { points: read(key), hue: one.hue, name: isAlone ? "training" : one.name, dots: false },
    { points: read(HELD_OUT + key), hue: isAlone ? (one.hue + 1) % 8 : one.hue, name: isAlone ? "held-out" : `${one.name}, held-out`, dots: true },
  ]).filter((series) => series.points.length);
}
