// The board: which runs there are, which are chosen, and the panels about those.

import { fill, formatAgo, formatCount, formatDuration, formatFigure, h, keepKey, repeat, request, setUpTheme, debounce } from "./common.js";
import { buildCurves } from "./board_curves.js";
import { buildDetails, buildPredictions, buildSettings, writeName } from "./board_details.js";

const EVERY_MS = 2000;
const PAGE_ROWS = 100;
const MOST_CHOSEN = 8;
const find = (id) => document.getElementById(id);

const COLUMNS = [
  { key: "name", title: "Run", cell: (run) => run.name, isText: true },
  { key: "state", title: "State", cell: (run) => h("span", { class: `badge ${run.state}` }, run.state), isText: true },
  { key: "kind", title: "Kind", cell: (run) => run.kind, isText: true, class: "wide-only" },
  { key: "step", title: "Step", cell: showStep },
  { key: "loss", title: "Loss", cell: (run) => formatFigure(run.loss) },
  { key: "val_loss", title: "Held-out", cell: (run) => formatFigure(run.val_loss) },
  { key: "tokens_per_s", title: "Tokens/s", cell: (run) => formatCount(run.tokens_per_s), class: "wide-only" },
  { key: "seconds_left", title: "Time left", cell: (run) => formatDuration(run.seconds_left), class: "wide-only" },
  { key: "updated", title: "Updated", cell: (run) => formatAgo(run.updated) },
];
const TABS = {
  curves: { title: "Curves", build: buildCurves },
  settings: { title: "Settings", build: buildSettings },
  predictions: { title: "Predictions", build: buildPredictions },
  details: { title: "Figures and course", build: buildDetails },
};

const state = { runs: [], total: 0, query: "", sort: "updated", descending: true, limit: PAGE_ROWS, chosen: [], tab: "curves", panel: null };
const rows = new Map();

function showStep(run) {
  const share = run.state === "finished" ? 1 : run.progress;
  return h("span", { class: "progress" }, h("span", {}, formatCount(run.step)),
    share !== null && share !== undefined && h("span", { class: "progress-track", title: `${Math.round(share * 100)}% done` }, h("span", { class: "progress-fill", style: { width: `${share * 100}%` } })));
}

async function loadRuns() {
  const { query, sort, descending, limit } = state;
  const asked = new URLSearchParams({ query, sort, descending, limit });
  try {
    const { answer, headers } = await request(`/api/runs?${asked}`);
    fill(find("problem"));
    find("key-form").hidden = true;
    state.runs = answer;
    state.total = Number(headers.get("X-Total"));
    find("pulse").textContent = "live";
    find("pulse").className = "pulse on";
  } catch (error) {
    find("pulse").textContent = "not connected";
    find("pulse").className = "pulse";
    if (error.status === 401) find("key-form").hidden = false;
    fill(find("problem"), h("p", { class: "notice bad", role: "alert" }, error.message));
    return;
  }
  chooseFirst();
  await describeMissing();
  showRows();
  await state.panel?.refresh();
}

/** What a link names, or else the newest run. */
function chooseFirst() {
  if (state.hasChosen) return;
  const wanted = readLink();
  state.tab = wanted.tab;
  const newest = state.runs.find((run) => run.state === "running") ?? state.runs[0];
  const names = wanted.names.length ? wanted.names : newest ? [newest.name] : [];
  state.hasChosen = names.length > 0;
  state.chosen = names.slice(0, MOST_CHOSEN).map((name, hue) => ({ name, hue }));
  showChosen();
}

/** Chosen runs that the table does not show are asked for one by one. */
async function describeMissing() {
  for (const one of state.chosen) {
    const found = state.runs.find((run) => run.name === one.name);
    if (found) one.run = found;
    else if (!one.run || one.run.state === "running") {
      try { one.run = (await request(`/api/runs/${writeName(one.name)}`)).answer; } catch (error) { one.problem = error.message; }
    }
  }
}


function showHead() {
  const headers = COLUMNS.map((column) => {
    const isSorted = state.sort === column.key;
    const sorted = isSorted ? (state.descending ? "descending" : "ascending") : "none";
    return h("th", { scope: "col", class: `${column.class ?? ""} ${column.isText ? "" : "number"}`, "aria-sort": sorted },
      h("button", { type: "button", class: "sort", onclick: () => sortBy(column.key) }, column.title, h("span", { "aria-hidden": "true", class: "arrow" }, isSorted ? (state.descending ? " ↓" : " ↑") : "")));
  });
  fill(find("head"), h("tr", {}, h("td", { class: "choose" }, h("span", { class: "unseen" }, "Chosen")), headers));
  find("sort-choice").value = state.sort;
}

function sortBy(key) {
  const isText = COLUMNS.find((column) => column.key === key).isText;
  state.descending = state.sort === key ? !state.descending : !isText && !key.includes("loss");
  state.sort = key;
  showHead();
  loadRuns();
}

function showRows() {
  const shown = state.runs.map((run) => updateRow(run));
  const table = find("rows");
  const isSame = table.children.length === shown.length && shown.every((row, place) => table.children[place] === row);
  if (!isSame) {
    const focused = document.activeElement;
    fill(table, shown);
    if (focused?.isConnected) focused.focus({ preventScroll: true });
  }
  for (const name of rows.keys()) if (!state.runs.some((run) => run.name === name)) rows.delete(name);
  const numShown = state.runs.length;
  find("count").textContent = state.total === 0 ? (state.query ? "No run matches." : "No runs here yet: they appear as they begin.") : numShown < state.total ? `${numShown} of ${state.total} runs` : `${state.total} run${state.total === 1 ? "" : "s"}`;
  find("more").hidden = numShown >= state.total;
}

function updateRow(run) {
  let row = rows.get(run.name);
  if (!row) {
    row = h("tr", {}, h("td", { class: "choose" }, h("input", { type: "checkbox", "aria-label": `Show ${run.name}`, onchange: (event) => choose(run.name, event.target.checked) })),
      COLUMNS.map((column, place) => h(place ? "td" : "th", { class: `${column.class ?? ""} ${column.isText ? "" : "number"} cell-${column.key}`, scope: place ? undefined : "row" })));
    row.children[1].addEventListener("click", () => { const box = row.querySelector("input"); box.click(); });
    rows.set(run.name, row);
  }
  const chosen = state.chosen.find((one) => one.name === run.name);
  const box = row.querySelector("input");
  box.checked = Boolean(chosen);
  row.className = chosen ? `chosen ink-${chosen.hue}` : "";
  COLUMNS.forEach((column, place) => {
    const cell = row.children[place + 1];
    const content = column.cell(run);
    if (typeof content !== "string") fill(cell, content);
    else if (cell.textContent !== content) cell.textContent = content;
  });
  return row;
}

function choose(name, isChosen) {
  if (!isChosen) state.chosen = state.chosen.filter((one) => one.name !== name);
  else if (state.chosen.length < MOST_CHOSEN) {
    const used = new Set(state.chosen.map((one) => one.hue));
    const hue = [...Array(MOST_CHOSEN).keys()].find((one) => !used.has(one));
    state.chosen.push({ name, hue, run: state.runs.find((run) => run.name === name) });
  } else fill(find("problem"), h("p", { class: "notice", role: "status" }, `${MOST_CHOSEN} runs are shown over each other at most: take one away first.`));
  showRows();
  showChosen();
}

function showChosen() {
  find("chosen").hidden = state.chosen.length === 0;
  find("clear").hidden = state.chosen.length === 0;
  fill(find("chosen-runs"), state.chosen.map((one) => h("li", {}, h("button", { type: "button", class: `chip wash-${one.hue}`, "aria-label": `Take away ${one.name}`, onclick: () => choose(one.name, false) },
    h("span", { class: `key back-${one.hue}`, "aria-hidden": "true" }), one.name, h("span", { class: "cross", "aria-hidden": "true" }, "×")))));
  writeLink();
  showTabs();
}

function showTabs() {
  fill(find("tabs"), Object.entries(TABS).map(([key, tab]) => h("button", {
    type: "button", role: "tab", id: `tab-${key}`, "data-tab": key, "aria-controls": "panel", "aria-selected": String(key === state.tab), tabindex: key === state.tab ? 0 : -1,
    onclick: () => chooseTab(key),
  }, tab.title)));
  find("panel").setAttribute("aria-labelledby", `tab-${state.tab}`);
  find(`tab-${state.tab}`).scrollIntoView({ block: "nearest", inline: "nearest" });
  state.panel = state.chosen.length ? TABS[state.tab].build(state.chosen) : null;
  fill(find("panel"), state.panel?.element);
  state.panel?.refresh();
}

function chooseTab(key) {
  state.tab = key;
  writeLink();
  showTabs();
  find(`tab-${key}`).focus();
}

find("tabs").addEventListener("keydown", (event) => {
  const keys = Object.keys(TABS);
  const place = keys.indexOf(state.tab);
  const moves = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: keys.length - 1 };
  if (!(event.key in moves) || !event.target.matches("[role=tab]")) return;
  event.preventDefault();
  chooseTab(keys[(moves[event.key] + keys.length) % keys.length]);
});

/** Links are #tab=curves&run=a&run=b. */
function readLink() {
  const link = new URLSearchParams(location.hash.slice(1));
  const tab = link.get("tab");
  return { tab: tab in TABS ? tab : "curves", names: link.getAll("run") };
}

function writeLink() {
  const link = new URLSearchParams([["tab", state.tab], ...state.chosen.map((one) => ["run", one.name])]);
  history.replaceState(null, "", `#${link}`);
}

async function findPage() {
  const { answer } = await request("/api/models").catch(() => ({ answer: null }));
  find("page-link").hidden = !answer?.models?.length;
}

setUpTheme(find("theme"));
fill(find("sort-choice"), COLUMNS.map((column) => h("option", { value: column.key }, column.title)));
find("sort-choice").addEventListener("change", (event) => sortBy(event.target.value));
find("query").addEventListener("input", debounce((event) => { state.query = event.target.value; state.limit = PAGE_ROWS; loadRuns(); }));
find("more").addEventListener("click", () => { state.limit = Math.min(state.limit + PAGE_ROWS, 1000); loadRuns(); });
find("clear").addEventListener("click", () => { state.chosen = []; showRows(); showChosen(); find("query").focus(); });
find("key-form").addEventListener("submit", (event) => { event.preventDefault(); keepKey(find("key").value.trim()); loadRuns(); });
addEventListener("hashchange", () => {
  const link = readLink();
  state.tab = link.tab;
  state.chosen = link.names.slice(0, MOST_CHOSEN).map((name, hue) => ({ name, hue, run: state.runs.find((run) => run.name === name) }));
  showRows();
  showChosen();
});
showHead();
findPage();
repeat(loadRuns, EVERY_MS);
