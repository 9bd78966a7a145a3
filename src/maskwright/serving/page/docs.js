// The page of routes: what each takes, by the server's own description, and a form to try it.

import { copyButton, fill, h, keepKey, request, setUpTheme } from "./common.js";
import { field, textArea } from "./parts.js";
import { quoteForShell } from "./text.js";

const find = (id) => document.getElementById(id);
const EXAMPLES = {
  inputs: "The for [MASK] is used to iterate.", input: "a text", query: "a question", texts: ["an answer", "another"],
  labels: ["urgent", "not urgent"],
};

async function loadRoutes() {
  try {
    const { answer } = await request("/openapi.json");
    find("key-form").hidden = true;
    fill(find("routes"), listRoutes(answer).map((route) => showRoute(route, answer)));
  } catch (error) {
    if (error.status === 401) {
      find("key-form").hidden = false;
      find("key").focus();
    }
    fill(find("routes"), h("p", { class: "notice bad", role: "alert" }, error.message));
  }
}

function listRoutes(description) {
  return Object.entries(description.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, route]) => ({ path, method: method.toUpperCase(), ...route })));
}

function showRoute(route, description) {
  const body = route.requestBody?.content?.["application/json"]?.schema;
  const schema = body && resolve(body, description);
  const id = `${route.method} ${route.path}`;
  const shown = h("details", { class: "card route", id },
    h("summary", {}, h("span", { class: "method" }, route.method), h("span", { class: "path" }, route.path),
      h("span", { class: "said" }, route.description ?? "")));
  shown.addEventListener("toggle", () => {
    if (shown.open && shown.children.length === 1) shown.append(...describe(route, schema, description));
  });
  return shown;
}

function describe(route, schema, description) {
  const keys = Object.entries(schema?.properties ?? {});
  const places = (route.parameters ?? []).map((one) => [one.name, { ...one.schema, description: one.description }]);
  const required = new Set([...(schema?.required ?? []), ...places.map(([name]) => name)]);
  return [
    keys.length + places.length > 0 && h("h2", {}, keys.length ? "Keys of the body" : "Parts of the path"),
    keys.length + places.length > 0 && h("table", { class: "plain-table" }, h("tbody", {}, [...keys, ...places].map(([name, value]) =>
      h("tr", {}, h("th", { scope: "row" }, name, required.has(name) && " *"),
        h("td", { class: "type" }, nameType(value, description)), h("td", {}, value.description ?? ""))))),
    required.size > 0 && h("p", { class: "hint" }, "* needed"),
    tryOut(route, schema),
  ].filter(Boolean);
}

/** A form that sends the request and shows the answer, with the line for a shell. */
function tryOut(route, schema) {
  const needed = schema?.required ?? [];
  const example = Object.fromEntries(needed.map((name) => [name, EXAMPLES[name] ?? "a text"]));
  const sent = schema ? textArea(JSON.stringify(example, null, 1), 4) : null;
  const path = () => route.path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(places[name].value));
  const places = Object.fromEntries((route.parameters ?? []).map((one) => [one.name, h("input", { type: "text" })]));
  const output = h("div", { "aria-live": "polite" });
  const form = h("form", {}, h("h2", {}, "Try it"),
    Object.entries(places).map(([name, input]) => field(name, input)),
    sent && field("Body, JSON", sent),
    h("div", { class: "actions" }, h("button", { type: "submit", class: "main" }, "Send"), copyButton(() => writeCurl(route, path(), sent?.value), "Copy as curl")),
    output);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const { answer, headers } = await request(path(), { body: sent ? parse(sent.value) : undefined });
      const text = answer === null ? `Answered as ${headers.get("content-type") ?? "nothing"}.` : JSON.stringify(answer, null, 1);
      fill(output, h("pre", { class: "answered", tabindex: "0" }, text));
    } catch (error) {
      fill(output, h("p", { class: "notice bad", role: "alert" }, error.message));
    }
  });
  return form;
}

function parse(text) {
  try { return JSON.parse(text); } catch (error) { throw new Error(`The body is no JSON: ${error.message}`); }
}

function writeCurl(route, path, body) {
  const line = `curl ${quoteForShell(location.origin + path)}`;
  return body === undefined ? line : `${line} -H 'Content-Type: application/json' -d ${quoteForShell(body)}`;
}

function resolve(schema, description) {
  return schema.$ref ? description.components.schemas[schema.$ref.split("/").at(-1)] : schema;
}

/** A type in words: string, [integer], one of several. */
function nameType(schema, description) {
  const one = resolve(schema, description);
  if (one.enum) return one.enum.map((value) => JSON.stringify(value)).join(" | ");
  const members = one.anyOf ?? one.oneOf;
  if (members) return [...new Set(members.map((member) => nameType(member, description)))].join(" | ");
  if (one.prefixItems) return `[${one.prefixItems.map((item) => nameType(item, description)).join(", ")}]`;
  if (one.type === "array") return `[${one.items ? nameType(one.items, description) : "any"}, ...]`;
  const known = one.default === undefined ? "" : ` = ${JSON.stringify(one.default)}`;
  return `${one.type ?? "any"}${known}`;
}

setUpTheme(find("theme"));
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(find("key").value.trim());
  loadRoutes();
});
loadRoutes();
