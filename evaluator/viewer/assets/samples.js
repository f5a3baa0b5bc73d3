// The table of samples: a row for each result, or a row for each sample with a column for each template, variant, batch.

const PAGE = 100;
const MARKS = { passed: "✓", failed: "✗", error: "!", unscored: "–" };
const RANK = { error: 0, failed: 1, unscored: 2, passed: 3 };
const PREVIEW = 300;

function showSamples(data) {
  const samples = samplesOf(data);
  const state = { filter: emptyFilter(), sort: "place", down: false, page: 0, beside: false, found: [], rows: [] };
  const groups = data.batches.flatMap((batch, number) =>
    batch.groups.map(([template, variant], group) => ({ batch: number, group, name: groupName(data, number, template, variant) }))
  );
  const view = {
    data, samples, state, groups,
    scorers: [...new Set(samples.flatMap((sample) => Object.keys(sample.scores)))].slice(0, 6),
    count: make("p", { class: "count", role: "status" }),
    box: make("div", { class: "wide samples", role: "region", "aria-label": "Samples", tabindex: "0" }),
    pages: make("nav", { class: "pages", "aria-label": "Pages of samples" }),
  };
  const again = () => {
    state.page = 0;
    update(view);
  };
  fill(byId("samples"), null, [
    make("h2", null, "Samples"),
    leftOut(data),
    controls(data, samples, state.filter, again, groups.length > 1 ? besideSwitch(state, again) : null),
    view.count,
    view.box,
    view.pages,
  ]);
  update(view);
}

function leftOut(data) {
  const shown = data.samples.reduce((sum, list) => sum + list.length, 0);
  const total = data.batches.reduce((sum, batch) => sum + batch.total, 0);
  if (shown === total) return null;
  return make(
    "p",
    { class: "notice" },
    `This page shows ${ofAll(shown, total)} results: errors first, then failed, unscored and passed ones. The numbers above include all results.`
  );
}

function besideSwitch(state, again) {
  const toggle = (event) => {
    state.beside = event.target.value;
    again();
  };
  return make("select", { "aria-label": "arrangement", id: "arrangement", change: toggle }, [
    option("", "a row a result"), option("all", "side by side"), option("differ", "where verdicts differ"),
  ]);
}

function update(view) {
  const { state } = view;
  const words = state.filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  state.found = view.samples.filter((sample) => fits(sample, state.filter, words));
  state.rows = state.beside ? besideRows(state) : sorted(state);
  const last = Math.max(0, Math.ceil(state.rows.length / PAGE) - 1);
  state.page = Math.min(state.page, last);
  const what = state.beside ? "samples" : "results";
  view.count.textContent = state.beside
    ? `${whole(state.rows.length)} ${what}, of ${ofAll(state.found.length, view.samples.length)} results`
    : `${ofAll(state.rows.length, view.samples.length)} ${what}`;
  const rows = state.rows.slice(state.page * PAGE, (state.page + 1) * PAGE);
  view.box.replaceChildren(state.beside ? besideTable(view, rows) : resultTable(view, rows));
  view.pages.replaceChildren(...pageButtons(view, last));
}

function keyOf(sample, sort) {
  switch (sort) {
    case "place":
      return sample.place;
    case "verdict":
      return RANK[sample.verdict];
    case "cost":
      return sample.usage.cost_usd === undefined ? 0 : sample.usage.cost_usd;
    case "tokens":
      return sample.usage.output_tokens === undefined ? 0 : sample.usage.output_tokens;
    default:
      return sort.startsWith("score:") ? (own(sample.scores, sort.slice(6)) || {}).value : sample[sort];
  }
}

/** Unknown values come last in either sort order. */
function sorted(state) {
  const keyed = state.found.map((sample) => [keyOf(sample, state.sort), sample]);
  const sign = state.down ? -1 : 1;
  const missing = (key) => key === null || key === undefined;
  keyed.sort(([a, first], [b, second]) => {
    if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b)) || first.place - second.place;
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    return sign * order || first.place - second.place || first.epoch - second.epoch;
  });
  return keyed.map(([, sample]) => sample);
}

function resultTable(view, rows) {
  const { state, data, scorers } = view;
  const several = {
    batch: data.batches.length > 1,
    template: new Set(view.samples.map((sample) => sample.template)).size > 1,
    variant: new Set(view.samples.map((sample) => sample.variant)).size > 1,
    epoch: view.samples.some((sample) => sample.epoch > 1),
  };
  const columns = [
    ["verdict", "verdict", (sample) => verdictCell(sample)],
    ["id", "sample", (sample) => opener(view, sample, sample.title), "id"],
    several.epoch && ["epoch", "epoch", (sample) => whole(sample.epoch), "number"],
    several.batch && ["batch", "batch", (sample) => data.batches[sample.batch].name, "extra"],
    several.template && ["template", "template", (sample) => sample.template, "extra"],
    several.variant && ["variant", "variant", (sample) => sample.variant, "extra"],
    [null, "target", (sample) => preview(sample.target), "text extra"],
    [null, "answer or error", (sample) => preview(sample.failure ? `${sample.failure.kind}: ${sample.failure.message}` : sample.content), "text long"],
    ...scorers.map((name) => [`score:${name}`, name, (sample) => scoreText(sample, name), "number"]),
    ["duration_s", "time", (sample) => seconds(sample.duration_s), "number extra"],
    ["tokens", "tokens out", (sample) => whole(keyOf(sample, "tokens")), "number extra"],
    ["cost", "cost", (sample) => money(keyOf(sample, "cost")), "number extra"],
  ].filter(Boolean);
  const head = columns.map(([sort, title, , kind]) => {
    const direction = state.sort !== sort ? null : state.down ? "descending" : "ascending";
    const arrow = direction ? (state.down ? " ↓" : " ↑") : "";
    const content = sort ? make("button", { type: "button", class: "sort", "data-sort": sort, click: () => sortBy(view, sort) }, title + arrow) : title;
    return make("th", { scope: "col", class: kind, "aria-sort": direction }, content);
  });
  const body = rows.map((sample) =>
    make("tr", null, columns.map(([, , write, kind]) => make("td", { class: kind }, write(sample))))
  );
  return sampleTable(head, body, view);
}

function sampleTable(head, body, view) {
  const shown = body.length ? body : [make("tr", null, make("td", { colspan: head.length, class: "quiet" }, "No matching samples."))];
  return make(
    "table",
    { "aria-rowcount": view.state.rows.length },
    make("caption", { class: "heard" }, "Samples"),
    make("thead", null, make("tr", null, head)),
    make("tbody", null, shown)
  );
}

function sortBy(view, sort) {
  view.state.down = view.state.sort === sort ? !view.state.down : false;
  view.state.sort = sort;
  view.state.page = 0;
  update(view);
  const button = [...view.box.querySelectorAll("button.sort")].find((each) => each.dataset.sort === sort);
  if (button) button.focus();
}

function verdictCell(sample) {
  return make("span", { class: `verdict verdict-${sample.verdict}` }, make("span", { "aria-hidden": "true" }, `${MARKS[sample.verdict]} `), sample.verdict);
}

function opener(view, sample, text) {
  return make("button", { type: "button", class: "open", click: () => openDetail(view, sample) }, text === "" ? "(empty)" : text);
}

function preview(value) {
  const text = plain(value);
  return make("span", { class: "clamped" }, text.length > PREVIEW ? `${text.slice(0, PREVIEW)}…` : text);
}

function scoreText(sample, name) {
  const score = own(sample.scores, name);
  if (score === undefined) return "";
  return score.error !== undefined ? "error" : short(score.value);
}

/** A row for each sample and epoch, with the result of each group. */
function besideRows(state) {
  const rows = new Map();
  for (const sample of state.found) {
    const key = JSON.stringify([sample.id, sample.epoch]);
    if (!rows.has(key)) rows.set(key, { title: sample.title, epoch: sample.epoch, place: sample.place, cells: new Map() });
    rows.get(key).cells.set(`${sample.batch}/${sample.group}`, sample);
  }
  const found = [...rows.values()].sort((a, b) => a.place - b.place || a.epoch - b.epoch);
  if (state.beside !== "differ") return found;
  return found.filter((row) => new Set([...row.cells.values()].map((sample) => sample.verdict)).size > 1);
}

function besideTable(view, rows) {
  const head = ["sample", "epoch", "target", ...view.groups.map((group) => group.name)].map((title) => make("th", { scope: "col" }, title));
  const body = rows.map((row) => {
    const first = row.cells.values().next().value;
    return make(
      "tr",
      null,
      make("th", { scope: "row", class: "id" }, row.title),
      make("td", { class: "number" }, whole(row.epoch)),
      make("td", { class: "text" }, preview(first.target)),
      view.groups.map((group) => {
        const sample = row.cells.get(`${group.batch}/${group.group}`);
        if (!sample) return make("td", { class: "quiet" }, UNKNOWN);
        const text = sample.failure ? sample.failure.kind : sample.content;
        return make("td", { class: "text" }, opener(view, sample, verdictCell(sample)), make("div", { class: "under" }, preview(text)));
      })
    );
  });
  return sampleTable(head, body, view);
}

function pageButtons(view, last) {
  if (!last) return [];
  const { state } = view;
  const go = (page) => () => {
    state.page = Math.max(0, Math.min(last, page));
    update(view);
    view.box.scrollIntoView({ block: "nearest" });
  };
  const from = state.page * PAGE + 1;
  const to = Math.min(state.rows.length, from + PAGE - 1);
  return [
    make("button", { type: "button", click: go(0), disabled: state.page === 0, "aria-label": "first page" }, "«"),
    make("button", { type: "button", click: go(state.page - 1), disabled: state.page === 0, "aria-label": "previous page" }, "‹"),
    make("span", null, `${whole(from)} to ${whole(to)} of ${whole(state.rows.length)}`),
    make("button", { type: "button", click: go(state.page + 1), disabled: state.page === last, "aria-label": "next page" }, "›"),
    make("button", { type: "button", click: go(last), disabled: state.page === last, "aria-label": "last page" }, "»"),
  ];
}
