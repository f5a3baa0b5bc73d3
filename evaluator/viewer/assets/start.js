// The start page and the search.

function startView(data) {
  if (!data.has_anything) {
    return [part("head", data.project, () => [make("h1", null, data.project), make("p", null, "There is nothing to show here yet. ", make("code", null, "evaluator run"), ", ", make("code", null, "evaluator batch"), " and ", make("code", null, "evaluator demo"), " write runs and batches that this page shows.")])];
  }
  const { running, attention } = data;
  return [
    part("head", data.cost, () => [make("h1", null, data.project), remark(costText(data.cost))]),
    part("running", running, () => runningNow(running)),
    part("attention", attention, () => attentionOf(attention)),
    part("batches", [data.batches, data.trends], () => section("Last batches", batchTable(data.batches, { trends: data.trends }), make("p", null, link("/batches", null, "All batches")))),
    part("runs", data.runs, () => section("Last runs", runTable(data.runs), make("p", null, link("/runs", null, "All runs")))),
  ];
}

function costText({ known_usd: known, unknown, count, is_bound: isBound }) {
  if (!count) return "Nothing was run in the last seven days.";
  const rest = unknown ? `; the cost of ${whole(unknown)} is unknown` : "";
  return ["Last seven days: ", make("b", null, atLeast(isBound, money(known))), ` for ${plural(count, "run or batch", "runs and batches")}${rest}`];
}

function runningNow({ batches, runs, tasks }) {
  const shown = [
    ...batches.map((batch) => startItem(badge("running"), link(batch.href, null, batch.name), simulatedBadge(batch.simulated))),
    ...runs.map((run) => startItem(badge("running"), link(run.href, null, `TASK-${run.id}`), run.template)),
    ...tasks.map((task) => startItem(badge(task.status), link(task.href, null, task.id), brief(task.description, 80))),
  ];
  return section("Running now", shown.length ? make("ul", { class: "cards wide-cards" }, shown) : quiet("Nothing runs at the moment."));
}

function startItem(...content) {
  return make("li", { class: "card" }, content.flatMap((each, place) => (place ? [" ", each] : [each])));
}

function attentionOf({ batches, runs, entries, tasks, problems }) {
  const shown = [
    ...entries.map((entry) => make("li", { class: "card" }, badge("blocked"), " ", link(entry.href, null, entry.id), ` ${brief(entry.description, 100)}`, make("p", { class: "reason reason-bad" }, brief(entry.action || entry.reason, 200)))),
    ...tasks.map((task) => make("li", { class: "card" }, badge("pending", "waits for an answer"), " ", link(task.href, null, task.id), ` ${brief(task.description, 100)}`)),
    ...batches.map((batch) => make("li", { class: "card" }, batch.problem ? [badge("unreadable"), ` ${batch.name}`, make("p", { class: "reason reason-bad" }, batch.problem)] : [badge("interrupted", "not finished"), " ", link(batch.href, null, batch.name), make("p", { class: "quiet" }, batch.unfinished), command(batch.resume)])),
    ...runs.map((run) => make("li", { class: "card" }, badge(run.status), " ", link(run.href, null, `TASK-${run.id}`), ` ${run.template || ""}`, make("p", { class: "quiet" }, brief(run.text, 160)), command(run.resume))),
    ...problems.map((each) => make("li", { class: "card" }, badge("unreadable"), ` ${each}`)),
  ];
  return shown.length ? section("Needs you", make("ul", { class: "cards" }, shown)) : null;
}

/** Batches with the share that passed. `trends`: by name, the shares of earlier ones; `last`: more columns. */
function batchTable(batches, { trends = {}, last = [] }) {
  const columns = [
    column("Batch", (batch) => [link(batch.href, null, batch.name), " ", simulatedBadge(batch.simulated)], { className: "name" }),
    column("State", (batch) => (batch.problem ? [badge("unreadable"), make("p", { class: "reason reason-bad" }, batch.problem)] : [badge(batch.state), batch.unfinished && make("div", { class: "under" }, batch.unfinished)]), { className: "state" }),
    column(make("span", { class: "ends" }, make("span", null, "0 %"), make("span", null, "100 %")), (batch) => (batch.groups || []).map((group) => make("div", { class: "drawn", title: group.name }, intervalPlot({ low: null, high: null, mean: null, ...group.estimate }, 0, 1))), { className: "drawn" }),
    numeric("Passed", (batch) => (batch.groups || []).map((group) => make("div", null, typeof group.estimate.mean === "number" ? percent(group.estimate.mean) : UNKNOWN))),
    column("Trend", (batch) => own(trends, batch.title) && trendPlot(trends[batch.title])),
    numeric("Results", (batch) => (typeof batch.total === "number" ? whole(batch.total) : batch.counts && whole(batch.counts.results))),
    column("Template", (batch) => [(batch.templates || []).slice(0, 4).join(", "), batch.cells && batch.cells.length > 1 && make("div", { class: "under" }, batch.cells.slice(0, 6).join(", "))], { className: "name" }),
    column("Created", (batch) => batch.created, { className: "measure" }),
    ...last,
  ];
  const hasTrend = batches.some((batch) => own(trends, batch.title));
  return table({ caption: "Batches", columns: hasTrend ? columns : columns.filter((each) => each.title !== "Trend"), rows: batches, empty: "There are no batches here yet.", className: "list" });
}

function runTable(runs) {
  const columns = [
    column("Run", (run) => link(run.href, null, run.id)),
    column("Status", (run) => badge(run.status)),
    column("Template", (run) => run.template, { className: "name" }),
    column("Request or reason", (run) => brief(run.text, 140), { className: "text" }),
    column("Created", (run) => run.created, { className: "measure" }),
    numeric("Time", (run) => (run.duration_s === null ? "" : seconds(run.duration_s))),
    numeric("Tokens", (run) => tokensOf(run.usage)),
    numeric("Cost", (run) => atLeast(run.cost_is_bound, costOf(run.usage))),
    column("Model", (run) => [brief(run.models.filter((model) => model !== "simulated").join(", "), 60), " ", simulatedBadge(run.simulated)], { className: "name" }),
  ];
  return table({ caption: "Runs", columns, rows: runs, empty: "No run fits.", className: "list" });
}

function searchView(data) {
  const hit = (each) => make("li", null, link(each.href, null, each.title), " ", make("span", { class: "quiet" }, brief(each.text, 160)));
  return [
    part("found", data, () => [
      make("h1", null, data.text ? `Search for “${data.text}”` : "Search"),
      !data.text && make("p", null, "Type in the field above: names of batches and templates, texts of samples and runs, entries of queues, background tasks."),
      data.text && !data.groups.length && make("p", null, "Nothing has this text. Samples are searched in the last four batches; open another batch to search in it."),
      data.groups.map((group) => section(group.title, make("ul", null, group.hits.map(hit)), group.more && group.count > group.hits.length && make("p", null, link(group.more, null, `All ${whole(group.count)} of them`)))),
    ]),
  ];
}
