// Texts of models, rows and files: Markdown, JSON and code as they are meant, and always the raw text.

const FOLD_LINES = 40;
const MAX_RICH = 40_000;
const LOOKS_MARKED = /^(#{1,6} |```|~~~|> |\s*([-*+]|\d+[.)]) |\|.*\|)|\*\*\S|`[^`\n]+`|^\s*\$\$/m;

/** A text or any JSON value, rendered, with buttons for its raw text and to copy it. */
function value(it, name = "text") {
  if (it === null || it === undefined) return null;
  const text = plain(it, 2);
  if (text === "") return quiet("empty");
  const shown = rendered(it, text);
  const raw = make("pre", { tabindex: "0", hidden: true }, text);
  const isRich = shown.matches(".json, .markdown");
  const toggle = (event) => {
    raw.hidden = !raw.hidden;
    shown.hidden = !raw.hidden;
    event.target.setAttribute("aria-pressed", String(!raw.hidden));
  };
  const tools = make(
    "div",
    { class: "tools" },
    isRich && make("button", { type: "button", click: toggle, "aria-pressed": "false", "aria-label": `raw ${name}` }, "raw"),
    copyButton(text, name)
  );
  return folded(make("div", { class: "value" }, tools, shown, isRich && raw), text);
}

function rendered(it, text) {
  const parsed = typeof it === "string" ? jsonOf(it) : it;
  if (parsed !== null && typeof parsed === "object") return make("div", { class: "json" }, jsonTree(parsed));
  if (text.length > MAX_RICH) return make("pre", { tabindex: "0" }, text);
  if (!LOOKS_MARKED.test(text)) return make("div", { class: "prose" }, text);
  try {
    return make("div", { class: "markdown" }, blocks(marked.lexer(text)));
  } catch {
    return make("pre", { tabindex: "0" }, text); // nested too deeply
  }
}

function jsonOf(text) {
  // A number of so many digits would be shown as another one.
  if (!/^\s*[[{]/.test(text) || text.length > MAX_RICH || /\d{16}/.test(text)) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** A long text is shown to its fortieth line; a button shows the rest. */
function folded(box, text) {
  let lines = 1;
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) lines++;
  if (lines <= FOLD_LINES && text.length < FOLD_LINES * 110) return box;
  box.classList.add("folded");
  const open = (event) => {
    box.classList.remove("folded");
    event.target.remove();
  };
  return make("div", null, box, make("button", { type: "button", class: "more", click: open }, `Show all ${plural(lines, "line")}`));
}

/** JSON as a tree whose inner objects fold. */
function jsonTree(it, depth = 0) {
  if (it === null || typeof it !== "object") return jsonLeaf(it);
  const entries = Object.entries(it);
  const [open, close] = Array.isArray(it) ? ["[", "]"] : ["{", "}"];
  if (!entries.length) return make("span", null, open + close);
  const lines = entries.map(([key, inner]) =>
    make("li", null, !Array.isArray(it) && [make("span", { class: "json-key" }, key), ": "], jsonTree(inner, depth + 1))
  );
  const list = make("ul", null, lines);
  if (depth === 0) return list;
  const size = plural(entries.length, Array.isArray(it) ? "item" : "field");
  return make("details", { open: depth < 3 && entries.length <= 30 }, make("summary", null, open, make("span", { class: "quiet" }, ` ${size} `), close), list);
}

function jsonLeaf(it) {
  if (typeof it === "string") return make("span", { class: "json-text" }, it);
  return make("span", { class: "json-word" }, String(it));
}

// Markdown is read by marked into tokens, and every token becomes an element here: no text of a
// model is ever parsed as HTML. Links and images are shown with their address and lead nowhere.

function blocks(tokens) {
  return tokens.map(block);
}

function block(token) {
  switch (token.type) {
    case "space":
      return null;
    case "heading":
      return make("p", { class: `md-heading md-heading-${token.depth}` }, inlines(token.tokens));
    case "code":
      return code(token.text, token.lang);
    case "blockquote":
      return make("blockquote", null, blocks(token.tokens));
    case "list":
      return make(token.ordered ? "ol" : "ul", { start: token.ordered ? token.start : null }, token.items.map((item) => make("li", null, item.task && (item.checked ? "☑ " : "☐ "), blocks(item.tokens))));
    case "table":
      return table({
        caption: "table in the text",
        columns: token.header.map((cell, place) => ({ title: inlines(cell.tokens), cell: (row) => inlines(row[place].tokens) })),
        rows: token.rows,
      });
    case "hr":
      return make("hr");
    case "paragraph":
      return make("p", null, inlines(token.tokens));
    case "text":
      return make("span", null, token.tokens ? inlines(token.tokens) : token.text);
    default:
      return make("p", { class: "pre" }, token.raw);
  }
}

function inlines(tokens) {
  return (tokens || []).map((token) => {
    switch (token.type) {
      case "strong":
        return make("strong", null, inlines(token.tokens));
      case "em":
        return make("em", null, inlines(token.tokens));
      case "del":
        return make("s", null, inlines(token.tokens));
      case "codespan":
        return make("code", null, token.text);
      case "br":
        return make("br");
      case "link":
        return [inlines(token.tokens), token.text !== token.href && make("span", { class: "quiet" }, ` (${token.href})`)];
      case "image":
        return make("span", { class: "quiet" }, `[image ${token.text}: ${token.href}]`);
      case "escape":
      case "text":
        return token.tokens ? inlines(token.tokens) : token.text;
      default:
        return token.raw;
    }
  });
}

function code(text, language) {
  const parsed = !language || /^json/i.test(language) ? jsonOf(text) : null;
  if (parsed !== null && typeof parsed === "object") return make("div", { class: "json code" }, jsonTree(parsed));
  return make("pre", { class: "code", tabindex: "0", "aria-label": language ? `code, ${language}` : "code" }, text);
}

// Differences of two texts, by words or by lines where there are very many words.

const MAX_PARTS = 400;

/** The parts of each text as `[text, isChanged]`. */
function differences(a, b) {
  let first = a.match(/\s*\S+|\s+/g) || [];
  let second = b.match(/\s*\S+|\s+/g) || [];
  let start = 0;
  while (start < Math.min(first.length, second.length) && first[start] === second[start]) start++;
  let end = 0;
  while (end < Math.min(first.length, second.length) - start && first.at(-1 - end) === second.at(-1 - end)) end++;
  const head = first.slice(0, start).join("");
  const tail = first.slice(first.length - end).join("");
  first = first.slice(start, first.length - end);
  second = second.slice(start, second.length - end);
  if (Math.max(first.length, second.length) > MAX_PARTS) {
    first = first.join("").match(/[^\n]*\n|[^\n]+/g) || [];
    second = second.join("").match(/[^\n]*\n|[^\n]+/g) || [];
  }
  const inner = Math.max(first.length, second.length) > MAX_PARTS ? [[[first.join(""), true]], [[second.join(""), true]]] : compared(first, second);
  return inner.map((parts) => [[head, false], ...parts, [tail, false]].filter(([text]) => text));
}

/** By the longest common subsequence. */
function compared(a, b) {
  const width = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      const down = longest[(i + 1) * width + j];
      const right = longest[i * width + j + 1];
      longest[i * width + j] = a[i] === b[j] ? longest[(i + 1) * width + j + 1] + 1 : Math.max(down, right);
    }
  }
  const sides = [[], []];
  const add = (side, text, isChanged) => {
    const last = side.at(-1);
    if (last && last[1] === isChanged) last[0] += text;
    else side.push([text, isChanged]);
  };
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      add(sides[0], a[i++], false);
      add(sides[1], b[j++], false);
    } else if (j === b.length || (i < a.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) add(sides[0], a[i++], true);
    else add(sides[1], b[j++], true);
  }
  return sides;
}

/** A text with its changed parts marked: `del` before, `ins` after. Equal parts are plain. */
function markedText(parts, tag) {
  return make("pre", { class: "marked", tabindex: "0" }, parts.map(([text, isChanged]) => (isChanged ? make(tag, null, text) : text)));
}

/** Two texts side by side with their differences. */
function sideBySide(before, after, names) {
  const [first, second] = differences(before, after);
  const side = (parts, tag, name) => make("div", null, name && make("h4", null, name), markedText(parts, tag));
  return make("div", { class: "sides" }, side(first, "del", names && names[0]), side(second, "ins", names && names[1]));
}

/** The answer with what it shares with the target marked as right; nothing where that says little. */
function againstTarget(answer, target) {
  const wanted = plain(target).trim();
  if (!wanted || !answer || answer.trim() === wanted) return null;
  const at = answer.toLowerCase().indexOf(wanted.toLowerCase());
  if (at >= 0 && wanted.length > 1) {
    const end = at + wanted.length;
    return make("pre", { class: "marked", tabindex: "0" }, answer.slice(0, at), make("mark", { class: "right" }, answer.slice(at, end)), answer.slice(end));
  }
  const isLike = wanted.length > 20 && answer.length < 4 * wanted.length;
  return isLike ? sideBySide(wanted, answer, ["Only in the target", "Only in the answer"]) : null;
}
