// What runs were told and what came of them: settings and their differences, held-out predictions, figures, course.

import { drawChart } from "./charts.js";
import { fill, formatFigure, h, request } from "./common.js";

export function writeName(name) {
  return name.split("/").map(encodeURIComponent).join("/");
}

function writeValue(value) {
  return value === null || value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value);
}

function table(head, rows, className = "plain-table") {
  return h("div", { class: "scroll" }, h("table", { class: className }, head && h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows)));
}

/** Built once from an answer, and again when it is asked for anew. */
function loading(load, every = () => false) {
  const element = h("div", { class: "card" }, h("p", { class: "empty" }, "Loading"));
  let isLoaded = false;
  const refresh = async () => {
    if (isLoaded && !every()) return;
    isLoaded = true;
    try { fill(element, await load()); } catch (error) { fill(element, h("p", { class: "notice bad", role: "alert" }, error.message)); }
  };
  return { element, refresh };
}

export function buildSettings(chosen) {
  return loading(async () => (chosen.length === 1 ? showSettings(chosen[0]) : showDifferences(chosen)));
}

async function showSettings({ name }) {
  const { answer } = await request(`/api/runs/${writeName(name)}`);
  const filter = h("input", { type: "search", placeholder: "Search settings", "aria-label": "Search settings", autocomplete: "off" });
  const rows = Object.entries(answer.settings).map(([key, value]) => h("tr", { "data-text": `${key} ${writeValue(value)}`.toLowerCase() }, h("th", { scope: "row", class: "mono" }, key), h("td", { class: "mono" }, writeValue(value))));
  if (!rows.length) return h("p", { class: "notice" }, "The run's config.yaml cannot be read.");
  filter.addEventListener("input", () => { for (const row of rows) row.hidden = !row.dataset.text.includes(filter.value.toLowerCase()); });
  return [filter, table(null, rows, "plain-table settings"), h("p", { class: "hint" }, "Choose a second run to see in what the two differ.")];
}

async function showDifferences(chosen) {
  const asked = new URLSearchParams(chosen.map((one) => ["names", one.name]));
  const { answer } = await request(`/api/runs/diff?${asked}`);
  const keys = Object.keys(answer.settings);
  const same = `${answer.num_same} settings are the same.`;
  if (!keys.length) return h("p", { class: "notice" }, `These runs have the same settings. ${same}`);
  const rows = keys.map((key) => h("tr", {}, h("th", { scope: "row", class: "mono" }, key), answer.settings[key].map((value) => h("td", { class: "mono" }, writeValue(value)))));
  const head = ["setting", ...chosen.map((one) => h("span", {}, h("span", { class: `key back-${one.hue}`, "aria-hidden": "true" }), one.name))];
  return [table(head, rows), h("p", { class: "hint" }, same)];
}

// Predictions: the same held-out texts at every evaluation.

export function buildPredictions(chosen) {
  const place = { moment: null };
  const isAnyRunning = () => chosen.some((one) => one.run?.state === "running");
  let known = "";
  const element = h("div", { class: "stack" });
  const refresh = async () => {
    if (known && !isAnyRunning()) return;
    try {
      const found = await Promise.all(chosen.map(async (one) => ({ ...one, moments: (await request(`/api/runs/${writeName(one.name)}/predictions`)).answer })));
      const now = found.map(({ name, moments }) => `${name} ${moments.length} ${moments.at(-1)?.step}`).join("\n");
      if (now === known) return;
      known = now;
      fill(element, found.map((one) => showMoments(one, place)));
    } catch (error) {
      fill(element, h("p", { class: "notice bad", role: "alert" }, error.message));
    }
  };
  return { element, refresh };
}

function showMoments({ name, hue, moments }, place) {
  const title = h("h2", {}, h("span", { class: `key back-${hue}`, "aria-hidden": "true" }), name);
  if (!moments.length) return h("section", { class: "card" }, title, h("p", { class: "empty" }, "This run keeps no held-out predictions. Runs of pre-training in one process write them at every evaluation."));
  const texts = h("div", { class: "samples" });
  const label = h("output", { for: `moment-${hue}` });
  const last = moments.length - 1;
  const start = place.moment === null ? last : Math.min(place.moment, last);
  const slider = h("input", { type: "range", min: 0, max: last, value: start, id: `moment-${hue}` });
  const show = () => {
    const moment = moments[Number(slider.value)];
    place.moment = Number(slider.value) === last ? null : Number(slider.value);
    label.textContent = `step ${moment.step}`;
    slider.setAttribute("aria-valuetext", label.textContent);
    fill(texts, moment.samples.map(showSample));
  };
  slider.addEventListener("input", show);
  show();
  const rights = moments.map((moment) => [moment.step, countRight(moment.samples)]);
  const curve = moments.length > 1 && h("figure", { class: "chart slim" }, h("figcaption", {}, "Right answers to these masks"), drawChart([{ points: rights, hue, name: "right", dots: true }], { title: "Right answers" }));
  return h("section", { class: "card" }, title, h("div", { class: "moment" }, h("label", { for: slider.id }, "As of"), slider, label), texts, curve);
}

function countRight(samples) {
  return samples.reduce((sum, sample) => sum + sample.correct.filter(Boolean).length, 0);
}

function showSample(sample) {
  const right = sample.correct.filter(Boolean).length;
  const asked = sample.selected.filter(Boolean).length;
  const pieces = sample.predicted.map((piece, number) => {
    const text = number === 0 ? piece.trimStart() : piece;
    if (!sample.selected[number]) return text;
    const space = text.length - text.trimStart().length;
    const isRight = sample.correct[number];
    const truth = sample.original[number].trim();
    return [text.slice(0, space), h("mark", { class: isRight ? "guess right" : "guess wrong", title: isRight ? "right" : `right would be: ${truth}` }, text.trimStart(), !isRight && h("span", { class: "truth" }, truth))];
  });
  return h("div", { class: "sample" }, h("p", { class: "marked" }, pieces), h("p", { class: "hint" }, `${right} of ${asked} right`));
}

// Figures and course

export function buildDetails(chosen) {
  const isAnyRunning = () => chosen.some((one) => one.run?.state === "running");
  return loading(async () => {
    const found = await Promise.all(chosen.map(async (one) => ({ ...one, details: (await request(`/api/runs/${writeName(one.name)}`)).answer })));
    return [showFigures(found), h("h2", {}, "Course"), h("div", { class: "courses" }, found.map(showCourse))];
  }, isAnyRunning);
}

function showFigures(found) {
  const read = ({ details }) => ({ ...Object.fromEntries(Object.entries(details.last).map(([key, value]) => [key, value])), ...(details.final ?? {}) });
  const figures = found.map(read);
  const keys = [...new Set(figures.flatMap((one) => Object.keys(one)))].filter((key) => figures.some((one) => typeof one[key] !== "object"));
  const rows = keys.map((key) => h("tr", {}, h("th", { scope: "row", class: "mono" }, key), figures.map((one) => h("td", { class: typeof one[key] === "number" ? "number" : "" }, typeof one[key] === "object" ? "–" : formatFigure(one[key])))));
  const head = ["figure", ...found.map((one) => h("span", {}, h("span", { class: `key back-${one.hue}`, "aria-hidden": "true" }), `${one.name} (${one.details.state})`))];
  return rows.length ? table(head, rows) : h("p", { class: "notice" }, "No figures yet.");
}

function showCourse({ name, hue, details }) {
  const events = details.events.map((event) => h("li", {}, h("time", { class: "hint" }, new Date(event.time * 1000).toLocaleString()), ` ${event.text}`));
  return h("div", {}, h("h3", {}, h("span", { class: `key back-${hue}`, "aria-hidden": "true" }), name), details.final?.trouble && h("p", { class: "notice bad" }, String(details.final.trouble)), h("ol", { class: "course" }, events));
}
