// Parts of panels: labelled fields, bars, examples, and the way from a button to an answer or a sentence.

import { fill, formatPercent, h } from "./common.js";

let numFields = 0;

/** A label with its control; the control gets an id. */
export function field(label, control, hint) {
  control.id ||= `field-${++numFields}`;
  const shown = hint && h("p", { class: "hint", id: `${control.id}-hint` }, hint);
  if (shown) control.setAttribute("aria-describedby", shown.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, shown);
}

export function textArea(value, rows = 3, extra = {}) {
  return h("textarea", { rows, value, spellcheck: "false", ...extra });
}

export function check(label, isChecked = false) {
  const input = h("input", { type: "checkbox", checked: isChecked });
  return { input, element: h("label", { class: "check" }, input, ` ${label}`) };
}

export function chooser(options, value) {
  return h("select", { value }, options.map(([key, name]) => h("option", { value: key, selected: key === value }, name)));
}

/** Buttons that put an example into the form. */
export function examples(names, choose) {
  return h("div", { class: "examples" }, h("span", { class: "hint" }, "Try"),
    names.map((name, number) => h("button", { type: "button", class: "quiet small", onclick: () => choose(number) }, name)));
}

export function bar(label, share, { value = formatPercent(share), hue = 0, onclick, title } = {}) {
  const parts = [
    h("span", { class: "bar-label" }, label),
    h("span", { class: "bar-track", "aria-hidden": "true" },
      h("span", { class: `bar-fill back-${hue}`, style: { width: `${Math.max(0, Math.min(1, share)) * 100}%` } })),
    h("span", { class: "bar-value" }, value),
  ];
  return h("li", {}, onclick ? h("button", { type: "button", class: "bar", onclick, title }, parts) : h("div", { class: "bar", title }, parts));
}

/** A form whose button asks: the newest question counts, and an error is said where the answer would be. */
export function asking({ button = "Ask", controls, empty, ask }) {
  const output = h("div", { class: "output", "aria-live": "polite" }, h("p", { class: "empty" }, empty));
  const submit = h("button", { type: "submit", class: "main" }, button);
  const form = h("form", { class: "card ask" }, controls, h("div", { class: "actions" }, submit, h("span", { class: "hint keys" }, "Ctrl + Enter")));
  let newest = 0;
  let controller = null;
  const run = async () => {
    const number = ++newest;
    controller?.abort();
    controller = new AbortController();
    output.setAttribute("aria-busy", "true");
    try {
      const shown = await ask(controller.signal, (progress) => number === newest && fill(output, progress));
      if (number === newest) fill(output, shown);
    } catch (error) {
      if (error.name !== "AbortError" && number === newest) fill(output, h("p", { class: "notice bad", role: "alert" }, error.message));
    } finally {
      if (number === newest) output.removeAttribute("aria-busy");
    }
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); run(); });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
  });
  return { element: h("div", { class: "two" }, form, h("section", { class: "card answer", "aria-label": "Answer" }, output)), run, output };
}

/** Says in words what is missing, where a request would only fail. */
export function need(isThere, sentence) {
  if (!isThere) throw new Error(sentence);
}
