// Transformers.js in Node: pipelines on ONNX folders, in fp32, q8 and fp16.
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [, , answersFile, packages] = process.argv;
const require = createRequire(path.join(packages, "index.js"));
const { env, pipeline } = await import(pathToFileURL(require.resolve("@huggingface/transformers")));
const version = JSON.parse(fs.readFileSync(path.join(packages, "node_modules/@huggingface/transformers/package.json"))).version;
env.allowRemoteModels = false;
const TOP_K = 3;
const KINDS = ["fill-mask", "classify", "pairs", "ner", "qa", "embed"];

// Tokens of one class that follow each other are one entity, with the mean of their scores.
function joinEntities(tokens) {
  const groups = [];
  for (const { entity, score, index } of tokens) {
    const [tag, name] = entity.includes("-") ? entity.split(/-(.*)/s) : ["I", entity];
    const last = groups.at(-1);
    if (last && last.name === name && last.index + 1 === index && tag !== "B") {
      last.scores.push(score);
      last.index = index;
    } else groups.push({ name, index, scores: [score] });
  }
  return groups.map(({ name, scores }) => [name, null, null, scores.reduce((a, b) => a + b, 0) / scores.length]);
}

async function ask({ kind, onnx, questions }, dtype) {
  env.localModelPath = path.dirname(onnx) + "/";
  const open = (task) => pipeline(task, path.basename(onnx), { dtype });
  if (kind === "fill-mask") {
    const fill = await open("fill-mask");
    const answers = [];
    for (const text of questions) answers.push(await fill(text.replace("[MASK]", fill.tokenizer.mask_token), { top_k: TOP_K }));
    return answers.map((each) => each.map((one) => [one.token_str, one.score]));
  }
  if (kind === "classify") return (await (await open("text-classification"))(questions)).map((one) => [one.label, one.score]);
  if (kind === "pairs") {
    const { tokenizer, model } = await open("text-classification");
    const answers = [];
    for (const [first, second] of questions) {
      const { logits } = await model(await tokenizer(first, { text_pair: second }));
      const exps = Array.from(logits.data, Math.exp), sum = exps.reduce((a, b) => a + b, 0);
      const best = exps.indexOf(Math.max(...exps));
      answers.push([model.config.id2label[best], exps[best] / sum]);
    }
    return answers;
  }
  if (kind === "ner") {
    const tag = await open("token-classification");
    const answers = [];
    for (const text of questions) answers.push(joinEntities(await tag(text)));
    return answers;
  }
  if (kind === "qa") {
    const read = await open("question-answering");
    const answers = [];
    for (const [question, context] of questions) answers.push(await read(question, context));
    return answers.map((one) => [one.answer, one.score]);
  }
  return (await (await open("feature-extraction"))(questions, { pooling: "mean" })).tolist();
}

for (const dtype of ["fp32", "q8", "fp16"]) {
  for (const model of JSON.parse(fs.readFileSync(answersFile)).filter(({ kind }) => KINDS.includes(kind))) {
    // It cuts a long text without the closing token, so the last question has another answer by its own making.
    if (model.kind === "embed") model.questions.pop();
    const line = { model: model.model, version, variant: dtype, of: "answers" };
    try {
      line.answers = await ask(model, dtype);
    } catch (error) {
      line.error = String(error);
    }
    console.log(JSON.stringify(line));
  }
}
