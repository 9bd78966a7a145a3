// Kinds of questions about texts: masks, entities, answers, classes, labels.

import { fill, formatFigure, formatPercent, h } from "./common.js";
import { asking, bar, check, chooser, examples, field, need, textArea } from "./parts.js";
import { cutAtSpans, splitWords, writePython } from "./text.js";

const NUM_HUES = 8;

// Masks

const MASK_EXAMPLES = [
  ["the capital", "The capital of France is Paris, a city on the Seine.", "Paris"],
  ["a sentence of code", "Return a list of all the keys in the dictionary.", "list"],
  ["a verb", "The old teacher remembers every student.", "remembers"],
];

function buildFillMask({ model, ask, showCode }) {
  const mask = model.mask_token ?? "[MASK]";
  const text = textArea(MASK_EXAMPLES[1][1], 3);
  const words = h("div", { class: "words", role: "group", "aria-label": "Words: choose those to mask" });
  const topK = h("input", { type: "number", min: 1, max: 100, value: 8 });
  const targets = h("input", { type: "text", placeholder: "all words", autocomplete: "off" });
  let pieces = [];
  const write = () => pieces.map((piece) => (piece.kind === "mask" ? mask : piece.text)).join("");
  const show = () => fill(words, pieces.map((piece, number) => {
    if (piece.kind === "between") return piece.text;
    const isMasked = piece.kind === "mask";
    return h("button", {
      type: "button", class: "word", "data-piece": number, "aria-pressed": String(isMasked), "aria-label": isMasked ? `${piece.hidden ?? "mask"}, masked` : piece.text,
      onclick: () => toggle(number),
    }, isMasked ? (piece.hidden ?? "mask") : piece.text);
  }));
  const read = () => { pieces = splitWords(text.value, mask); show(); };
  const toggle = (number) => {
    const piece = pieces[number];
    pieces[number] = piece.kind === "mask" ? { text: piece.hidden ?? mask, kind: piece.hidden ? "word" : "mask" } : { text: mask, kind: "mask", hidden: piece.text };
    show();
    words.querySelector(`[data-piece="${number}"]`)?.focus();
    if (pieces.some((one) => one.kind === "mask")) panel.run();
  };
  text.addEventListener("input", read);
  const put = (number, word) => {
    const place = pieces.map((piece, index) => (piece.kind === "mask" ? index : -1)).filter((index) => index >= 0)[number];
    if (place === undefined) return;
    pieces[place] = { text: word, kind: "word" };
    text.value = write();
    pieces = splitWords(text.value, mask);
    show();
    if (pieces.some((one) => one.kind === "mask")) panel.run();
    else fill(panel.output, h("p", { class: "empty" }, "Choose another word to mask."));
  };
  const panel = asking({
    button: "Fill the masks",
    empty: "Choose a word, and the model says what it would put there.",
    controls: [
      examples(MASK_EXAMPLES.map(([name]) => name), (number) => { text.value = MASK_EXAMPLES[number][1]; read(); maskWord(MASK_EXAMPLES[number][2]); }),
      field("Text", text), h("div", { class: "field" }, h("p", { class: "label" }, "Words to mask"), words),
      h("details", {}, h("summary", {}, "Options"), h("div", { class: "row" }, field("Candidates", topK), field("Only these words", targets, "With commas between them."))),
    ],
    ask: async (signal) => {
      const inputs = write();
      need(pieces.some((piece) => piece.kind === "mask"), "No word is masked: choose one below the text.");
      const only = targets.value.split(",").map((word) => word.trim()).filter(Boolean);
      const options = { top_k: Number(topK.value) || 8, targets: only.length ? only : undefined };
      const answer = await ask("/fill-mask", { inputs, ...options }, signal);
      showCode("/fill-mask", { inputs, ...options }, { inputs, options });
      const masks = Array.isArray(answer[0]) ? answer : [answer];
      return masks.map((candidates, number) => {
        const hidden = pieces.filter((piece) => piece.kind === "mask")[number]?.hidden;
        return h("section", { class: "mask-answer" },
          h("h3", {}, masks.length > 1 ? `Mask ${number + 1}` : "For the mask", hidden && h("span", { class: "hint" }, ` where “${hidden}” stood`)),
          h("ol", { class: "bars" }, candidates.map((one) => bar(one.token_str.trim() || "(space)", one.score, {
            hue: isSame(one.token_str, hidden) ? 2 : 0, title: "Put it into the text", onclick: () => put(number, one.token_str.trim()),
          }))));
      }).concat(h("p", { class: "hint" }, "Choose a candidate to put it into the text."));
    },
  });
  const maskWord = (word) => {
    const number = pieces.findIndex((piece) => piece.kind === "word" && piece.text === word);
    if (number >= 0) toggle(number);
  };
  read();
  queueMicrotask(() => { maskWord("list"); document.activeElement?.blur?.(); });
  return panel.element;
}

function isSame(token, hidden) {
  return hidden !== undefined && token.trim().toLowerCase() === hidden.toLowerCase();
}

// Entities

const NER_EXAMPLES = [
  ["a biography", "Ada Lovelace was born in London in 1815 and worked with Charles Babbage on the Analytical Engine."],
  ["news", "Siemens opened an office in Munich 🏢, said Maria Schmidt of the European Commission on Tuesday."],
];

function buildNer({ ask, showCode }) {
  const text = textArea(NER_EXAMPLES[0][1], 5);
  const aggregation = chooser([["first", "first token of a word"], ["average", "mean of its tokens"], ["max", "surest of its tokens"], ["simple", "each token its own"]], "first");
  const panel = asking({
    button: "Find entities",
    empty: "Entities are marked in the text.",
    controls: [
      examples(NER_EXAMPLES.map(([name]) => name), (number) => { text.value = NER_EXAMPLES[number][1]; panel.run(); }),
      field("Text", text),
      h("details", {}, h("summary", {}, "Options"), field("Class of a word", aggregation)),
    ],
    ask: async (signal) => {
      const inputs = text.value;
      need(inputs.trim(), "There is no text: write one.");
      const options = { aggregation: aggregation.value };
      const entities = await ask("/ner", { inputs, ...options }, signal);
      showCode("/ner", { inputs, ...options }, { inputs, options });
      return showEntities(inputs, entities);
    },
  });
  return panel.element;
}

export function showEntities(text, entities) {
  const groups = [...new Set(entities.map((one) => one.entity_group))].sort();
  const hueOf = new Map(groups.map((group, number) => [group, number % NUM_HUES]));
  const pieces = cutAtSpans(text, entities);
  const marked = h("p", { class: "marked" }, pieces.map((piece) => {
    if (!piece.spans.length) return piece.text;
    const over = piece.spans.map((number) => entities[number]);
    const title = over.map((one) => `${one.entity_group} ${formatPercent(one.score)}`).join(", ");
    const tags = piece.ends.map((number) => h("span", { class: "tag" }, entities[number].entity_group));
    return h("mark", { class: `entity wash-${hueOf.get(over[0].entity_group)}${over.length > 1 ? " overlap" : ""}`, title, "data-groups": over.map((one) => one.entity_group).join("\n") }, piece.text, tags);
  }));
  if (!entities.length) return [marked, h("p", { class: "notice" }, "The model finds no entity in this text.")];
  const legend = h("ul", { class: "chips", "aria-label": "Classes: choose to hide or show" }, groups.map((group) => {
    const count = entities.filter((one) => one.entity_group === group).length;
    const button = h("button", { type: "button", class: `chip wash-${hueOf.get(group)}`, "aria-pressed": "true" }, group, h("span", { class: "count" }, count));
    button.addEventListener("click", () => {
      const isShown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(isShown));
      for (const mark of marked.querySelectorAll("mark")) if (mark.dataset.groups.split("\n").includes(group)) mark.classList.toggle("plain", !isShown);
    });
    return h("li", {}, button);
  }));
  const rows = entities.map((one) => h("tr", {}, h("td", {}, one.word), h("td", {}, one.entity_group), h("td", { class: "number" }, formatPercent(one.score)), h("td", { class: "number" }, `${one.start}–${one.end}`)));
  const table = h("details", {}, h("summary", {}, `All ${entities.length} as a table`),
    h("div", { class: "scroll" }, h("table", { class: "plain-table" }, h("thead", {}, h("tr", {}, ["word", "class", "score", "characters"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows))));
  return [legend, marked, table];
}

// Answers

const QA_EXAMPLES = [
  ["a river", "Which sea does the Rhine flow into?", "The Rhine rises in the Swiss Alps, forms part of the border between Germany and France, and flows into the North Sea near Rotterdam."],
  ["a person", "Who wrote the notes on the Analytical Engine?", "Charles Babbage designed the Analytical Engine. In 1843 Ada Lovelace translated an article on it and added notes that were longer than the article."],
];

function buildQa({ ask, showCode }) {
  const question = h("input", { type: "text", value: QA_EXAMPLES[0][1], autocomplete: "off" });
  const context = textArea(QA_EXAMPLES[0][2], 6);
  const topK = h("input", { type: "number", min: 1, max: 20, value: 3 });
  const impossible = check("The text may have no answer");
  const panel = asking({
    button: "Answer",
    empty: "The answer is marked in the text.",
    controls: [
      examples(QA_EXAMPLES.map(([name]) => name), (number) => { [, question.value, context.value] = QA_EXAMPLES[number]; panel.run(); }),
      field("Question", question), field("Text that has the answer", context),
      h("details", {}, h("summary", {}, "Options"), h("div", { class: "row" }, field("Answers", topK), impossible.element)),
    ],
    ask: async (signal) => {
      const inputs = { question: question.value, context: context.value };
      need(inputs.question.trim() && inputs.context.trim(), "A question and a text are needed.");
      const options = { top_k: Number(topK.value) || 1, handle_impossible_answer: impossible.input.checked || undefined };
      const answer = await ask("/qa", { inputs, ...options }, signal);
      showCode("/qa", { inputs, ...options }, { inputs, options });
      return showReplies(inputs.context, Array.isArray(answer) ? answer : [answer]);
    },
  });
  return panel.element;
}

function showReplies(context, replies) {
  const marked = h("p", { class: "marked" });
  const mark = (reply) => fill(marked, reply.answer ? cutAtSpans(context, [reply]).map((piece) => (piece.spans.length ? h("mark", { class: "entity wash-2" }, piece.text) : piece.text)) : context);
  const list = h("ol", { class: "bars" }, replies.map((reply, number) => bar(reply.answer || "no answer in the text", reply.score, {
    hue: 2, title: "Mark it in the text",
    onclick: (event) => { mark(reply); for (const one of list.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one === event.currentTarget)); },
  })));
  list.querySelector("button")?.setAttribute("aria-pressed", "true");
  mark(replies[0]);
  return [list, marked];
}

// Classes

const CLASSIFY_EXAMPLES = [
  ["praise", "A quiet, clever film, and the actors are wonderful.", ""],
  ["a complaint", "The parcel came two weeks late and half of it was broken.", ""],
  ["a pair", "A man plays the guitar on a stage.", "Somebody makes music."],
];

function buildClassify({ model, ask, showCode }) {
  const text = textArea(CLASSIFY_EXAMPLES[0][1], 4);
  const second = textArea("", 2);
  const panel = asking({
    button: "Classify",
    empty: "Every class gets a bar.",
    controls: [
      examples(CLASSIFY_EXAMPLES.map(([name]) => name), (number) => { [, text.value, second.value] = CLASSIFY_EXAMPLES[number]; pair.open = second.value !== ""; panel.run(); }),
      field("Text", text),
    ],
    ask: async (signal) => {
      need(text.value.trim(), "There is no text: write one.");
      const isPair = second.value.trim() !== "";
      const inputs = isPair ? [[text.value, second.value]] : text.value;
      const answer = await ask("/classify", { inputs, top_k: null }, signal);
      const call = isPair ? `(${writePython(text.value)}, ${writePython(second.value)})` : writePython(text.value);
      showCode("/classify", { inputs, top_k: null }, { call, options: { top_k: null } });
      return showClasses(isPair ? answer[0] : answer, model);
    },
  });
  const pair = h("details", {}, h("summary", {}, "A second text, for models of pairs"), field("Second text", second));
  panel.element.querySelector(".field").after(pair);
  return panel.element;
}

function showClasses(answer, model) {
  const classes = Array.isArray(answer) ? answer : [answer];
  const isMeasure = classes.length === 1 && (classes[0].score < 0 || classes[0].score > 1 || (model.labels ?? []).length <= 1);
  if (isMeasure) return [h("p", { class: "measure" }, formatFigure(classes[0].score)), h("p", { class: "hint" }, `The model answers with a measure, ${classes[0].label}.`)];
  const sum = classes.reduce((total, one) => total + one.score, 0);
  const isOneOf = Math.abs(sum - 1) < 1e-3;
  return [
    h("ol", { class: "bars" }, classes.map((one, number) => bar(one.label, one.score, { hue: number ? 7 : 0 }))),
    h("p", { class: "note" },
      isOneOf ? "The scores share 100% among the classes. " : "Each class is judged on its own, so the scores do not add up to 100%. ",
      "A score is what the model believes: it is a probability only as far as the model is calibrated. The report of its fine-tuning run compares the two on held-out examples (calibration_error)."),
  ];
}

// Labels

const ZERO_EXAMPLES = [
  ["news", "The central bank raised interest rates by half a point.", ["economy", "sports", "politics", "science"]],
  ["a request", "Please send me a new password, I cannot log in any more.", ["account", "delivery", "refund"]],
];

function buildZeroShot({ ask, showCode }) {
  const text = textArea(ZERO_EXAMPLES[0][1], 4);
  const hypothesis = h("input", { type: "text", placeholder: "This example is {}.", autocomplete: "off" });
  const multi = check("A text may have several labels");
  const entry = h("input", { type: "text", placeholder: "add a label, then Enter", autocomplete: "off" });
  const chips = h("ul", { class: "chips", "aria-label": "Labels" });
  let labels = ZERO_EXAMPLES[0][2].slice();
  const show = () => fill(chips, labels.map((label) => h("li", {}, h("button", {
    type: "button", class: "chip", "aria-label": `Remove ${label}`, onclick: () => { labels = labels.filter((one) => one !== label); show(); entry.focus(); },
  }, label, h("span", { class: "cross", "aria-hidden": "true" }, "×")))));
  const add = () => {
    for (const label of entry.value.split(",").map((one) => one.trim())) if (label && !labels.includes(label)) labels.push(label);
    entry.value = "";
    show();
  };
  entry.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) { event.preventDefault(); add(); }
    if (event.key === "Backspace" && !entry.value && labels.length) { labels.pop(); show(); }
  });
  const panel = asking({
    button: "Choose",
    empty: "Every label gets a bar.",
    controls: [
      examples(ZERO_EXAMPLES.map(([name]) => name), (number) => { text.value = ZERO_EXAMPLES[number][1]; labels = ZERO_EXAMPLES[number][2].slice(); show(); panel.run(); }),
      field("Text", text), field("Labels", entry, "Choose a label to remove it."), chips,
      h("details", {}, h("summary", {}, "Options"), field("Sentence around a label", hypothesis, "With {} for the label."), multi.element),
    ],
    ask: async (signal) => {
      add();
      need(text.value.trim(), "There is no text: write one.");
      need(labels.length, "There is no label to choose: add some.");
      const inputs = text.value;
      const options = { labels, hypothesis: hypothesis.value.trim() || undefined, multi_label: multi.input.checked || undefined };
      const answer = await ask("/zero-shot", { inputs, ...options }, signal);
      showCode("/zero-shot", { inputs, ...options }, { inputs, options });
      return [h("ol", { class: "bars" }, answer.labels.map((label, number) => bar(label, answer.scores[number], { hue: number ? 7 : 0 }))),
        h("p", { class: "note" }, options.multi_label ? "Each label is judged on its own." : "The scores share 100% among these labels: with other labels they are others.")];
    },
  });
  show();
  return panel.element;
}

export const textKinds = {
  "fill-mask": { title: "Fill masks", hint: "Choose words to hide: the model says what it would put in their place.", build: buildFillMask },
  ner: { title: "Entities", hint: "Names of people, places and other things, marked where they stand.", build: buildNer },
  qa: { title: "Questions", hint: "The part of a text that answers a question.", build: buildQa },
  classify: { title: "Classes", hint: "Which class a text belongs to, and how sure the model is.", build: buildClassify },
  "zero-shot": { title: "Your labels", hint: "Choose among labels that the model was never trained on.", build: buildZeroShot },
};
