// Kinds of questions about meaning: a heat map of sentences, a map of texts, neighbours.

import { draw } from "./charts.js";
import { fill, formatCount, h } from "./common.js";
import { asking, bar, chooser, examples, field, need, textArea } from "./parts.js";
import { splitLines, writePython } from "./text.js";
import { cosineMatrix, findNeighbours, projectToPlane } from "./vectors.js";

const MOST_COMPARED = 40;
const MOST_PAIRS = 200;
const MOST_MAPPED = 300;
const BATCH = 64;
const MOST_LINES = 20000;
const MOST_FILE_BYTES = 32 * 2 ** 20;

const SENTENCES = [
  ["three topics", "A cat sleeps on the sofa.\nThe kitten is napping on the couch.\nShares fell sharply on Monday.\nThe stock market lost four percent.\nBoil the pasta for nine minutes.\nCook the noodles until they are soft."],
  ["the same, said differently", "How can I reset my password?\nI forgot my login details.\nWhere is my parcel?\nMy order has not arrived yet.\nCan I get my money back?"],
];
const MAPPED = [
  ["animals, money, weather", "A dog barks at the postman.\nThe puppy chased a ball.\nHorses graze on the hill.\nA horse gallops along the beach.\nThe bank lowered its rates.\nInvestors sold their shares.\nThe company reported a loss.\nInflation rose again in May.\nIt will rain all afternoon.\nA storm is moving in from the west.\nThe sun came out after lunch.\nSnow is expected in the hills."],
];

function buildSimilarity({ model, ask, showCode }) {
  const text = textArea(SENTENCES[0][1], 8);
  const panel = asking({
    button: "Compare",
    empty: "Every sentence is compared with every other.",
    controls: [
      examples(SENTENCES.map(([name]) => name), (number) => { text.value = SENTENCES[number][1]; panel.run(); }),
      field("Sentences, one a line", text, `At most ${MOST_COMPARED}.`),
    ],
    ask: async (signal) => {
      const lines = splitLines(text.value);
      need(lines.length > 1, "Two sentences are needed at least, one a line.");
      need(lines.length <= MOST_COMPARED, `There are ${lines.length} sentences; at most ${MOST_COMPARED} are compared here.`);
      const matrix = await compareAll(lines, model, ask, signal);
      const first = [[lines[0], lines[1]]];
      showCode("/api/similarity", { inputs: first }, { call: `[(${writePython(lines[0])}, ${writePython(lines[1])})]` });
      return showHeat(lines, matrix);
    },
  });
  return panel.element;
}

/** Pair by pair as the kind does it; of many sentences each is embedded once. */
async function compareAll(lines, model, ask, signal) {
  const pairs = lines.flatMap((_, a) => lines.slice(a + 1).map((_, b) => [a, a + 1 + b]));
  if (pairs.length > MOST_PAIRS && model.kinds.includes("embed")) {
    const { embeddings } = await ask("/api/embed", { inputs: lines }, signal);
    return cosineMatrix(embeddings);
  }
  const answer = await ask("/api/similarity", { inputs: pairs.map(([a, b]) => [lines[a], lines[b]]) }, signal);
  const matrix = lines.map((_, a) => lines.map((_, b) => (a === b ? 1 : 0)));
  pairs.forEach(([a, b], number) => { matrix[a][b] = matrix[b][a] = answer[number].score; });
  return matrix;
}

function showHeat(lines, matrix) {
  const others = matrix.flatMap((row, a) => row.filter((_, b) => a !== b));
  const [low, high] = [Math.min(...others), Math.max(...others)];
  const shade = (value) => (high > low ? Math.max(0, Math.min(1, (value - low) / (high - low))) : 0.5);
  const name = (line) => (line.length > 42 ? `${line.slice(0, 40)}…` : line);
  const focus = h("p", { class: "hint focus", "aria-live": "off" }, "Move over the map, or step through it with the arrow keys.");
  const tell = (a, b) => fill(focus, h("b", {}, matrix[a][b].toFixed(3)), ` ${lines[a]} · ${lines[b]}`);
  const cell = (value, a, b) => {
    const strength = a === b ? 0 : shade(value);
    return h("td", {
      class: a === b ? "same" : strength > 0.62 ? "strong" : "", tabindex: a === 0 && b === 0 ? 0 : -1, "data-place": `${a},${b}`,
      style: { "--share": `${Math.round(strength * 100)}%` }, onmouseenter: () => tell(a, b), onfocus: () => tell(a, b),
    }, value.toFixed(2).replace(/^-0\.00$/, "0.00"));
  };
  const table = h("table", { class: `heat${lines.length > 12 ? " dense" : ""}` },
    h("caption", { class: "unseen" }, "Cosines between the sentences"),
    h("thead", {}, h("tr", {}, h("td", {}), lines.map((line, number) => h("th", { scope: "col", title: line }, h("span", { "aria-hidden": "true" }, number + 1), h("span", { class: "unseen" }, line))))),
    h("tbody", {}, matrix.map((row, a) => h("tr", {}, h("th", { scope: "row", title: lines[a] }, h("span", { class: "row-number" }, a + 1), " ", name(lines[a])), row.map((value, b) => cell(value, a, b))))));
  table.addEventListener("keydown", (event) => stepThrough(event, table));
  return [h("div", { class: "scroll" }, table), focus, h("p", { class: "hint" }, `Shaded from ${low.toFixed(2)} to ${high.toFixed(2)}, the lowest and the highest of these pairs.`)];
}

function stepThrough(event, table) {
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const place = document.activeElement?.dataset?.place;
  if (!place || !(event.key in steps)) return;
  const [a, b] = place.split(",").map(Number);
  const next = table.querySelector(`[data-place="${a + steps[event.key][0]},${b + steps[event.key][1]}"]`);
  if (!next) return;
  event.preventDefault();
  document.activeElement.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function buildEmbed({ ask, showCode }) {
  const text = textArea(MAPPED[0][1], 10);
  const pooling = chooser([["", "as the model's folder says"], ["mean", "mean of the tokens"], ["cls", "first token"]], "");
  const optionsNow = () => ({ pooling: pooling.value || undefined });
  const file = h("input", { type: "file", accept: ".txt,.csv,.tsv,.jsonl,.md,text/plain" });
  const query = h("input", { type: "text", value: "The weather is getting worse.", autocomplete: "off" });
  const held = { key: "", lines: [], vectors: [] };

  const embedAll = async (lines, signal, tell) => {
    const key = JSON.stringify([lines, optionsNow()]);
    if (held.key === key) return held.vectors;
    const vectors = [];
    for (let start = 0; start < lines.length; start += BATCH) {
      const { embeddings } = await ask("/api/embed", { inputs: lines.slice(start, start + BATCH), ...optionsNow() }, signal);
      vectors.push(...embeddings);
      if (lines.length > BATCH) tell(h("p", { class: "empty" }, `Embedded ${formatCount(vectors.length)} of ${formatCount(lines.length)} texts`, h("progress", { max: lines.length, value: vectors.length })));
    }
    Object.assign(held, { key, lines, vectors });
    return vectors;
  };

  const map = asking({
    button: "Draw the map",
    empty: "Texts of like meaning lie close together.",
    controls: [
      examples(MAPPED.map(([name]) => name), (number) => { text.value = MAPPED[number][1]; map.run(); }),
      field("Texts, one a line", text, `At most ${MOST_MAPPED} are drawn.`),
      h("details", {}, h("summary", {}, "Options"), field("Vector of a text", pooling)),
    ],
    ask: async (signal, tell) => {
      const lines = splitLines(text.value);
      need(lines.length > 2, "Three texts are needed at least, one a line.");
      need(lines.length <= MOST_MAPPED, `There are ${lines.length} texts; at most ${MOST_MAPPED} are drawn. A file of more can be searched below.`);
      const vectors = await embedAll(lines, signal, tell);
      showCode("/api/embed", { inputs: lines, ...optionsNow() }, { inputs: lines, options: optionsNow() });
      return [...showMap(lines, vectors), h("p", { class: "hint" }, `Vectors of ${vectors[0].length} numbers.`)];
    },
  });

  const near = asking({
    button: "Find neighbours",
    empty: "The texts that mean most nearly the same.",
    controls: [
      field("Text to look for", query),
      field("Among the lines of a file", file, "It is read here, in the browser; its lines go to this server to be embedded, and nowhere else. Without a file: among the texts above."),
    ],
    ask: async (signal, tell) => {
      need(query.value.trim(), "There is no text to look for: write one.");
      const lines = file.files.length ? await readLines(file.files[0]) : splitLines(text.value);
      need(lines.length, "There are no texts to look among.");
      const vectors = await embedAll(lines, signal, tell);
      const { embeddings } = await ask("/api/embed", { inputs: [query.value], ...optionsNow() }, signal);
      showCode("/api/embed", { inputs: [query.value], ...optionsNow() }, { inputs: [query.value], options: optionsNow() });
      return [h("p", { class: "hint" }, `The nearest of ${formatCount(lines.length)} texts, by cosine`),
        h("ol", { class: "bars wide" }, findNeighbours(embeddings[0], vectors).map(({ number, score }) => bar(lines[number], score, { value: score.toFixed(3) })))];
    },
  });
  return h("div", { class: "stack" }, map.element, h("h2", {}, "Neighbours"), near.element);
}

async function readLines(file) {
  need(file.size <= MOST_FILE_BYTES, `${file.name} has ${Math.round(file.size / 2 ** 20)} MiB; at most ${MOST_FILE_BYTES / 2 ** 20} are read here.`);
  const lines = splitLines(await file.text());
  need(lines.length <= MOST_LINES, `${file.name} has ${formatCount(lines.length)} lines; at most ${formatCount(MOST_LINES)} are embedded here.`);
  return lines;
}

/** Beside, above or below a point, where nothing else stands; nothing where all is taken: the point tells it when asked. */
function placeLabel(left, top, length, taken, width) {
  const tries = [[left + 9, top + 4], [left - 9 - length, top + 4], [left - length / 2, top - 10], [left - length / 2, top + 19]];
  for (const [x, y] of tries) {
    const box = [x, y - 11, x + length, y + 3];
    const isFree = x > 2 && x + length < width - 2 && taken.every((one) => box[2] < one[0] || one[2] < box[0] || box[3] < one[1] || one[3] < box[1] || (one[0] === left - 7 && one[1] === top - 7));
    if (isFree) { taken.push(box); return { x, y }; }
  }
  return null;
}

function showMap(lines, vectors) {
  const { points, shares } = projectToPlane(vectors);
  const [width, height, edge] = [560, 420, 26];
  const scale = (axis, size) => {
    const values = points.map((point) => point[axis]);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return (value) => edge + (high > low ? (value - low) / (high - low) : 0.5) * (size - 2 * edge);
  };
  const [x, y] = [scale(0, width), scale(1, height)];
  const focus = h("p", { class: "hint focus" }, "Move over a point, or step through them with Tab.");
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "map", role: "group", "aria-label": "Map of the texts" });
  const places = points.map((point) => [x(point[0]), height - y(point[1])]);
  const room = lines.length <= 30;
  const taken = places.map(([left, top]) => [left - 7, top - 7, left + 7, top + 7]);
  places.forEach(([left, top], number) => {
    const tell = () => fill(focus, h("b", {}, number + 1), ` ${lines[number]}`);
    const dot = draw("g", { class: "point", tabindex: 0, role: "img", "aria-label": lines[number] }, draw("circle", { cx: left, cy: top, r: 5, class: "fill-0" }));
    const name = lines[number].length > 26 ? `${lines[number].slice(0, 24)}…` : lines[number];
    const place = room && placeLabel(left, top, name.length * 6.2, taken, width);
    if (place) {
      const label = draw("text", { x: place.x, y: place.y, "text-anchor": "start" });
      label.textContent = name;
      dot.append(label);
    }
    dot.addEventListener("mouseenter", tell);
    dot.addEventListener("focus", tell);
    svg.append(dot);
  });
  return [svg, focus, h("p", { class: "hint" }, `The two directions in which these texts differ most; they hold ${Math.round((shares[0] + shares[1]) * 100)}% of the variance.`)];
}

export const vectorKinds = {
  similarity: { title: "Similarity", hint: "How near sentences are in meaning, each to each.", build: buildSimilarity },
  embed: { title: "Embeddings", hint: "Texts as vectors: a map of them, and the nearest neighbours of a text.", build: buildEmbed },
};
