// Kinds of questions about search: documents of an index, the order of texts, the tokens that stand for a text.

import { formatCount, formatFigure, formatPercent, h } from "./common.js";
import { asking, bar, chooser, examples, field, need, textArea } from "./parts.js";
import { splitLines, writePython } from "./text.js";

// Documents

const MOST_SHOWN = 400;

function buildSearch({ model, ask, showCode }) {
  const query = h("input", { type: "search", autocomplete: "off", placeholder: "what to look for" });
  const topK = h("input", { type: "number", min: 1, max: 1000, value: 10 });
  return asking({
    button: "Search",
    empty: "The documents that answer best.",
    controls: [
      field("Search", query, `Exact, in all ${formatCount(model.documents)} documents.`),
      h("details", {}, h("summary", {}, "Options"), field("Documents", topK)),
    ],
    ask: async (signal) => {
      need(query.value.trim(), "There is nothing to look for: write it.");
      const body = { query: query.value, top_k: Number(topK.value) || 10 };
      const { hits } = await ask("/search", body, signal);
      showCode("/search", body, { python: `import maskwright as mw\n\nhits, = mw.search(${writePython(model.id)}, ${writePython(body.query)}, top_k=${body.top_k})` });
      return hits.length ? h("ol", { class: "hits" }, hits.map(showHit)) : h("p", { class: "notice" }, "No document has anything of it.");
    },
  }).element;
}

function showHit({ id, score, text }) {
  const characters = [...text];
  const head = h("p", { class: "hit-head" }, h("span", { class: "hit-id" }, id), h("span", { class: "hit-score" }, score.toFixed(4)));
  if (characters.length <= MOST_SHOWN) return h("li", {}, head, h("p", { class: "hit-text" }, text));
  const start = `${characters.slice(0, MOST_SHOWN).join("")}…`;
  return h("li", {}, head, h("details", { class: "hit-text" }, h("summary", {}, start), h("p", {}, text)));
}

// Order

const RERANK_EXAMPLE = ["how do I reset my password", "Passwords are reset under Settings, Account.\nOur offices are closed on Sunday.\nTo change your e-mail address, write to support.\nA forgotten password is sent anew by mail."];

function buildRerank({ model, ask, showCode }) {
  const query = h("input", { type: "text", value: RERANK_EXAMPLE[0], autocomplete: "off" });
  const texts = textArea(RERANK_EXAMPLE[1], 7);
  return asking({
    button: "Put in order",
    empty: "The texts come back in order, the best answer first.",
    controls: [field("Question", query), field("Texts, one a line", texts)],
    ask: async (signal) => {
      const lines = splitLines(texts.value);
      need(query.value.trim() && lines.length, "A question and some texts are needed.");
      const body = { query: query.value, texts: lines };
      const order = await ask("/rerank", body, signal);
      const pairs = `[${lines.map((line) => `(${writePython(query.value)}, ${writePython(line)})`).join(", ")}]`;
      showCode("/rerank", body, model.kinds.includes("classify") ? { call: pairs, kind: "classify" } : { inputs: lines, kind: "embed" });
      // Some models answer with probabilities, others with measures of their own, whose bars tell the order alone.
      const scores = order.map((one) => one.score);
      const isShare = scores.every((score) => score >= 0 && score <= 1);
      const [low, high] = isShare ? [0, 1] : [Math.min(...scores), Math.max(...scores)];
      const share = (score) => (high > low ? (score - low) / (high - low) : 1);
      return h("ol", { class: "bars wide" }, order.map((one) => bar(lines[one.index], share(one.score), { value: isShare ? formatPercent(one.score) : formatFigure(one.score) })));
    },
  }).element;
}

// Tokens that stand for a text

const SPARSE_EXAMPLES = [["a question", "Which sea does the Rhine flow into?"], ["a sentence", "The old teacher remembers every student."]];
const MOST_BARS = 40;

function buildSparse({ ask, showCode }) {
  const text = textArea(SPARSE_EXAMPLES[0][1], 4);
  const role = chooser([["document", "a document"], ["query", "a query"]], "document");
  const panel = asking({
    button: "Show its tokens",
    empty: "The tokens that a search would find the text by, with their weights.",
    controls: [
      examples(SPARSE_EXAMPLES.map(([name]) => name), (number) => { text.value = SPARSE_EXAMPLES[number][1]; panel.run(); }),
      field("Text", text),
      h("details", {}, h("summary", {}, "Options"), field("The text is", role)),
    ],
    ask: async (signal) => {
      const inputs = text.value;
      need(inputs.trim(), "There is no text: write one.");
      const { tokens, weights } = await ask("/api/embed-sparse", { inputs, role: role.value }, signal);
      showCode("/api/embed-sparse", { inputs, role: role.value }, { inputs, options: { role: role.value }, kind: "embed" });
      if (!tokens.length) return h("p", { class: "notice" }, "No token has a weight.");
      return [
        h("p", { class: "hint" }, `${formatCount(tokens.length)} tokens have a weight${tokens.length > MOST_BARS ? `; the largest ${MOST_BARS}` : ""}`),
        h("ol", { class: "bars" }, tokens.slice(0, MOST_BARS).map((token, number) => bar(token, weights[number] / weights[0], { value: weights[number].toFixed(3) }))),
      ];
    },
  });
  return panel.element;
}

export const searchKinds = {
  rerank: { title: "Ranking", hint: "Which of several texts answers a question best.", build: buildRerank },
  "embed-sparse": { title: "Tokens", hint: "The words that stand for a text, those it has and those it brings to mind.", build: buildSparse },
  search: { title: "Search", hint: "The documents of the index that answer a query best.", build: buildSearch },
};
