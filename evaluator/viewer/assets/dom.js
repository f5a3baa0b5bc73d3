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
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(typeof child === "string" ? visible(child) : child);
  }
  return element;
}

/** The text with control characters, also those that change the direction of writing, as escapes. */
function visible(text) {
  const escape = (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return text.replace(/[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g, escape);
}

function byId(id) {
  return document.getElementById(id);
}

/** A table with a caption for screen readers, in a box that scrolls sideways if the table is too wide. */
function table(caption, head, rows, className) {
  const cells = head.map((text) =>
    make("th", { scope: "col", class: text.number ? "number" : null }, text.text === undefined ? text : text.text)
  );
  return make(
    "div",
    { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    make(
      "table",
      { class: className },
      make("caption", { class: "heard" }, caption),
      make("thead", null, make("tr", null, cells)),
      make("tbody", null, rows)
    )
  );
}

function right(text) {
  return { text, number: true };
}

function whole(value) {
  return value === null || value === undefined ? UNKNOWN : value.toLocaleString("en-GB", { maximumFractionDigits: 0 });
}

/** Three significant digits. */
function short(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return whole(value);
  return value.toLocaleString("en-GB", { maximumSignificantDigits: 3 });
}

function percent(share) {
  return share === null || share === undefined ? UNKNOWN : `${(100 * share).toFixed(1)} %`;
}

function money(value) {
  if (value === null || value === undefined) return "unknown";
  if (value === 0) return "$0";
  return value < 0.01 ? `$${value.toPrecision(2)}` : `$${value.toFixed(value < 10 ? 4 : 2)}`;
}

/** A sum that may be known for some results only: the known part, and for how many. */
function amount(found, written) {
  if (found.known_for === found.of) return written(found.known);
  if (found.known_for === 0) return "unknown";
  return `unknown; ${written(found.known)} for ${whole(found.known_for)} of ${whole(found.of)}`;
}

function seconds(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (value > 0 && value < 0.001) return `${short(value * 1e6)} µs`;
  if (value < 1) return `${short(value * 1000)} ms`;
  if (value < 119.95) return `${short(value)} s`;
  const whole = Math.round(value);
  return whole < 3600 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

function ofAll(n, all) {
  return `${whole(n)} of ${whole(all)}`;
}

/** Any value as text: a string unchanged, everything else as JSON. */
function plain(value, indent) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, indent || 0);
}

/** An own member of an object from the data; a name such as "constructor" is safe. */
function own(object, name) {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}
