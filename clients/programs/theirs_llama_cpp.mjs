// llama.cpp in Node: vectors of GGUF files in fp32, fp16 and int8, and the ids of its tokenizers.
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [, , answersFile, packages] = process.argv;
const require = createRequire(path.join(packages, "index.js"));
const { getLlama } = await import(pathToFileURL(require.resolve("node-llama-cpp")));
const version = JSON.parse(fs.readFileSync(path.join(packages, "node_modules/node-llama-cpp/package.json"))).version;
const FILES = { gguf: "model.gguf", gguf16: "model_fp16.gguf", gguf8: "model_int8.gguf" };
// Several threads wait for each other in loops, which takes minutes where other work has the cores.
const llama = await getLlama({ gpu: false, build: "never", logLevel: "error", maxThreads: 1 });

// llama.cpp's tools give vectors of length 1, and the library those of the model.
function scale(vector, like) {
  const norm = (one) => Math.sqrt(one.reduce((sum, value) => sum + value * value, 0));
  const factor = norm(like) / norm(vector);
  return vector.map((value) => value * factor);
}

async function ask(one, file) {
  const model = await llama.loadModel({ modelPath: path.join(one.gguf, file) });
  const context = await model.createEmbeddingContext({ contextSize: one.room + 1, threads: 1 });  // it wants one to spare
  const [begin, end] = [one.hard_ids[0][0], one.hard_ids[0].at(-1)];
  const tokenize = (text) => [begin, ...model.tokenize(text).filter((id) => id !== begin && id !== end), end];
  const embed = async (text) => {
    const ids = tokenize(text);
    const cut = ids.length <= one.room ? ids : [...ids.slice(0, one.room - 1), end];
    return [...(await context.getEmbeddingFor(cut)).vector];
  };
  const found = { ids: one.hard.map(tokenize), answers: [], hard_vectors: [] };
  for (const text of one.questions) found.answers.push(await embed(text));
  for (const text of one.hard) found.hard_vectors.push(await embed(text));
  await context.dispose();
  await model.dispose();
  return found;
}

for (const one of JSON.parse(fs.readFileSync(answersFile)).filter(({ gguf }) => gguf)) {
  for (const [variant, file] of Object.entries(FILES)) {
    const line = { model: one.model, version, variant, of: "answers" };
    try {
      const found = await ask(one, file);
      for (const of of ["answers", "hard_vectors"]) {
        console.log(JSON.stringify({ ...line, of, answers: found[of].map((vector, place) => scale(vector, one[of][place])) }));
      }
      if (variant === "gguf") console.log(JSON.stringify({ ...line, variant: "ids", of: "hard_ids", answers: found.ids }));
    } catch (error) {
      console.log(JSON.stringify({ ...line, error: String(error) }));
    }
  }
}
process.exit(0);
