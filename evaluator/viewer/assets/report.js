// The report: the pages of a batch, a sample and a comparison in one file, with the results in it.
//
// Where the server selects rows, `localMatrix` does the same with the results of the page.

const ROWS_PER_PAGE = 50;
const MAX_CHOICES = 60;
const report = { data: null, rows: [], cells: [] };

function reportView(data) {
  if (report.data !== data) readReport(data);
  const params = conditions();
  const matrix = localMatrix(Object.fromEntries(params));
  const shown = data.samples.reduce((sum, list) => sum + list.length, 0);
  const total = data.batches.reduce((sum, batch) => sum + batch.total, 0);
  queueMicrotask(() => showDetail(params.get("sample"), matrix));
  return [
    part("head", null, () => reportHead(data)),
    part("key-figures", null, () => keyFigures(data)),
    part("decision", null, () => data.batches.map((batch) => batch.summary.decision && decisionOf(batch.summary.decision, null))),
    part("comparison", null, () => (data.comparisons || []).map(reportComparison)),
    part("left-out", null, () => [make("h2", { id: "samples-title" }, "Samples"), shown < total && notice(`This page shows ${ofAll(shown, total)} results: errors first, then failed, unscored and passed ones. The numbers above include all results.`)]),
    ...matrixParts(matrix, false),
    part("summary", null, () => details(data)),
    part("origin", null, () => originOf(data)),
  ];
}

function reportHead(data) {
  return [
    make("div", { class: "title" }, make("h1", null, data.title), simulatedBadge(report.rows.some((row) => resultsOf(row).some((each) => each.simulated)))),
    data.batches.map((batch) => {
      const { counts } = batch.summary;
      return make("p", { class: "lead" }, data.batches.length > 1 && make("b", null, `${batch.name}: `), `${ofAll(counts.results, counts.total, "result")}. ${countsText(counts)}.`);
    }),
    notesOf(data),
  ];
}

function reportComparison(found) {
  const [a, b] = found.names.map((name, side) => `${name}: ${found.cells[side]}`);
  const flips = found.pairs.map((pair) => pairOf(pair));
  return make(
    "section",
    null,
    make("h2", null, `Comparison: a is ${a}, b is ${b}`),
    comparedNumbers({ data: found.numbers }),
    verdictTable(found.matrix),
    flips.length > 0 && foldable(null, `${plural(flips.length, "flipped result")} side by side`, flips, false)
  );
}

function originOf(data) {
  return section(
    "Configuration",
    data.batches.map((batch) => lazily(null, `Manifest of ${batch.name}`, () => make("pre", { tabindex: "0" }, plain(batch.manifest, 2)))),
    remark(`Written ${data.created}. Intervals are those of the summary. n of N: the number is based on n of N results.`)
  );
}

// -- the results -----------------------------------------------------------------------------------------

/** Rows of the matrix from the results in the page: a row for each sample of each name. */
function readReport(data) {
  report.data = data;
  const groups = data.batches.flatMap((batch, number) => batch.groups.map(([template, variant], group) => ({ batch: number, group, template, variant, name: groupName(data, number, template, variant) })));
  report.cells = groups.map((each, number) => ({ ...each, number }));
  const rows = new Map();
  data.samples.forEach((list, batch) => {
    list.forEach((values, place) => {
      const result = {};
      for (let at = 0; at < data.fields.length; at++) result[data.fields[at]] = values[at];
      const cell = report.cells.findIndex((each) => each.batch === batch && each.group === result.cell);
      const number = `${batch}.${place}`;
      Object.assign(result, { number, task_href: result.href, open: { "data-local": true } });
      Object.defineProperty(result, "href", { get: () => addressWith({ sample: number, page: conditions().get("page") }), enumerable: true });
      if (!rows.has(result.id)) rows.set(result.id, { ...pickRow(result), results: {} });
      const { results } = rows.get(result.id);
      (results[cell] = results[cell] || []).push(result);
    });
  });
  report.rows = [...rows.values()].sort((a, b) => a.place - b.place);
  for (const row of report.rows) for (const list of Object.values(row.results)) list.sort((a, b) => a.epoch - b.epoch);
  const names = (source) => [...new Set(report.rows.flatMap((row) => Object.keys(row[source] || {})))];
  report.fields = [...names("inputs").map((name) => `input.${name}`), ...(report.rows.some((row) => row.target !== null) ? ["target"] : []), ...names("metadata").map((name) => `meta.${name}`)].slice(0, 30);
  const scorers = [...new Set(report.rows.flatMap((row) => resultsOf(row).flatMap((each) => Object.keys(each.scores))))];
  report.columns = [...scorers.slice(0, 20).map((name) => `score.${name}`), "duration", "tokens", "cost", "turns", "warnings", "length"];
  report.choices = report.fields.map((key) => ({ key, values: countsOf(report.rows.map((row) => fieldOf(row, key))) })).filter((each) => each.values.length <= MAX_CHOICES);
}

function pickRow({ id, title, place, inputs, target, metadata }) {
  return { id, title, place, inputs, target, metadata };
}

function countsOf(values) {
  const counts = new Map();
  for (const each of values) if (each !== undefined) counts.set(each, (counts.get(each) || 0) + 1);
  return [...counts].sort(([a], [b]) => (a < b ? -1 : 1));
}

/** The text of a row's field, as the server has it; undefined where the row lacks it. */
function fieldOf(row, key) {
  const at = key.indexOf(".");
  const found = key === "target" ? row.target : own({ input: row.inputs, meta: row.metadata }[key.slice(0, at)] || {}, key.slice(at + 1));
  return found === null || found === undefined ? undefined : plain(found).slice(0, 60);
}

/** The number of a result's column; undefined where it is unknown. */
function numberOf(result, key) {
  if (key.startsWith("score.")) return own(result.scores, key.slice(6))?.value;
  const { usage } = result;
  const unknown = usage.input_tokens === null || usage.output_tokens === null;
  return { duration: result.duration_s, tokens: unknown ? undefined : (usage.input_tokens || 0) + (usage.output_tokens || 0), cost: usage.cost_usd === undefined ? 0 : usage.cost_usd, turns: usage.turns || 0, warnings: result.warnings.length, length: result.content.length }[key];
}

// -- what the address selects ----------------------------------------------------------------------------

function localMatrix(query) {
  const { cells, fields, columns, choices } = report;
  const cell = cells.some((each) => String(each.number) === query.cell) ? query.cell : "";
  const base = query.base || "0";
  const inCell = (row) => (cell === "" ? row : { ...row, results: Object.fromEntries(Object.entries(row.results).filter(([number]) => number === cell)) });
  const words = (query.text || "").toLowerCase();
  const where = [...new URLSearchParams(query.where || "")];
  const between = [...new URLSearchParams(query.between || "")].map(([key, text]) => [key, ...text.split(":").map(Number)]);
  const inRange = (each) => between.every(([key, low, high]) => low <= numberOf(each, key) && numberOf(each, key) <= high);
  const all = report.rows.map(inCell).filter((row) => resultsOf(row).length);
  const fitting = all.filter(
    (row) => where.every(([key, text]) => (fieldOf(row, key) ?? "") === text) && (!words || resultsOf(row).some((each) => searched(each).includes(words))) && (!between.length || resultsOf(row).some(inRange))
  );
  const chips = Object.fromEntries(Object.keys(CHIPS).map((chip) => [chip, fitting.filter((row) => hasChip(row, chip, base)).length]));
  const rows = grouped(sortedRows(fitting.filter((row) => hasChip(row, query.chip || "all", base)), query), query.group, fields);
  const pages = Math.max(1, Math.ceil(rows.length / ROWS_PER_PAGE));
  const page = Math.min(Math.max(1, Number(query.page) || 1), pages);
  const names = ["chip", "cell", "base", "text", "where", "between", "sort", "order", "group", "cols", "plot"];
  return {
    cells, fields, columns, choices, chips, page, pages,
    ordered: rows,
    query: { ...Object.fromEntries(names.map((name) => [name, query[name] || ""])), cell },
    rows: rows.slice((page - 1) * ROWS_PER_PAGE, page * ROWS_PER_PAGE),
    groups: query.group ? groupCounts(rows) : {},
    shares: rows.length < report.rows.length ? cells.map(({ number }) => shareOf(rows, number)) : [],
    count: rows.length,
    total: report.rows.length,
    plot: query.plot ? localPlot(rows, query.plot) : null,
  };
}

function hasChip(row, chip, base) {
  const results = resultsOf(row);
  const has = (verdict) => results.some((each) => each.verdict === verdict);
  switch (chip) {
    case "all":
      return true;
    case "mixed":
      return new Set(results.map((each) => each.verdict)).size > 1;
    case "warned":
      return results.some((each) => each.warnings.length);
    case "flipped": {
      const first = own(row.results, base) || [];
      const others = Object.entries(row.results).filter(([number]) => number !== base).flatMap(([, list]) => list);
      const isIn = (list, verdict) => list.some((each) => each.verdict === verdict);
      return (isIn(first, "passed") && isIn(others, "failed")) || (isIn(first, "failed") && isIn(others, "passed"));
    }
    default:
      return has(chip);
  }
}

/** The text that a search looks through; built once, at the first search. */
function searched(result) {
  if (result.searched === undefined) {
    const scores = Object.values(result.scores).map((score) => [score.answer, score.explanation, score.error]);
    const parts = [result.id, result.title, result.inputs, result.target, result.metadata, result.content, result.failure, scores, result.model, result.warnings];
    Object.defineProperty(result, "searched", { value: parts.map((each) => plain(each)).join("\n").toLowerCase(), enumerable: false });
  }
  return result.searched;
}

/** Unknown values come last in either order. */
function sortedRows(rows, { sort, order }) {
  const sign = order === "down" ? -1 : 1;
  const keyOf = (row) => {
    if (!sort || sort === "row" || sort === "written") return row.place;
    if (sort === "verdict") return RANK[worst(resultsOf(row)).verdict];
    if (report.fields.includes(sort)) return fieldOf(row, sort);
    const known = resultsOf(row).map((each) => numberOf(each, sort)).filter((each) => typeof each === "number");
    return known.length ? known.reduce((a, b) => a + b, 0) / known.length : undefined;
  };
  const keyed = rows.map((row) => [keyOf(row), row]);
  keyed.sort(([a, first], [b, second]) => {
    if (a === undefined || b === undefined) return Number(a === undefined) - Number(b === undefined) || first.place - second.place;
    return sign * (a < b ? -1 : a > b ? 1 : 0) || first.place - second.place;
  });
  return keyed.map(([, row]) => row);
}

function grouped(rows, field, fields) {
  if (!fields.includes(field)) return rows;
  const named = rows.map((row) => ({ ...row, group: fieldOf(row, field) ?? "" }));
  return named.sort((a, b) => (a.group < b.group ? -1 : a.group > b.group ? 1 : 0));
}

/** How many of a column's judged results passed. */
function shareOf(rows, number) {
  const verdicts = rows.flatMap((row) => own(row.results, String(number)) || []).map((each) => each.verdict);
  const passed = verdicts.filter((each) => each === "passed").length;
  return [passed, passed + verdicts.filter((each) => each === "failed").length];
}

function groupCounts(rows) {
  const counts = {};
  for (const row of rows) {
    const found = (counts[row.group] = own(counts, row.group) || { rows: 0, passed: 0, judged: 0 });
    found.rows++;
    for (const { verdict } of resultsOf(row)) {
      found.judged += verdict === "passed" || verdict === "failed";
      found.passed += verdict === "passed";
    }
  }
  return counts;
}

const MAX_POINTS = 1_500;
const PLOT_BINS = 24;

function localPlot(rows, name) {
  const [x, y] = name.split("|");
  const known = rows.flatMap(resultsOf).map((each) => [numberOf(each, x), numberOf(each, y || x), each.verdict]).filter(([a, b]) => typeof a === "number" && typeof b === "number");
  if (y) {
    const step = Math.max(1, Math.ceil(known.length / MAX_POINTS));
    return { x, y, n: known.length, points: known.filter((_, place) => place % step === 0) };
  }
  const values = known.map(([each]) => each);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const width = (high - low) / PLOT_BINS || 1;
  const counts = Array(PLOT_BINS).fill(0);
  for (const each of values) counts[Math.min(PLOT_BINS - 1, Math.floor((each - low) / width))]++;
  return { x, y: "", n: values.length, counts, edges: Array.from({ length: PLOT_BINS + 1 }, (_, place) => low + width * place) };
}

// -- one result, in a dialog -----------------------------------------------------------------------------

function showDetail(number, matrix) {
  const dialog = byId("detail") || detailDialog();
  const list = matrix.ordered.flatMap(resultsOf);
  const at = list.findIndex((each) => each.number === number);
  if (!number || at < 0) {
    if (dialog.open) dialog.close();
    return;
  }
  const result = list[at];
  const near = (by, rel, text) => list[at + by] && link(list[at + by].href, { rel, "data-local": true, "aria-label": rel === "next" ? "next result" : "previous result" }, text);
  dialog.replaceChildren(
    make("header", null, near(-1, "prev", "← Previous"), make("span", { class: "count" }, ofAll(at + 1, list.length)), near(1, "next", "Next →"), make("button", { type: "button", autofocus: true, click: () => dialog.close() }, "Close")),
    make("div", null, sampleTitle(result), sampleBody(result, { transcripts: result.transcripts }))
  );
  dialog.scrollTop = 0;
  if (!dialog.open) dialog.showModal();
}

function detailDialog() {
  const dialog = make("dialog", { id: "detail", "aria-labelledby": "sample-title" });
  dialog.addEventListener("close", () => {
    const number = conditions().get("sample");
    if (number) go({ sample: null, page: conditions().get("page") });
  });
  dialog.addEventListener("keydown", (event) => {
    const rel = own(KEYS, event.key);
    const found = rel && !event.target.closest("pre, .wide") && dialog.querySelector(`a[rel="${rel}"]`);
    if (found) found.click();
  });
  document.body.append(dialog);
  return dialog;
}
