// Parts that all pages share: badges, tables, lists of facts, buttons.

const ICONS = {
  tick: "M3 8.6l3.3 3.2L13 4.6",
  cross: "M4 4l8 8M12 4l-8 8",
  triangle: "M8 2L15 14H1z",
  dash: "M4 8h8",
  now: "M8 3a5 5 0 1 1-5 5",
  pause: "M6 4v8M10 4v8",
};
// Word of a verdict or status → its icon and its tone.
const TONES = {
  passed: ["tick", "good"], completed: ["tick", "good"], complete: ["tick", "good"], success: ["tick", "good"], done: ["tick", "good"],
  failed: ["cross", "bad"], blocked: ["cross", "bad"], unreadable: ["cross", "bad"],
  error: ["triangle", "error"],
  aborted: ["pause", "stopped"], interrupted: ["pause", "stopped"], stopped: ["pause", "stopped"], killed: ["pause", "stopped"], paused: ["pause", "stopped"],
  refused: ["cross", "bad"], accepted: ["now", "now"], sent: ["dash", "none"],
  undecided: ["dash", "none"], better: ["tick", "good"], worse: ["cross", "bad"], tie: ["dash", "none"],
  running: ["now", "now"], pending: ["dash", "none"], unscored: ["dash", "none"], skipped: ["dash", "none"],
};

function icon(name) {
  const inner = name === "triangle" ? [makeSvg("path", { d: ICONS.triangle, class: "solid" }), makeSvg("path", { d: "M8 6.5v3.4M8 11.9v.4", class: "hollow" })] : makeSvg("path", { d: ICONS[name] });
  return makeSvg("svg", { class: `icon icon-${name}`, viewBox: "0 0 16 16", "aria-hidden": "true" }, inner);
}

/** A verdict or a status: its shape, its colour and its word. */
function badge(word, shown) {
  const [shape, tone] = own(TONES, word) || ["dash", "none"];
  return make("span", { class: `badge badge-${tone}` }, icon(shape), shown === undefined ? word : shown);
}

function simulatedBadge(isSimulated) {
  return isSimulated && make("span", { class: "badge simulated", title: "A simulated model answered; no provider was asked." }, "simulated");
}

function quiet(...children) {
  return make("p", { class: "quiet" }, children);
}

function remark(...children) {
  const shown = children.flat(Infinity).filter(Boolean);
  return shown.length ? make("p", { class: "remark" }, shown) : null;
}

/** The parts that there are, with dots between them. */
function dotted(...parts) {
  return parts.filter((each) => each !== null && each !== undefined && each !== false && each !== "").flatMap((each, place) => (place ? [" · ", each] : [each]));
}

function notice(...children) {
  return make("p", { class: "notice", role: "note" }, children);
}

function alertNote(...children) {
  return make("p", { class: "notice", role: "alert" }, children);
}

function copyButton(text, name) {
  const copy = async (event) => {
    try {
      await navigator.clipboard.writeText(visible(text));
      announce(`Copied ${name}.`);
    } catch {
      announce("The browser does not allow copying; select the text instead.");
    }
    event.target.focus();
  };
  return make("button", { type: "button", class: "copy", click: copy, "aria-label": `copy ${name}` }, "copy");
}

/** A command with what it is for, and a button to copy it. */
function command(text, what) {
  return text ? make("p", { class: "command" }, what && `${what} `, make("code", null, text), " ", copyButton(text, "the command")) : null;
}

function section(title, ...content) {
  const shown = content.flat(Infinity).filter(Boolean);
  return shown.length ? make("section", null, make("h2", null, title), shown) : null;
}

function foldable(id, title, content, isOpen) {
  return make("details", { id, open: isOpen }, make("summary", null, title), content);
}

/** A details element whose content is made when it is first opened. */
function lazily(id, title, draw) {
  const box = make("details", { id }, make("summary", null, title));
  box.addEventListener("toggle", () => box.open && box.children.length === 1 && fill(box, null, [draw()]));
  return box;
}

/** Names and values as a list. */
function pairs(values, name) {
  const entries = Object.entries(values || {});
  if (!entries.length) return quiet("none");
  return make("dl", { class: "pairs" }, entries.map(([key, each]) => [make("dt", null, key), make("dd", null, value(each, `${name || "value"} ${key}`))]));
}

/** Short facts beside each other. */
function facts(entries) {
  const known = entries.filter((each) => each && each[1] !== null && each[1] !== undefined && each[1] !== "");
  return make("dl", { class: "facts" }, known.map(([name, each]) => make("div", null, make("dt", null, name), make("dd", null, each))));
}

/**
 * A table. `columns`: {title, cell(row), number, className, sort, label}; the first is the row's header, `label`
 * stands before a cell on a phone. `rowOf` gives attributes of a row, `before` a row to put before it. In a box
 * that scrolls sideways.
 */
function table({ caption, columns, rows, empty, className, sorted, sortHref, rowOf, before, label }) {
  const head = columns.map(({ title, number, sort, className: kind }) => {
    const direction = sort && sorted && sorted.key === sort ? (sorted.down ? "descending" : "ascending") : null;
    const arrow = direction && (direction === "descending" ? " ↓" : " ↑");
    const content = sort && sortHref ? link(sortHref(sort, direction === "ascending"), { "data-local": true, class: "sort", id: `sort-${sort}` }, title, arrow) : title;
    return make("th", { scope: "col", class: [kind, number && "number"].filter(Boolean).join(" ") || null, "aria-sort": direction }, content);
  });
  const body = rows.flatMap((row, place) => [
    before && before(row, place),
    make("tr", rowOf ? rowOf(row) : null, columns.map((column, at) => cellOf(column, row, at === 0))),
  ]);
  if (!rows.length) body.push(make("tr", null, make("td", { colspan: columns.length, class: "quiet" }, empty || "There are none.")));
  const shown = make("table", { class: className }, make("caption", { class: "heard" }, caption), make("thead", null, make("tr", null, head)), make("tbody", null, body));
  const box = make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label || caption }, shown);
  if (className === "matrix") FITTING.observe(box);
  return box;
}

// The head of a table that need not scroll sideways stays in sight.
const FITTING = new ResizeObserver((changes) => changes.forEach(({ target }) => target.classList.toggle("fits", target.scrollWidth <= target.clientWidth)));

function cellOf(column, row, isHeader) {
  const kind = [column.className, column.number && "number"].filter(Boolean).join(" ") || null;
  const title = typeof column.label === "string" ? column.label : null;
  return make(isHeader ? "th" : "td", { scope: isHeader ? "row" : null, class: kind, "data-title": title }, column.cell(row));
}

function column(title, cell, options) {
  return { title, cell, ...options };
}

function numeric(title, cell, options) {
  return { title, cell, number: true, ...options };
}

/** A table of texts, as the commands print them. */
function textTable({ title, head, rows, lines }) {
  const shown = rows.slice(0, 200);
  return [
    make("h3", null, title),
    lines.map((line) => make("p", null, line)),
    rows.length > 0 && table({ caption: title, columns: head.map((name, place) => ({ title: name, number: place > 0, cell: (row) => row[place] })), rows: shown }),
    rows.length > shown.length && notice(`The first ${ofAll(shown.length, rows.length)} rows.`),
  ];
}

/** Links to the previous and the next page. */
function pager({ page, pages }, href) {
  if (pages <= 1) return null;
  return make(
    "nav",
    { class: "pages", "aria-label": "Pages" },
    page > 1 && link(href({ page: page - 1 }), { rel: "prev", "data-local": true }, "← Previous"),
    make("label", null, "page ", make("input", { type: "number", class: "page-number", min: 1, max: pages, value: page, change: (event) => visitLocal(href({ page: event.target.value })) }), ` of ${whole(pages)}`),
    page < pages && link(href({ page: page + 1 }), { rel: "next", "data-local": true }, "Next →")
  );
}

function labelled(text, control) {
  return make("label", null, make("span", null, text), control);
}

function select(name, choices, chosen, attributes) {
  const options = choices.map(([key, text]) => make("option", { value: key, selected: String(key) === String(chosen) }, text));
  return make("select", { name, id: `choose-${name}`, ...attributes }, options);
}

/** The form that an action on the server needs: its token, and a confirmation. */
function confirmed(href, token, sentence, button, extra) {
  return make(
    "form",
    { method: "post", action: href },
    make("input", { type: "hidden", name: "token", value: token }),
    extra,
    make("p", { class: "controls" }, make("label", { class: "box" }, make("input", { type: "checkbox", name: "confirm", value: "yes" }), sentence), " ", button)
  );
}

/** Lines of a file with one or more places marked. */
function fileLines(lines, label) {
  return make(
    "pre",
    { class: "lines", tabindex: "0", "aria-label": label },
    lines.map((line) => make("span", { class: line.is_place ? "place" : null }, `${String(line.number).padStart(5)}  ${line.text}\n`))
  );
}

function findingOf(finding) {
  return make(
    "div",
    { class: "finding" },
    make("p", null, finding.message, finding.place && [" ", make("code", null, finding.place)]),
    finding.hint && remark(finding.hint),
    finding.lines.length > 0 && fileLines(finding.lines, finding.place)
  );
}
