// What the page and the board share: elements, requests, the theme, numbers in words.

/** An element; properties that begin with "on" are listeners, `style` is an object, children that are text stay text. */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (name === "value" || name === "checked" || name === "disabled") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Kept for this browser tab alone; a browser may refuse, and then it is kept until the page is left. */
const KEY = "maskwright-key";
let heldKey = "";
export function readKey() {
  try { return sessionStorage.getItem(KEY) ?? heldKey; } catch { return heldKey; }
}
export function keepKey(key) {
  heldKey = key;
  try { sessionStorage.setItem(KEY, key); } catch { /* refused by the browser: heldKey has it */ }
}

export class RequestError extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

/** The answer to a request and its headers; errors have the server's own sentence. */
export async function request(path, { body, signal } = {}) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (readKey()) headers.Authorization = `Bearer ${readKey()}`;
  let response;
  try {
    const method = body === undefined ? "GET" : "POST";
    response = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("The server does not answer. Is it still running?", 0);
  }
  let answer = null;
  try { answer = await response.json(); } catch (error) { if (error.name === "AbortError") throw error; }
  if (!response.ok) throw new RequestError(describeRefusal(answer, response.status), response.status);
  return { answer, headers: response.headers };
}

function describeRefusal(answer, status) {
  const error = answer?.error;
  const said = typeof error === "string" ? error : error?.message;
  if (status === 401) return "This server needs its key: enter it at the top of the page.";
  return said ? said[0].toUpperCase() + said.slice(1) + (/[.!?]$/.test(said) ? "" : ".") : `The server answered with status ${status}.`;
}

// The theme: that of the system until a person chooses.
const THEMES = ["auto", "light", "dark"];
const THEME_NAMES = { auto: "as the system", light: "light", dark: "dark" };
function readTheme() {
  try { return localStorage.getItem("maskwright-theme") ?? "auto"; } catch { return "auto"; }
}
export function setUpTheme(button) {
  let theme = readTheme();
  const show = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.dataset.shown = theme;
    button.setAttribute("aria-label", `Colours: ${THEME_NAMES[theme]}. Change`);
    button.title = `Colours: ${THEME_NAMES[theme]}`;
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    try { localStorage.setItem("maskwright-theme", theme); } catch { /* the choice holds until the page is left */ }
    show();
  });
  show();
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { value: text, class: "unseen", readonly: true });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

export function copyButton(getText, label = "Copy") {
  const button = h("button", { type: "button", class: "quiet small" }, label);
  button.addEventListener("click", async () => {
    button.textContent = (await copyText(getText())) ? "Copied" : "Select and copy it";
    setTimeout(() => { button.textContent = label; }, 1600);
  });
  return button;
}

// Numbers in words.
export function formatCount(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toFixed(size >= 1e10 ? 0 : 1)}B`;
  if (size >= 1e6) return `${(value / 1e6).toFixed(size >= 1e8 ? 0 : 1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(size >= 1e5 ? 0 : 1)}k`;
  return Number.isInteger(value) ? String(value) : value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}
export function formatFigure(value) {
  if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value);
  if (size >= 1e6) return formatCount(value);
  if (size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}
export function formatPercent(share) {
  const percent = share * 100;
  return `${percent >= 99.95 || percent < 0.01 ? percent.toFixed(percent ? 2 : 0) : percent.toFixed(percent >= 10 ? 1 : 2)}%`;
}
export function formatBytes(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  return bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${Math.round(bytes / 2 ** 20)} MiB`;
}
export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.round(hours / 24)} days`;
}
export function formatAgo(time) {
  const seconds = Date.now() / 1000 - time;
  return seconds < 3 ? "now" : `${formatDuration(seconds)} ago`;
}

export function debounce(act, delay = 250) {
  let timer;
  return (...args) => { clearTimeout(timer); timer = setTimeout(() => act(...args), delay); };
}

/** Calls `act` again and again, never two at once, and not while nobody looks. */
export function repeat(act, interval) {
  let isRunning = false;
  const run = async () => {
    if (isRunning || document.hidden) return;
    isRunning = true;
    try { await act(); } finally { isRunning = false; }
  };
  run();
  document.addEventListener("visibilitychange", run);
  const timer = setInterval(run, interval);
  return { run, stop: () => { clearInterval(timer); document.removeEventListener("visibilitychange", run); } };
}
