// The page of a server: which model, which kind of question, and the panel that asks it.

import { copyButton, fill, formatBytes, formatCount, formatDuration, h, keepKey, repeat, request, setUpTheme } from "./common.js";
import { searchKinds } from "./kinds_search.js";
import { textKinds } from "./kinds_text.js";
import { vectorKinds } from "./kinds_vectors.js";
import { quoteForShell, writePython } from "./text.js";

const KINDS = { ...textKinds, ...vectorKinds, ...searchKinds };
const STATS_EVERY_MS = 2000;
const LOADING_EVERY_MS = 1500;
const find = (id) => document.getElementById(id);

const state = { models: [], model: null, kind: null, needsKey: false };

async function loadModels() {
  try {
    const { answer } = await request("/api/models");
    state.models = [...answer.models, ...answer.indexes.map(asModel)];
    state.needsKey = answer.needs_key;
    find("key-form").hidden = true;
    showModels();
    if (state.models.some((model) => !model.ready && !model.error)) setTimeout(loadModels, LOADING_EVERY_MS);
  } catch (error) {
    if (error.status === 401) {
      state.needsKey = true;
      find("key-form").hidden = false;
      find("key").focus();
    }
    fill(find("panel"), h("p", { class: "notice bad", role: "alert" }, error.message));
  }
}

/** An index stands among the models, with one kind of question. */
function asModel(index) {
  const facts = [`index of ${formatCount(index.documents)} documents`, index.model ? `${index.kind} vectors of ${index.model}` : index.kind];
  return { ...index, isIndex: true, facts, kinds: index.ready ? ["search"] : [], default_kind: "search" };
}

function showModels() {
  const select = find("model");
  fill(select, state.models.map((model) => h("option", { value: model.id }, nameModel(model))));
  select.disabled = state.models.length === 0;
  if (!state.models.length) {
    fill(find("panel"), h("p", { class: "notice" }, "No model is served here: start one with maskwright serve MODEL. ", h("a", { href: "/board" }, "The runs")));
    return;
  }
  const [id, kind] = readLink();
  const wanted = state.models.find((model) => model.id === id);
  chooseModel(wanted ?? state.models.find((model) => model.ready) ?? state.models[0], kind);
}

function nameModel(model) {
  const name = model.isIndex ? `${model.id} (index)` : model.id;
  return model.error ? `${name} (failed)` : model.ready ? name : `${name} (loading)`;
}

/** Links are #model/kind; a model's id may have slashes. */
function readLink() {
  const parts = decodeURIComponent(location.hash.slice(1)).split("/");
  const kind = parts.at(-1) in KINDS ? parts.pop() : null;
  return [parts.join("/"), kind];
}

function chooseModel(model, kind) {
  const isSame = state.model !== null && state.model.id === model.id && state.model.ready === model.ready;
  state.model = model;
  find("model").value = model.id;
  fill(find("model-facts"), describeModel(model));
  const kinds = (model.kinds ?? []).filter((one) => one in KINDS);
  const chosen = kinds.includes(kind) ? kind : kinds.includes(state.kind) ? state.kind : model.default_kind in KINDS ? model.default_kind : kinds[0];
  showTabs(kinds, chosen);
  if (model.error || !model.ready) {
    state.kind = null;
    find("code").hidden = true;
    fill(find("panel"), h("p", { class: model.error ? "notice bad" : "notice", role: "status" }, model.error ?? "The model is being loaded."));
  } else if (!isSame || chosen !== state.kind) {
    chooseKind(chosen);
  }
}

function describeModel(model) {
  if (!model.ready) return [];
  const facts = model.facts ?? [
    model.family,
    model.parameters && `${formatCount(model.parameters)} parameters`,
    model.max_length && `up to ${formatCount(model.max_length)} tokens`,
    model.vocab_size && `vocabulary ${formatCount(model.vocab_size)}`,
    model.dtype && `${model.dtype} on ${model.device}`,
  ];
  return facts.filter(Boolean).map((fact) => h("span", {}, fact));
}

function showTabs(kinds, chosen) {
  const tabs = kinds.map((kind) =>
    h("button", {
      type: "button", role: "tab", id: `tab-${kind}`, "data-kind": kind, "aria-controls": "panel",
      "aria-selected": String(kind === chosen), tabindex: kind === chosen ? "0" : "-1", onclick: () => chooseKind(kind),
    }, KINDS[kind].title));
  fill(find("tabs"), tabs);
}

function chooseKind(kind) {
  state.kind = kind;
  for (const tab of find("tabs").children) {
    const isChosen = tab.dataset.kind === kind;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
    if (isChosen) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  find("panel").setAttribute("aria-labelledby", `tab-${kind}`);
  find("code").hidden = true;
  const link = `#${[...state.model.id.split("/"), kind].map(encodeURIComponent).join("/")}`;
  if (location.hash !== link) history.replaceState(null, "", link);
  const panel = KINDS[kind].build({ model: state.model, ask, showCode });
  fill(find("panel"), h("p", { class: "hint lead" }, KINDS[kind].hint), panel);
}

find("tabs").addEventListener("keydown", (event) => {
  const tabs = [...find("tabs").children];
  const place = tabs.indexOf(document.activeElement);
  const moves = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tabs.length - 1 };
  if (place < 0 || !(event.key in moves)) return;
  event.preventDefault();
  const tab = tabs[(moves[event.key] + tabs.length) % tabs.length];
  chooseKind(tab.dataset.kind);
  tab.focus();
});

async function ask(path, body, signal) {
  const { answer } = await request(path, { body: { ...body, ...nameAsked() }, signal });
  return answer;
}

function nameAsked() {
  return state.model.isIndex ? { index: state.model.id } : { model: state.model.id };
}

/** What was just asked, for a shell and for Python. */
function showCode(path, body, { call, options = {}, inputs, kind = state.kind, python: own }) {
  const key = state.needsKey ? ' -H "Authorization: Bearer $MASKWRIGHT_API_KEY"' : "";
  const sent = JSON.stringify(state.models.length > 1 ? { ...body, ...nameAsked() } : body);
  const curl = `curl ${quoteForShell(location.origin + path)}${key} -H 'Content-Type: application/json' -d ${quoteForShell(sent)}`;
  const named = Object.entries(options).filter(([, value]) => value !== undefined);
  const words = named.map(([name, value]) => `, ${name}=${writePython(value)}`).join("");
  const source = writePython(state.model.path_name ?? state.model.id);
  const python = own ?? `import maskwright as mw\n\nanswer = mw.pipeline(${writePython(kind)}, ${source})(${call ?? writePython(inputs)}${words})`;
  const lines = [["curl", curl], [own ? "Python, with the index's folder" : "Python, with the model's folder", python]];
  fill(find("code-lines"), lines.map(([name, text]) =>
    h("div", { class: "snippet" }, h("div", { class: "snippet-head" }, h("h3", {}, name), copyButton(() => text)), h("pre", { tabindex: "0" }, text))));
  find("code").hidden = false;
}

async function showStats() {
  let answer;
  try {
    ({ answer } = await request("/api/stats"));
  } catch (error) {
    fill(find("stats"), h("div", { class: "bad" }, h("dt", {}, "server"), h("dd", {}, error.status === 401 ? "needs its key" : error.status ? "no figures" : "does not answer")));
    return;
  }
  const figures = [
    ["requests/s", formatCount(answer.requests_per_s)],
    ["tokens/s", formatCount(answer.tokens_per_s)],
    ["p50", formatMs(answer.p50_ms)],
    ["p99", formatMs(answer.p99_ms)],
    ["queue", formatCount(answer.queue_texts)],
    ["answered", formatCount(answer.requests_total)],
    ["memory", formatBytes(answer.memory_bytes)],
    ["up", formatDuration(answer.uptime_s)],
  ];
  fill(find("stats"), figures.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function formatMs(ms) {
  return ms === null || ms === undefined ? "–" : ms >= 1000 ? `${(ms / 1000).toFixed(1)} s` : `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
}

async function findBoard() {
  const response = await fetch("/board").catch(() => null);
  find("board-link").hidden = !response?.ok;
}

setUpTheme(find("theme"));
find("model").addEventListener("change", (event) => chooseModel(state.models.find((model) => model.id === event.target.value), null));
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(find("key").value.trim());
  loadModels();
});
addEventListener("hashchange", () => {
  const [id, kind] = readLink();
  const model = state.models.find((one) => one.id === id);
  if (model) chooseModel(model, kind);
});
loadModels();
findBoard();
repeat(showStats, STATS_EVERY_MS);
