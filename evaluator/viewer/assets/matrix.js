// The matrix: samples as rows, the answers of each template × variant side by side.
//
// Its JSON comes from the server, or in a report from the results in the page (report.js). What is chosen is in
// the address, so that a link opens exactly this and the browser goes back.

const CHIPS = {
  all: "All", failed: "Failed", error: "Errors", passed: "Passed", unscored: "Unscored",
  mixed: "Mixed", flipped: "Flipped", warned: "Warnings", labelled: "Labelled",
};
const CHIP_HELP = {
  mixed: "results of the row, of different columns or epochs, have different verdicts", flipped: "another column passed where the baseline failed, or the reverse",
  warned: "a result has a warning, such as one about a repair of its answer",
  labelled: "a person has labelled an answer",
};
const RESULT_COLUMNS = { duration: "time", tokens: "tokens", cost: "cost", turns: "turns", warnings: "warnings", length: "length" };

/** The parts of a page that has a matrix. */
function matrixParts(matrix, isSearching) {
  return [
    part("chips", [matrix.chips, matrix.query.chip], () => chipRow(matrix)),
    part("controls", [matrix.cells, matrix.query, matrix.choices, matrix.fields, matrix.columns], () => controls(matrix)),
    part("plot", [matrix.plot, matrix.query.plot], () => plotOf(matrix)),
    part("samples", [matrix.rows, matrix.cells, matrix.query, matrix.groups, matrix.shares, matrix.count, matrix.page, isSearching], () => [
      make("p", { class: "count", role: "status" }, `${ofAll(matrix.count, matrix.total, "row")}${isSearching ? ", more are being searched" : ""}`),
      matrixTable(matrix),
      pager(matrix, addressWith),
    ]),
  ];
}

function chipRow(matrix) {
  const chosen = matrix.query.chip || "all";
  const chips = Object.entries(CHIPS).filter(([key]) => key === "all" || key === chosen || matrix.chips[key]);
  return make(
    "nav",
    { class: "chips", "aria-label": "Rows by verdict" },
    chips.map(([key, title]) =>
      link(addressWith({ chip: key === "all" ? null : key }), { "data-local": true, id: `chip-${key}`, class: "chip", title: CHIP_HELP[key], "aria-current": key === chosen ? "true" : null }, key in RANK && icon(TONES[key][0]), title, " ", make("b", null, whole(matrix.chips[key] || 0)))
    )
  );
}

/** The title of a column or a field. */
function titleOf(key, matrix) {
  if (key === "title") return "sample";
  if (key.startsWith("cell.")) return matrix.cells.find((cell) => `cell.${cell.number}` === key)?.name || key;
  if (/^(input|meta|score)\./.test(key)) return key.slice(key.indexOf(".") + 1);
  return own(RESULT_COLUMNS, key) || key;
}

function allColumns(matrix) {
  return [...matrix.fields, ...matrix.cells.map((cell) => `cell.${cell.number}`), ...matrix.columns, "model"];
}

/** The columns that the address names, else inputs, target and answers. */
function chosenColumns(matrix) {
  const known = allColumns(matrix);
  const named = (matrix.query.cols || "").split(",").map(decodeURIComponent).filter((key) => known.includes(key));
  const shown = named.length ? named : [...known.filter((key) => key.startsWith("input.")).slice(0, 2), ...known.filter((key) => key === "target"), ...known.filter((key) => key.startsWith("cell."))];
  return matrix.query.cell === "" ? shown : shown.filter((key) => !key.startsWith("cell.") || key === `cell.${matrix.query.cell}`);
}

function withColumns(keys) {
  return addressWith({ cols: keys.map(encodeURIComponent).join(","), page: conditions().get("page") });
}

function nested(name) {
  return [...new URLSearchParams(conditions().get(name) || "")];
}

/** The address with one more, or one fewer, pair in a condition that holds several. */
function withPair(name, key, each) {
  const rest = nested(name).filter(([known]) => known !== key);
  return addressWith({ [name]: new URLSearchParams(each === null ? rest : [...rest, [key, each]]).toString() });
}

function controls(matrix) {
  const { query } = matrix;
  const search = (event) => {
    event.preventDefault();
    go({ text: event.target.elements.text.value.trim() });
  };
  const pick = (name) => ({ change: (event) => go({ [name]: event.target.value }) });
  const sorts = ["row", "written", "verdict", ...matrix.fields, ...matrix.columns];
  const cells = matrix.cells.map((cell) => [cell.number, cell.name]);
  const where = matrix.choices.filter((choice) => choice.values.length > 1);
  const plots = [["", "none"], ...matrix.columns.map((key) => [`${key}|`, titleOf(key, matrix)]), ...scatterChoices(matrix)];
  return [
    make(
      "form",
      { class: "controls", submit: search, role: "search", "aria-label": "Filter the rows" },
      make("input", { type: "search", name: "text", id: "filter-text", value: query.text, placeholder: "search in these rows", "aria-label": "search in these rows" }),
      cells.length > 1 && labelled("Column", select("cell", [["", "all"], ...cells], query.cell, pick("cell"))),
      cells.length > 1 && labelled("Baseline", select("base", cells, query.base || 0, pick("base"))),
      where.length > 0 && labelled("Field", fieldSelect(where, matrix)),
      where.length > 0 && labelled("Group by", select("group", [["", "nothing"], ...where.map((each) => [each.key, titleOf(each.key, matrix)])], query.group, pick("group"))),
      labelled("Sort", select("sort", sorts.map((key) => [key === "row" ? "" : key, titleOf(key, matrix)]), query.sort, pick("sort"))),
      make("button", { type: "button", id: "order", click: () => go({ order: query.order ? "" : "down" }), "aria-pressed": String(Boolean(query.order)), "aria-label": "descending" }, query.order ? "↓" : "↑"),
      labelled("Plot", select("plot", plots, query.plot, pick("plot"))),
      columnMenu(matrix)
    ),
    activeConditions(matrix),
  ];
}

function scatterChoices(matrix) {
  const scores = matrix.columns.filter((key) => key.startsWith("score."));
  return scores.flatMap((score) => ["length", "cost", "duration"].map((key) => [`${key}|${score}`, `${titleOf(score, matrix)} against ${titleOf(key, matrix)}`]));
}

/** One list with the values of every field. */
function fieldSelect(where, matrix) {
  const change = (event) => {
    const [key, ...text] = event.target.value.split("=");
    visitLocal(withPair("where", key, text.join("=")));
  };
  const groups = where.map((each) =>
    make("optgroup", { label: titleOf(each.key, matrix) }, each.values.map(([text, count]) => make("option", { value: `${each.key}=${text}` }, `${text || "(empty)"} (${whole(count)})`)))
  );
  return make("select", { id: "choose-field", change }, make("option", { value: "" }, "any"), groups);
}

/** What filters the rows besides the chip, each with a link that removes it. */
function activeConditions(matrix) {
  const range = (text) => text.split(":").map((each) => short(Number(each))).join(" to ");
  const found = [
    ...nested("where").map(([key, text]) => [`${titleOf(key, matrix)} is ${text || "(empty)"}`, withPair("where", key, null)]),
    ...nested("between").map(([key, text]) => [`${titleOf(key, matrix)} ${range(text)}`, withPair("between", key, null)]),
    ...(matrix.query.text ? [[`text “${matrix.query.text}”`, addressWith({ text: null })]] : []),
  ];
  if (!found.length) return null;
  return make("p", { class: "conditions" }, found.map(([text, href]) => link(href, { "data-local": true, class: "chip", "aria-label": `remove the condition ${text}` }, text, " ×")));
}

function columnMenu(matrix) {
  const shown = chosenColumns(matrix);
  const move = (key, by) => {
    const keys = [...shown];
    const at = keys.indexOf(key);
    keys.splice(at, 1);
    keys.splice(Math.max(0, at + by), 0, key);
    visitLocal(withColumns(keys));
  };
  const toggle = (key) => (event) => visitLocal(withColumns(event.target.checked ? [...shown, key] : shown.filter((each) => each !== key)));
  const order = [...shown, ...allColumns(matrix).filter((key) => !shown.includes(key))];
  const items = order.map((key) => {
    const title = titleOf(key, matrix);
    return make(
      "li",
      null,
      make("label", { class: "box" }, make("input", { type: "checkbox", id: `column-${key}`, checked: shown.includes(key), change: toggle(key) }), title),
      shown.includes(key) && [
        make("button", { type: "button", id: `left-${key}`, click: () => move(key, -1), "aria-label": `move ${title} to the left` }, "←"),
        make("button", { type: "button", id: `right-${key}`, click: () => move(key, 1), "aria-label": `move ${title} to the right` }, "→"),
      ]
    );
  });
  return make("details", { id: "columns", class: "menu" }, make("summary", null, "Columns"), make("ul", null, items));
}

function plotOf(matrix) {
  const { plot } = matrix;
  if (!plot) return null;
  if (!plot.n) return quiet("No result of these rows has a value to plot.");
  const chosen = ([across, up]) => {
    const pairsOf = nested("between").filter(([key]) => key !== plot.x && key !== plot.y);
    pairsOf.push([plot.x, across.join(":")]);
    if (up && plot.y) pairsOf.push([plot.y, up.join(":")]);
    go({ between: new URLSearchParams(pairsOf).toString() });
  };
  return brushPlot(plot, [titleOf(plot.x, matrix), plot.y && titleOf(plot.y, matrix)], chosen);
}

function matrixTable(matrix) {
  const columns = [
    column("sample", (row) => sampleLink(row), { className: "id", sort: "row" }),
    ...chosenColumns(matrix).map((key) => ({ ...matrixColumn(key, matrix), label: titleOf(key, matrix) })),
  ];
  const { query } = matrix;
  let last = null;
  const before = (row) => {
    if (!query.group || row.group === last) return null;
    last = row.group;
    return groupRow(row.group, own(matrix.groups, row.group), columns.length);
  };
  return table({
    caption: "Samples",
    className: "matrix",
    columns,
    rows: matrix.rows,
    empty: "No row fits.",
    sorted: { key: query.sort || "row", down: Boolean(query.order) },
    sortHref: (key, isUp) => addressWith({ sort: key === "row" ? "" : key, order: isUp ? "down" : "" }),
    before,
  });
}

function groupRow(name, counts, width) {
  const shares = counts && dotted(plural(counts.rows, "row"), counts.judged > 0 && `${percent(counts.passed / counts.judged)} of ${whole(counts.judged)} judged results passed`);
  return make("tr", { class: "group" }, make("th", { colspan: width, scope: "rowgroup" }, name || "(none)", " ", make("span", { class: "quiet" }, shares)));
}

function resultsOf(row) {
  return Object.values(row.results).flat();
}

/** Several results of a row: the worst first. */
const RANK = { error: 0, failed: 1, unscored: 2, passed: 3 };

function worst(results) {
  return [...results].sort((a, b) => RANK[a.verdict] - RANK[b.verdict])[0];
}

function sampleLink(row) {
  const first = worst(resultsOf(row));
  return first ? link(first.href, first.open, row.title) : row.title;
}

function matrixColumn(key, matrix) {
  const title = titleOf(key, matrix);
  if (key.startsWith("cell.")) {
    const number = key.slice(5);
    const isBase = matrix.cells.length > 1 && number === (matrix.query.base || "0");
    const isSimulated = matrix.cells.find((cell) => String(cell.number) === number)?.simulated;
    const [passed, judged] = (matrix.shares || [])[number] || [];
    const share = judged > 0 && make("div", { class: "under" }, `passed ${ofAll(passed, judged)}`);
    const head = [title, isBase && make("span", { class: "quiet" }, " baseline"), " ", simulatedBadge(isSimulated), share];
    return column(head, (row) => answers(own(row.results, number) || [], isSimulated), { className: "answer" });
  }
  const inRow = (source, name) => column(title, (row) => clamped(own(row[source] || {}, name)), { className: "text", sort: key });
  if (key.startsWith("input.")) return inRow("inputs", key.slice(6));
  if (key.startsWith("meta.")) return inRow("metadata", key.slice(5));
  if (key === "target") return column("target", (row) => clamped(row.target), { className: "text", sort: key });
  const of = { duration: (each) => seconds(each.duration_s), tokens: (each) => tokensOf(each.usage), cost: (each) => costOf(each.usage), turns: (each) => whole(each.usage.turns || 0), warnings: (each) => whole(each.warnings.length), length: (each) => whole(each.content.length), model: (each) => each.model };
  const written = key.startsWith("score.") ? (each) => scoreText(own(each.scores, key.slice(6))) : of[key];
  return numeric(title, (row) => make("span", null, resultsOf(row).map((each) => make("div", null, written(each)))), { sort: key === "model" ? null : key });
}

function scoreText(score) {
  if (score === undefined) return "";
  return score.error !== undefined ? "error" : short(score.value);
}

function clamped(it) {
  const text = plain(it);
  if (!text) return "";
  if (text.length < 160 && !text.includes("\n")) return text;
  return expandable(make("div", { class: "clamped" }, text));
}

/** A text of some lines, which a button shows whole. */
function expandable(box) {
  const toggle = (event) => {
    const isOpen = box.classList.toggle("clamped");
    event.target.textContent = isOpen ? "more" : "less";
    event.target.setAttribute("aria-expanded", String(!isOpen));
  };
  return [box, make("button", { type: "button", class: "more", click: toggle, "aria-expanded": "false" }, "more")];
}

function figuresOf(result) {
  const scores = Object.entries(result.scores).map(([name, score]) => typeof score.value === "number" && `${name} ${scoreText(score)}`);
  return dotted(...scores, result.cached_calls ? "from the cache" : seconds(result.duration_s));
}

/** The results of a cell: the verdict of each epoch, and the answer of the worst. `isMarked`: the column says that it is simulated. */
function answers(results, isMarked) {
  if (!results.length) return make("span", { class: "quiet" }, UNKNOWN);
  const first = worst(results);
  const isQuiet = first.verdict === "passed";
  const text = first.failure ? "" : first.content;
  return [
    make("div", { class: "verdicts" }, results.map((each) => verdictLink(each, results.length > 1)), simulatedBadge(first.simulated && !isMarked), make("span", { class: "under" }, figuresOf(first))),
    !isQuiet && reasonLine(first),
    text ? clamped(text) : null,
  ];
}

function verdictLink(result, isOneOfSeveral) {
  const name = isOneOfSeveral ? make("span", null, make("span", { class: "heard" }, `epoch ${result.epoch}: ${result.verdict}`), make("span", { "aria-hidden": "true" }, result.epoch)) : result.verdict;
  return link(result.href, { class: "verdict", title: isOneOfSeveral ? `epoch ${result.epoch}: ${result.verdict}` : null, ...result.open }, badge(result.verdict, name));
}

/** Why a result did not pass: the first line of the error or of the scorer's explanation. */
function reasonOf(result) {
  if (result.failure) return `${result.failure.kind}: ${result.failure.message}`;
  for (const [name, score] of Object.entries(result.scores)) {
    if (score.error !== undefined) return `${name}: ${score.error}`;
    if (score.passed === false || (result.verdict === "unscored" && typeof score.passed !== "boolean" && score.explanation)) return `${name}: ${score.explanation || (score.answer === undefined ? "failed, without an explanation" : `read ${score.answer}`)}`;
  }
  return result.verdict === "unscored" ? "nothing judged it" : "";
}

function reasonLine(result) {
  const [line] = reasonOf(result).trim().split("\n");
  return line ? make("p", { class: `reason reason-${TONES[result.verdict][1]}` }, brief(line, 200)) : null;
}

/** A batch on the server. */
function batchView(data) {
  return [
    part("head", [data.title, data.progress, stateOf(data)], () => batchHead(data)),
    part("control", data.control && data.control.form, () => controlForm(data)),
    part("commands", data.control && data.control.commands, () => commandsOf(data.control)),
    part("figures", [data.numbers.data, data.progress.state], () => data.numbers.data && make("section", { id: "key-figures" }, keyFigures(data.numbers.data), data.progress.state === "complete" && notesOf(data.numbers.data))),
    part("decision", [data.progress.decision, data.progress.results], () => data.progress.decision && decisionOf(data.progress.decision, data.progress.results)),
    ...matrixParts(data.matrix, data.progress.is_searching && data.progress.unread > 0),
    part("numbers", data.numbers, () => numbersSection(data.numbers)),
  ];
}

function batchHead(data) {
  const { progress } = data;
  const known = progress.total === null ? `${plural(progress.results, "result")} (total unknown)` : ofAll(progress.results, progress.total, "result");
  const read = Math.round(100 * (1 - progress.unread));
  return [
    make("div", { class: "title" }, make("h1", null, data.title), badge(stateOf(data)), simulatedBadge(progress.simulated), notifyButton(data)),
    make("p", { class: "lead" }, make("b", null, known), `: ${countsText(progress.counts)}`),
    progress.total > progress.results && make("progress", { max: progress.total, value: progress.results, "aria-label": "Results of the batch" }),
    remark(dotted(data.name, `cost ${atLeast(progress.cost_is_bound, money(progress.cost))}`, progress.rate !== null && `${short(progress.rate)} results/s`, progress.left_s !== null && `about ${seconds(progress.left_s)} left`, link(data.compare, null, "compare"), link(data.label, null, "label"), link(data.runs, null, "task files"), link("#numbers", null, "numbers"))),
    progress.unfinished && progress.resume && notice(`Not finished: ${progress.unfinished}.`),
    command(progress.resume, "To continue it:"),
    progress.provider_batches.map((each) => remark(each)),
    progress.session && sessionOf(progress.session),
    progress.unread > 0 && make("p", { class: "notice", role: "status" }, `${read} % of the results are ${progress.is_searching ? "searched" : "read"} so far; the others follow by themselves.`),
    progress.problem && alertNote(progress.problem),
  ];
}

const UNITS = { max_cost: ", US$", max_time: ", s" };

/** Commands to the session that runs, or to the next one. */
function controlForm(data) {
  const form = data.control && data.control.form;
  if (data.control && data.control.problem) return alertNote(data.control.problem);
  if (!form) return null;
  const button = (action, text) => make("button", { name: "action", value: action }, text);
  const limits = form.limits.map(([name, limit]) => labelled(name.replace(/_/g, " ") + (own(UNITS, name) || ""), make("input", { id: `limit-${name}`, name: `limit.${name}`, value: limit, size: 8, inputmode: "decimal", placeholder: "none" })));
  const errors = select("error", [["", "any error"], ...form.errors.map((kind) => [kind, kind])], "");
  return [
    form.is_running && make("form", { method: "post", action: data.href, class: "controls" }, make("input", { type: "hidden", name: "token", value: form.token }), form.is_paused ? button("continue", "Continue") : button("pause", "Pause"), button("stop", "Stop after the samples in flight")),
    foldable("commands-menu", form.is_running ? "Limits, retry and skip" : "Limits, retry and skip, for the session that resumes it", [
      confirmed(data.href, form.token, "Change the limits, also for sessions that resume the batch", button("set", "Set limits"), make("div", { class: "controls" }, limits)),
      confirmed(data.href, form.token, "Run the samples again that ended with an error", button("retry", "Retry"), make("div", { class: "controls" }, labelled("Error", errors))),
      confirmed(data.href, form.token, "Leave out a sample that has not begun; it counts as an error", button("skip", "Skip"), make("div", { class: "controls" }, labelled("Sample id", make("input", { id: "skip-sample", name: "sample", size: 16 })))),
    ], false),
  ];
}

function commandsOf(control) {
  if (!control || !control.commands.length) return null;
  const columns = [
    column("Command", (each) => make("code", null, each.text), { className: "name" }),
    column("State", (each) => badge(each.state)),
    column("Message", (each) => each.message, { className: "text" }),
    column("Sent", (each) => each.at, { className: "measure" }),
  ];
  return foldable("commands-sent", plural(control.commands.length, "command"), table({ caption: "Commands", columns, rows: control.commands, className: "list" }), !control.commands.every((each) => each.state === "done"));
}

function sessionOf(session) {
  const columns = [
    column("Model", (each) => [each.name, " ", make("span", { class: "quiet" }, each.host)]),
    numeric("In flight", (each) => whole(each.in_flight)),
    numeric("At most", (each) => (each.limit === null ? "" : whole(each.limit))),
    numeric("Waiting", (each) => whole(each.waiting)),
    column("Held by", (each) => each.why),
  ];
  return [
    session.stop && notice(`The session ends: ${session.stop}`),
    session.endpoints.length > 0 && table({ caption: "Calls by model", columns, rows: session.endpoints }),
    session.budget.length > 0 && remark(`Limits: ${session.budget.join(" · ")}`),
  ];
}

function numbersSection(numbers) {
  if (numbers.error) return alertNote(numbers.error);
  if (!numbers.data) return quiet("The numbers are being computed.");
  return [
    !numbers.is_current && quiet("These numbers are of a moment ago; new ones follow."),
    lazily("all-numbers", "Numbers and plots: scorers, usage, durations, errors", () => make("div", null, details(numbers.data))),
  ];
}
