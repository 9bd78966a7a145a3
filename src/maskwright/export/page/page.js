// Opens the model beside this page and answers the form. settings.json says what the model is for.
import { env, pipeline } from "./vendor/transformers.min.js";

const settings = await (await fetch("settings.json")).json();
const find = (id) => document.getElementById(id);
const status = find("status"), run = find("run"), answers = find("answers");

env.allowLocalModels = true;
env.allowRemoteModels = false;
env.localModelPath = "./";
env.useBrowserCache = false;
env.useWasmCache = false;
const vendor = (name) => new URL(`./vendor/${name}`, import.meta.url).href;
const wasm = env.backends.onnx.wasm;
wasm.wasmPaths = { mjs: vendor(settings.runtime.mjs), wasm: vendor(settings.runtime.wasm) };
wasm.numThreads = 1; // more need headers that plain servers of files do not send

const softmax = (values) => {
  const most = Math.max(...values), exps = values.map((one) => Math.exp(one - most));
  const sum = exps.reduce((a, b) => a + b, 0);
  return exps.map((one) => one / sum);
};
const percent = (share) => `${(100 * share).toFixed(1)}%`;

// Tokens of one class that follow each other are one entity.
function joinEntities(tokens, ids, decode) {
  const groups = [];
  for (const { entity, score, index } of tokens) {
    const [, tag, name] = /^([A-Z])-(.*)$/s.exec(entity) ?? [null, "I", entity];
    const last = groups.at(-1);
    if (last && last.name === name && last.end === index && tag !== "B") {
      last.end = index + 1;
      last.scores.push(score);
    } else groups.push({ name, start: index, end: index + 1, scores: [score] });
  }
  return groups.map(({ name, start, end, scores }) => [
    decode(ids.slice(start, end)),
    name,
    percent(scores.reduce((a, b) => a + b, 0) / scores.length),
  ]);
}

// By the task: the heads of the table of answers, and its rows for what is in the form.
const kinds = {
  "fill-mask": async (ask) => {
    const text = find("text").value.replaceAll("[MASK]", ask.tokenizer.mask_token);
    if (text.split(ask.tokenizer.mask_token).length !== 2) throw new Error("The text needs one [MASK].");
    const found = await ask(text, { top_k: 5 });
    return [["word", "text", "probability"], found.map((one) => [one.token_str, one.sequence, percent(one.score)])];
  },
  "text-classification": async (ask) => {
    const pair = find("second").value.trim() || null;
    const inputs = await ask.tokenizer(find("text").value, { text_pair: pair, truncation: true });
    const logits = Array.from((await ask.model(inputs)).logits.data);
    const { id2label, problem_type: problem } = ask.model.config;
    if (logits.length === 1) return [["number"], [[logits[0].toFixed(3)]]];
    const isMulti = problem === "multi_label_classification";
    const scores = isMulti ? logits.map((one) => 1 / (1 + Math.exp(-one))) : softmax(logits);
    const ranked = scores.map((score, place) => [score, id2label[place]]).sort((a, b) => b[0] - a[0]);
    return [["class", "probability"], ranked.map(([score, label]) => [label, percent(score)])];
  },
  "token-classification": async (ask) => {
    const text = find("text").value;
    const ids = (await ask.tokenizer(text, { truncation: true })).input_ids.tolist()[0];
    return [["entity", "class", "probability"], joinEntities(await ask(text), ids, (part) => ask.tokenizer.decode(part))];
  },
  "question-answering": async (ask) => {
    const found = await ask(find("question").value, find("text").value);
    return [["answer", "probability"], [[found.answer, percent(found.score)]]];
  },
  "feature-extraction": async (ask) => {
    const texts = [find("text").value, ...find("others").value.split("\n").filter((line) => line.trim())];
    const vectors = [];
    for (const text of texts) {
      const inputs = await ask.tokenizer(text, { truncation: true });
      vectors.push(Array.from((await ask.model(inputs)).sentence_embedding.data));
    }
    const dot = (a, b) => a.reduce((sum, one, place) => sum + one * b[place], 0);
    const [first, ...others] = vectors;
    const cosines = others.map((one, place) => [dot(first, one) / Math.sqrt(dot(first, first) * dot(one, one)), place]);
    cosines.sort((a, b) => b[0] - a[0]);
    return [["text", "cosine"], cosines.map(([cosine, place]) => [texts[place + 1], cosine.toFixed(3)])];
  },
};

function show(heads, rows) {
  const table = document.createElement("table");
  const add = (parent, tag, text) => parent.appendChild(Object.assign(document.createElement(tag), { textContent: text }));
  const headRow = table.createTHead().insertRow();
  for (const head of heads) add(headRow, "th", head).scope = "col";
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const value of row) add(line, "td", value);
  }
  answers.replaceChildren(table);
  say(rows.length ? "" : "Nothing was found.");
}

function say(text, failed = false) {
  status.textContent = text;
  status.classList.toggle("failed", failed);
}

try {
  const ask = await pipeline(settings.task, "model", { dtype: "q8", device: "wasm" });
  ask.tokenizer.return_token_type_ids = settings.has_segments;
  say("The model is ready.");
  run.disabled = false;
  find("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    run.disabled = true;
    try {
      show(...(await kinds[settings.task](ask)));
    } catch (error) {
      answers.replaceChildren();
      say(error.message, true);
    } finally {
      run.disabled = false;
    }
  });
} catch (error) {
  say(`The model cannot be opened: ${error.message}`, true);
}
