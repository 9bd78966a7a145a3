// Texts as servers count them: in Unicode code points, where JavaScript counts UTF-16 units.

/** For each code point the unit at which it begins, and the end of the text. */
export function codePointStarts(text) {
  const starts = [];
  for (let unit = 0; unit < text.length; unit += text.codePointAt(unit) > 0xffff ? 2 : 1) starts.push(unit);
  starts.push(text.length);
  return starts;
}

/** The part of a text between two places that are counted in code points. */
export function sliceCodePoints(text, start, end, starts = codePointStarts(text)) {
  const last = starts.length - 1;
  return text.slice(starts[Math.min(Math.max(start, 0), last)], starts[Math.min(Math.max(end, 0), last)]);
}

/**
 * Cuts a text at the ends of spans, which may overlap: pieces in order, each with the numbers of the spans over it.
 * `start` and `end` of a span are counted in code points.
 */
export function cutAtSpans(text, spans) {
  const starts = codePointStarts(text);
  const last = starts.length - 1;
  const clip = (place) => Math.min(Math.max(Math.trunc(place) || 0, 0), last);
  const cuts = new Set([0, last]);
  for (const span of spans) { cuts.add(clip(span.start)); cuts.add(clip(span.end)); }
  const ordered = [...cuts].sort((a, b) => a - b);
  const pieces = [];
  for (let place = 0; place + 1 < ordered.length; place++) {
    const [from, to] = [ordered[place], ordered[place + 1]];
    const over = [];
    spans.forEach((span, number) => { if (clip(span.start) <= from && clip(span.end) >= to) over.push(number); });
    pieces.push({ text: text.slice(starts[from], starts[to]), spans: over, ends: over.filter((number) => clip(spans[number].end) === to) });
  }
  return pieces;
}

/** Words that can be masked, and what stands between them; `masks` are kept whole. */
export function splitWords(text, mask) {
  const pieces = [];
  const parts = mask ? text.split(mask) : [text];
  parts.forEach((part, number) => {
    if (number) pieces.push({ text: mask, kind: "mask" });
    let end = 0;
    for (const found of part.matchAll(/[\p{L}\p{N}\p{M}]+(?:['’\-_][\p{L}\p{N}\p{M}]+)*/gu)) {
      if (found.index > end) pieces.push({ text: part.slice(end, found.index), kind: "between" });
      pieces.push({ text: found[0], kind: "word" });
      end = found.index + found[0].length;
    }
    if (end < part.length) pieces.push({ text: part.slice(end), kind: "between" });
  });
  return pieces;
}

export function splitLines(text) {
  return text.split(/\r?\n/).map((line) => line.trim()).filter((line) => line !== "");
}

/** A text in single quotes, as a POSIX shell reads it. */
export function quoteForShell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A value as Python writes it. */
export function writePython(value) {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(writePython).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, one]) => `${writePython(key)}: ${writePython(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}
