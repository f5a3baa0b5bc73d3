// The numbers of a summary, each with its n of N.

/** Each template and variant of each batch, as one row that tables and plots share. */
function groupsOf(data) {
  return data.batches.flatMap((batch, number) =>
    batch.summary.groups.map((group) => ({ ...group, batch, number, name: groupName(data, number, group.template, group.variant) }))
  );
}

/** The template is left out where all groups have the same. */
function groupName(data, number, template, variant) {
  const groups = data.batches.flatMap((batch) => batch.summary.groups);
  const isKnown = groups.length > 1 && variant && new Set(groups.map((group) => group.template)).size === 1;
  const name = isKnown ? variant : variant ? `${template} × ${variant}` : template;
  return data.batches.length > 1 ? `${data.batches[number].name}: ${name}` : name;
}

function countsText(counts) {
  return VERDICTS.map((name) => `${whole(own(counts, name) || 0)} ${name}`).join(", ");
}

/** Of each group: its verdicts, and the share that passed with its interval. */
function keyFigures(data) {
  const groups = groupsOf(data);
  const rest = groups.map(accuracyRow).some((row) => row.rest);
  const names = groups.some((group) => group.counts.pending) ? [...VERDICTS, "pending"] : VERDICTS;
  const key = (name) => make("span", null, make("i", { class: `key key-${name}` }), name);
  const axis = make("span", { class: "ends" }, make("span", null, "0 %"), make("span", null, "passed, of judged"), make("span", null, "100 %"));
  const columns = [
    nameColumn,
    column("", (group) => countsPlot(group.counts), { className: "drawn" }),
    ...names.map((name) => numeric(key(name), (group) => whole(group.counts[name]))),
    numeric("n of N", (group) => ofAll(group.counts.results, group.counts.total)),
    column(axis, (group) => intervalPlot(group.accuracy.estimate, 0, 1), { className: "drawn" }),
    numeric("share", (group) => make("b", null, percent(group.accuracy.estimate.mean))),
    numeric("95 % interval", (group) => spanText(group.accuracy.estimate, percent)),
    rest && numeric("judged", (group) => ofAll(group.accuracy.judged, group.accuracy.of)),
    rest && numeric("if the rest failed … passed", (group) => accuracyRow(group).rest),
  ];
  return [table({ caption: "Results by verdict, and the share that passed", columns: columns.filter(Boolean), rows: groups }), correctedTable(groups)];
}

/** What is known of each judge: by scorer, with the group's name where there are several. */
function judgesOf(groups, what) {
  return groups.flatMap((group) => Object.entries(group[what] || {}).map(([scorer, found]) => ({ ...found, scorer, name: groups.length > 1 ? `${group.name}: ${scorer}` : scorer })));
}

/** The number of each scorer with labels beside the one that the labels correct. */
function correctedTable(groups) {
  const rows = judgesOf(groups, "calibrations").flatMap((found) => [found, ...Object.entries(found.by).map(([part, share]) => ({ ...share, name: `${found.name}, ${part}` }))]);
  if (!rows.length) return null;
  const axis = make("span", { class: "ends" }, make("span", null, "0 %"), make("span", null, "100 %"));
  const shown = (title, of, count) => [
    column(axis.cloneNode(true), (row) => intervalPlot(row[of], 0, 1), { className: "drawn" }),
    numeric(title, (row) => make("b", null, percent(row[of].mean))),
    numeric("95 % interval", (row) => spanText(row[of], percent)),
    numeric("n of N", count),
  ];
  const columns = [
    nameColumn,
    ...shown("scorer says", "judge", (row) => ofAll(row.of, row.of)),
    ...shown("corrected", "corrected", (row) => ofAll(row.labels, row.of)),
    column("", (row) => row.missing, { className: "remark" }),
  ];
  return [make("h2", null, "Corrected by labels of people"), table({ caption: "Corrected by labels of people", columns, rows })];
}

function notesOf(data) {
  return data.batches.flatMap((batch) => (batch.summary.notes || []).map((each) => notice(each)));
}

function details(data) {
  const groups = groupsOf(data);
  const scorers = [...new Set(groups.flatMap((group) => Object.keys(group.scorers)))];
  return [
    groups.filter((group) => Object.keys(group.by || {}).length).flatMap(byParts),
    scorers.flatMap((scorer) => scorerTable(scorer, groups.filter((group) => Object.hasOwn(group.scorers, scorer)))),
    metricsTable(groups), reducedTable(groups), agreement(groups), measured(groups), stability(groups), costAgainstQuality(groups),
    make("h2", null, "Usage"), used(groups), distributions(data), confusions(groups), errors(groups),
  ];
}

const nameColumn = column("", (row) => row.name, { className: "name" });

function accuracyRow(group) {
  const found = group.accuracy;
  const rest = found.if_failed === null || found.judged === found.of ? "" : `${percent(found.if_failed)} … ${percent(found.if_passed)}`;
  return { name: group.name, estimate: found.estimate, n: found.judged, of: found.of, rest };
}

function accuracies(caption, rows) {
  return estimates(caption, rows, true, rows.some((row) => row.rest) ? "if the rest had failed … passed" : "");
}

/** Means with their intervals, drawn on one axis. `last` is the head of the last column. */
function estimates(caption, rows, asPercent, last) {
  const written = asPercent ? percent : short;
  const [low, high] = domainOf(rows.map((row) => row.estimate));
  const end = (each) => (asPercent ? `${short(100 * each)} %` : short(each));
  const axis = make("span", { class: "ends" }, make("span", null, end(low)), make("span", null, end(high)));
  return table({
    caption,
    columns: [
      nameColumn,
      column(axis, (row) => intervalPlot(row.estimate, low, high), { className: "drawn" }),
      numeric("mean", (row) => make("b", null, written(row.estimate.mean))),
      numeric("95 % interval", (row) => spanText(row.estimate, written)),
      numeric("standard error", (row) => (row.estimate.se === null ? UNKNOWN : `± ${written(row.estimate.se)}`)),
      numeric("n of N", (row) => ofAll(row.n, row.of)),
      column(last || "", (row) => row.rest, { className: "remark" }),
    ],
    rows,
  });
}

function spanText(estimate, written) {
  return typeof estimate.low !== "number" || typeof estimate.high !== "number" ? UNKNOWN : `${written(estimate.low)} to ${written(estimate.high)}`;
}

function byParts(group) {
  const title = `By ${group.batch.summary.group_by}: ${group.name}`;
  const rows = Object.entries(group.by).map(([name, each]) => accuracyRow({ ...each, name }));
  return [make("h3", null, title), accuracies(title, rows)];
}

function scorerTable(scorer, groups) {
  const rows = groups.map((group) => {
    const found = group.scorers[scorer];
    const left = [["errors", found.errors], ["unscored", found.unscored], ["no answer", found.absent], ["not scored yet", found.waiting]].filter(([, count]) => count);
    return { name: group.name, estimate: found.value, n: found.n, of: found.of, rest: left.map(([name, count]) => `${whole(count)} ${name}`).join(", ") };
  });
  return [make("h2", null, `Scorer: ${scorer}`), estimates(`Scorer: ${scorer}`, rows, false)];
}

/** A heading with a table, if it has rows. */
function titled(title, rows, columns, ...rest) {
  return rows.length ? [make("h2", null, title), table({ caption: title, columns: [nameColumn, ...columns], rows }), ...rest] : [];
}

function metricsTable(groups) {
  const rows = groups.flatMap((group) => Object.entries(group.metrics || {}).map(([name, found]) => ({ ...found, name: `${group.name}: ${name}` })));
  return titled("Metrics", rows, [
    numeric("value", (row) => make("b", null, short(row.value))),
    numeric("95 % interval", (row) => spanText(row, short)),
    numeric("standard error", (row) => (typeof row.se === "number" ? `± ${short(row.se)}` : UNKNOWN)),
    numeric("n of N", (row) => ofAll(row.n, row.of)),
    column("", (row) => row.error),
  ]);
}

function reducedTable(groups) {
  const rows = groups.flatMap((group) =>
    group.reduced.map((each) => ({ name: `${group.name}: ${each.reducer} of ${each.scorer || "passed"}`, estimate: each.estimate, n: each.n, of: each.of, rest: "samples" }))
  );
  return rows.length ? [make("h2", null, "Epochs combined"), estimates("Epochs combined", rows, false)] : [];
}

const MEASURES = { cohen_kappa: "Cohen's κ", krippendorff_alpha: "Krippendorff's α" };

/** How far judges agree beyond chance, drawn on the whole range −1 to 1. */
function agreement(groups) {
  const rows = groups.flatMap((group) => (group.agreement || []).map((found) => ({ ...found, name: group.name })));
  const axis = make("span", { class: "ends" }, make("span", null, "−1"), make("span", null, "0"), make("span", null, "1"));
  const columns = [
    column("judges", judgesText),
    column("measure", (row) => own(MEASURES, row.measure) || row.measure),
    column(axis, (row) => intervalPlot({ mean: row.value, low: row.low, high: row.high }, -1, 1), { className: "drawn" }),
    numeric("value", (row) => (row.value === null ? "not defined" : make("b", null, short(row.value)))),
    numeric("95 % interval", (row) => spanText(row, short)),
    numeric("n of N", (row) => ofAll(row.n, row.of)),
    numeric("all the same", (row) => percent(row.same)),
  ];
  return titled(
    "Agreement of judges",
    rows,
    columns,
    remark(
      "Agreement on whether results passed: 1 is perfect, 0 is what chance gives. It is undefined if all ratings are equal. " +
        "α is shown without an interval, and so is κ if its standard error is 0: judges who always agree, or one who always gives the same rating."
    )
  );
}

/** Judges against the labels of people: how often they are right, and what they favour. */
function measured(groups) {
  const judges = judgesOf(groups, "calibrations");
  const rates = [["sensitivity", "passes what people pass (sensitivity)"], ["specificity", "fails what people fail (specificity)"], ["kappa", "Cohen's κ"], ["alpha", "Krippendorff's α"]];
  const rows = judges.flatMap((found) => rates.map(([name, text]) => ({ ...found.rates[name], name: `${found.name}: ${text}`, base: found.corrected.mean, labels: found.labels, results: found.of })));
  const points = (share) => (typeof share === "number" ? `${share < 0 ? "−" : "+"}${short(Math.abs(100 * share))}` : UNKNOWN);
  const biases = judges.flatMap((found) => found.bias.map((bias) => ({ ...bias, name: `${found.name}, by ${bias.by}` })));
  return [
    titled("Judges against labels", rows, [
      numeric("value", (row) => make("b", null, row.mean === undefined ? short(row.value) : percent(row.mean))),
      numeric("95 % interval", (row) => spanText(row, row.mean === undefined ? short : percent)),
      numeric("base rate", (row) => percent(row.base)),
      numeric("n of N", (row) => ofAll(row.labels, row.results)),
    ]),
    titled("Bias of judges", biases, [
      column("answers", (row) => row.a),
      numeric("bias", (row) => points(row.a_bias)),
      column("other answers", (row) => row.b),
      numeric("bias", (row) => points(row.b_bias)),
      numeric("difference", (row) => make("b", null, points(row.difference))),
      numeric("95 % interval", (row) => spanText(row, points)),
      numeric("labels", (row) => `${whole(row.a_labels)} and ${whole(row.b_labels)}`),
    ], remark("In points. A positive difference: the judge favours the first; 0 in the interval: no sign of it.")),
  ];
}

/** How much the verdicts of judges that are asked several times differ. */
function stability(groups) {
  const rows = judgesOf(groups, "stability");
  const floor = (row) => (typeof row.noise_floor === "number" ? `± ${short(100 * row.noise_floor)} points` : UNKNOWN);
  return titled("Stability of verdicts", rows, [
    numeric("n of N", (row) => ofAll(row.n, row.of)),
    numeric("asked", (row) => whole(row.judges)),
    numeric("flips", (row) => make("b", null, percent(row.flips))),
    numeric("same model again", (row) => percent(row.flips_again)),
    numeric("other model", (row) => percent(row.flips_model)),
    numeric("swapped", (row) => percent(row.flips_order)),
    ...["rows", "model", "judge"].map((part) => numeric(`variance: ${part}`, (row) => short(row.variance[part]))),
    numeric("would change", (row) => percent(row.verdict_flips)),
    numeric("noise floor", floor),
  ], remark("Flips are shares of pairs of verdicts on one answer that differ. A difference of shares below the noise floor may come from the judge alone."));
}

function judgesText(found) {
  const names = found.judges.length === 2 ? found.judges.join(" and ") : `all ${found.judges.length}: ${found.judges.join(", ")}`;
  return found.votes_of === null ? names : `${found.votes_of}: ${names}`;
}

function costAgainstQuality(groups) {
  const costed = groups.filter((group) => group.spending.cost_usd.known_for && group.accuracy.estimate.mean !== null);
  if (!costed.some((group) => group.spending.cost_usd.known > 0)) return [];
  const points = costed.map((group) => ({
    name: group.name,
    x: group.spending.cost_usd.known / group.spending.cost_usd.known_for,
    y: group.accuracy.estimate.mean,
    low: group.accuracy.estimate.low,
    high: group.accuracy.estimate.high,
    known: ofAll(group.spending.cost_usd.known_for, group.spending.cost_usd.of),
  }));
  const columns = [
    column("", (point) => point.name),
    numeric("point", (point) => points.indexOf(point) + 1),
    numeric("mean cost", (point) => money(point.x)),
    numeric("passed", (point) => percent(point.y)),
    numeric("cost known for", (point) => point.known),
  ];
  const unknown = groups.length - costed.length;
  return [
    make("h2", null, "Cost and quality"),
    make("div", { class: "beside" }, make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Plot of cost and quality" }, scatterPlot(points)), table({ caption: "Cost and quality", columns, rows: points })),
    unknown ? remark(`${ofAll(unknown, groups.length)} ${unknown === 1 ? "is" : "are"} not shown, as cost or share is unknown.`) : null,
  ];
}

function used(groups) {
  return table({
    caption: "Usage",
    columns: [
      nameColumn,
      numeric("cost", (group) => spent(group.spending, "cost_usd", money)),
      numeric("scoring", (group) => spent(group.spending, "scoring_cost_usd", money)),
      numeric("tokens in", (group) => spent(group.spending, "input_tokens", whole)),
      numeric("tokens out", (group) => spent(group.spending, "output_tokens", whole)),
      numeric("saved by prompt caches", (group) => amount(group.spending.cache_saved_usd, money)),
      numeric("from the cache", (group) => whole(group.spending.cached_calls)),
      ...(groups.some((group) => group.spending.interrupted_calls > 0) ? [numeric("interrupted calls", (group) => whole(group.spending.interrupted_calls))] : []),
      ...["p50", "p90", "p99"].map((name) => numeric(`${name} time`, (group) => seconds(group.duration_s[name]))),
    ],
    rows: groups,
  });
}

function distributions(data) {
  const titles = { duration_s: "Task duration in seconds", input_tokens: "Input tokens", output_tokens: "Output tokens" };
  return data.distributions.flatMap((each) => {
    const written = each.quantity === "duration_s" ? seconds : short;
    const most = Math.max(...each.groups.flatMap((group) => group.counts));
    const figures = each.groups.map((group) => {
      const name = groupName(data, group.batch, group.template, group.variant);
      return make(
        "figure",
        null,
        make("figcaption", null, name, " ", make("span", { class: "quiet" }, ofAll(group.n, group.of))),
        histogramPlot(group.counts, each.edges, most, written),
        histogramTable(name, group.counts, each.edges, written)
      );
    });
    return [make("h2", null, titles[each.quantity]), make("div", { class: "figures" }, figures)];
  });
}

/** The same numbers for screen readers. */
function histogramTable(name, counts, edges, written) {
  const rows = counts.flatMap((count, place) => (count ? [make("tr", null, make("th", { scope: "row" }, binText(edges, place, written)), make("td", null, whole(count)))] : []));
  return make("div", { class: "heard" }, make("table", null, make("caption", null, name), make("tbody", null, rows)));
}

function confusions(groups) {
  const tables = groups.flatMap((group) =>
    Object.entries(group.confusion || {}).map(([scorer, found]) => {
      const title = `${group.name}, ${scorer}`;
      const most = Math.max(1, ...found.counts.flat());
      const shaded = (count, isHit) => {
        const cell = make("span", { class: isHit ? "shade hit" : "shade" }, whole(count));
        cell.style.setProperty("--share", `${Math.round((count / most) * 60)}%`);
        return cell;
      };
      const columns = [
        column("target \\ answer", (row) => found.targets[row]),
        ...found.answers.map((answer, place) => numeric(answer, (row) => shaded(found.counts[row][place], answer === found.targets[row]))),
        numeric("no answer", (row) => whole(found.no_answer[row])),
        numeric("n", (row) => whole(found.counts[row].reduce((a, b) => a + b, 0) + found.no_answer[row])),
      ];
      return make(
        "div",
        { class: "one" },
        make("h3", null, title),
        table({ caption: title, columns, rows: found.targets.map((_, row) => row), className: "confusion" }),
        remark(`${ofAll(found.of, group.counts.results, "result")} ${found.of === 1 ? "has" : "have"} a target that is a label.`)
      );
    })
  );
  return tables.length ? [make("h2", null, "Targets and answers"), make("div", { class: "several" }, tables)] : [];
}

function errors(groups) {
  const rows = groups.flatMap((group) => group.errors.map((error) => ({ ...error, name: group.name, of: group.counts.results })));
  return titled("Errors by kind", rows, [
    column("kind", (error) => make("code", null, error.kind)),
    numeric("n of N", (error) => ofAll(error.count, error.of)),
    column("example", (error) => error.example),
  ]);
}
