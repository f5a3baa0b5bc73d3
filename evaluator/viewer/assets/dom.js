// Elements and numbers. Every text enters the page through textContent or an attribute set by name.

const SVG = "http://www.w3.org/2000/svg";
const UNKNOWN = "–";
const VERDICTS = ["passed", "failed", "error", "unscored"];

/** An element: `make("td", {class: "n"}, "text", child, …)`. A function as an attribute is a listener. */
function make(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function makeSvg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child instanceof Node ? child : visible(String(child)));
  }
  return element;
}

const CONTROLS = /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]/g;

/** The text with control characters, also those that change the direction of writing, as escapes. */
function visible(text) {
  return text.replace(CONTROLS, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function byId(id) {
  return document.getElementById(id);
}

/** A link inside the viewer: only addresses of this server, of this page or relative to the report. */
function link(href, attributes, ...children) {
  const isLocal = typeof href === "string" && /^(\/(?![/\\])|#|\?|\.\/)/.test(href);
  return isLocal ? make("a", { href, ...attributes }, children) : make("span", null, children);
}

function whole(value) {
  return typeof value === "number" ? value.toLocaleString("en-GB", { maximumFractionDigits: 0 }) : UNKNOWN;
}

/** Three significant digits. */
function short(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return whole(value);
  return value.toLocaleString("en-GB", { maximumSignificantDigits: 3 });
}

function percent(share) {
  return typeof share === "number" ? `${(100 * share).toFixed(1)} %` : UNKNOWN;
}

function money(value) {
  if (typeof value !== "number") return "unknown";
  if (value === 0) return "$0";
  return value < 0.01 ? `$${value.toPrecision(2)}` : `$${value.toFixed(value < 10 ? 4 : 2)}`;
}

/** The cost in a usage, whose figures that are left out are 0; nothing where there is no usage. */
function costOf(usage) {
  if (!usage || typeof usage !== "object") return "";
  return usage.cost_usd === undefined ? "$0" : money(usage.cost_usd);
}

function tokensOf(usage) {
  if (!usage || typeof usage !== "object") return "";
  const [given, made] = [usage.input_tokens ?? 0, usage.output_tokens ?? 0];
  return usage.input_tokens === null || usage.output_tokens === null ? "unknown" : whole(given + made);
}

/** A sum that may be known for some results only: the known part, and for how many. */
function amount(found, written) {
  if (found.known_for === found.of) return written(found.known);
  if (found.known_for === 0) return "unknown";
  return `${written(found.known)} for ${whole(found.known_for)} of ${whole(found.of)}, the rest unknown`;
}

/** A figure, as a lower bound where calls may be billed in addition; an unknown one stays unknown. */
function atLeast(isBound, text) {
  return isBound && text && text !== "unknown" ? `at least ${text}` : text;
}

function spent(spending, name, written) {
  return atLeast(spending.interrupted_calls > 0, amount(spending[name], written));
}

function seconds(value) {
  if (typeof value !== "number") return UNKNOWN;
  if (value > 0 && value < 0.001) return `${short(value * 1e6)}\u00a0µs`;
  if (value < 1) return `${short(value * 1000)}\u00a0ms`;
  if (value < 119.95) return `${short(value)}\u00a0s`;
  const rounded = Math.round(value);
  const hours = Math.floor(rounded / 3600);
  const minutes = Math.floor((rounded % 3600) / 60);
  return hours ? `${hours}\u00a0h ${minutes}\u00a0min` : `${minutes}\u00a0min ${rounded % 60}\u00a0s`;
}

/** `3 of 5`, with a noun `3 of 5 rows`. */
function ofAll(n, all, noun) {
  return `${whole(n)} of ${noun ? plural(all, noun) : whole(all)}`;
}

function plural(count, one, many) {
  return `${whole(count)} ${count === 1 ? one : many || `${one}s`}`;
}

/** Any value as text: a string unchanged, everything else as JSON. */
function plain(value, indent) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, indent || 0);
}

/** The beginning of a value in one line. */
function brief(value, limit = 120) {
  const text = plain(value).slice(0, 4 * limit).split(/\s+/).join(" ").trim();
  return text.length <= limit ? text : `${text.slice(0, limit - 1)}…`;
}

/** An own member of an object from the data; a name such as "constructor" is safe. */
function own(object, name) {
  return object && Object.hasOwn(object, name) ? object[name] : undefined;
}
