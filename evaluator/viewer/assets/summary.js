// The numbers of a summary, each with its n of N.

/** Each template and variant of each batch, as one row that tables and plots share. */
function groupsOf(data) {
  return data.batches.flatMap((batch, number) =>
    batch.summary.groups.map((group) => ({ ...group, batch, number, name: groupName(data, number, group.template, group.variant) }))
  );
}

function groupName(data, number, template, variant) {
  const name = variant ? `${template} × ${variant}` : template;
  return data.batches.length > 1 ? `${data.batches[number].name}: ${name}` : name;
}

function showHeader(data) {
  byId("top").append(
    make("h1", null, data.title),
    ...data.batches.map((batch) => {
      const counts = batch.summary.counts;
      const words = VERDICTS.map((name) => `${whole(counts[name])} ${name}`).join(", ");
      const name = data.batches.length > 1 ? make("b", null, `${batch.name}: `) : null;
      return make("p", { class: "lead" }, name, `${ofAll(counts.results, counts.total)} results. ${words}.`);
    }),
    ...data.batches.flatMap((batch) => (batch.summary.notes || []).map((note) => make("p", { class: "notice" }, note)))
  );
}

function showSummary(data) {
  fill(byId("summary"), null, [...keyFigures(data), ...details(data)]);
}

function keyFigures(data) {
  const groups = groupsOf(data);
  return [
    make("h2", null, "Outcomes"),
    outcomes(groups),
    make("h2", null, "Passed, of judged results"),
    accuracies("Passed, of judged results", groups.map(accuracyRow)),
  ];
}

function details(data) {
  const groups = groupsOf(data);
  const scorers = [...new Set(groups.flatMap((group) => Object.keys(group.scorers)))];
  return [
    ...byParts(groups),
    ...scorers.flatMap((scorer) => scorerTable(scorer, groups.filter((group) => Object.hasOwn(group.scorers, scorer)))),
    ...metricsTable(groups),
    ...reducedTable(groups),
    ...agreement(groups),
    ...costAgainstQuality(groups),
    make("h2", null, "Usage"),
    used(groups),
    ...distributions(data),
    ...confusions(groups),
    ...errors(data, groups),
  ];
}

function outcomes(groups) {
  const isOpen = groups.some((group) => group.counts.pending !== null);
  const names = isOpen ? [...VERDICTS, "pending"] : VERDICTS;
  const rows = groups.map((group) =>
    make(
      "tr",
      null,
      make("th", { scope: "row" }, group.name),
      make("td", { class: "drawn" }, countsPlot(group.counts)),
      names.map((name) => make("td", { class: "number" }, whole(group.counts[name]))),
      make("td", { class: "number" }, ofAll(group.counts.results, group.counts.total))
    )
  );
  const head = names.map((name) => right(make("span", null, make("i", { class: `key key-${name}` }), name)));
  return table("Results by verdict", ["", "", ...head, right("n of N")], rows);
}

function accuracyRow(group) {
  const found = group.accuracy;
  const rest = found.if_failed === null || found.judged === found.of ? "" : `${percent(found.if_failed)} … ${percent(found.if_passed)}`;
  return { name: group.name, estimate: found.estimate, n: found.judged, of: found.of, rest };
}

function accuracies(caption, rows) {
  return estimates(caption, rows, true, rows.some((row) => row.rest) ? "if the rest had failed … passed" : "");
}

/** Means with their intervals, drawn on one axis. `remark` is the head of the last column. */
function estimates(caption, rows, asPercent, remark) {
  const written = asPercent ? percent : short;
  const [low, high] = domainOf(rows.map((row) => row.estimate));
  const axis = make("span", { class: "ends" }, make("span", null, endText(low, asPercent)), make("span", null, endText(high, asPercent)));
  const body = rows.map((row) =>
    make(
      "tr",
      null,
      make("th", { scope: "row" }, row.name),
      make("td", { class: "drawn" }, intervalPlot(row.estimate, low, high)),
      make("td", { class: "number strong" }, written(row.estimate.mean)),
      make("td", { class: "number" }, spanText(row.estimate, written)),
      make("td", { class: "number" }, row.estimate.se === null ? UNKNOWN : `± ${written(row.estimate.se)}`),
      make("td", { class: "number" }, ofAll(row.n, row.of)),
      make("td", { class: "remark" }, row.rest || "")
    )
  );
  return table(caption, ["", axis, right("mean"), right("95 % interval"), right("standard error"), right("n of N"), remark || ""], body);
}

function endText(value, asPercent) {
  return asPercent ? `${short(100 * value)} %` : short(value);
}

function spanText(estimate, written) {
  return estimate.low === null || estimate.high === null ? UNKNOWN : `${written(estimate.low)} to ${written(estimate.high)}`;
}

function byParts(groups) {
  return groups
    .filter((group) => Object.keys(group.by || {}).length)
    .flatMap((group) => {
      const title = `By ${group.batch.summary.group_by}: ${group.name}`;
      const rows = Object.entries(group.by).map(([name, part]) => accuracyRow({ ...part, name }));
      return [make("h3", null, title), accuracies(title, rows)];
    });
}

function scorerTable(scorer, groups) {
  const rows = groups.map((group) => {
    const found = group.scorers[scorer];
    const left = [["errors", found.errors], ["unscored", found.unscored], ["no answer", found.absent]]
      .filter(([, count]) => count)
      .map(([name, count]) => `${whole(count)} ${name}`);
    return { name: group.name, estimate: found.value, n: found.n, of: found.of, rest: left.join(", ") };
  });
  const title = `Scorer: ${scorer}`;
  return [make("h2", null, title), estimates(title, rows, false)];
}

/** A table of the batch's own metrics. */
function metricsTable(groups) {
  const rows = groups.flatMap((group) =>
    Object.entries(group.metrics || {}).map(([name, found]) =>
      make(
        "tr",
        null,
        make("th", { scope: "row" }, `${group.name}: ${name}`),
        make("td", { class: "number strong" }, found.value === null ? UNKNOWN : short(found.value)),
        make("td", { class: "number" }, found.low == null ? UNKNOWN : spanText(found, short)),
        make("td", { class: "number" }, found.se == null ? UNKNOWN : `± ${short(found.se)}`),
        make("td", { class: "number" }, ofAll(found.n, found.of)),
        make("td", { class: "prose" }, found.error)
      )
    )
  );
  return rows.length ? [make("h2", null, "Metrics"), table("Metrics", ["", right("value"), right("95 % interval"), right("standard error"), right("n of N"), ""], rows)] : [];
}

function reducedTable(groups) {
  const rows = groups.flatMap((group) =>
    group.reduced.map((each) => ({
      name: `${group.name}: ${each.reducer} of ${each.scorer || "passed"}`,
      estimate: each.estimate,
      n: each.n,
      of: each.of,
      rest: "samples",
    }))
  );
  return rows.length ? [make("h2", null, "Epochs combined"), estimates("Epochs combined", rows, false)] : [];
}

const MEASURES = { cohen_kappa: "Cohen's κ", krippendorff_alpha: "Krippendorff's α" };

/** A table of how far judges agree beyond chance, drawn on the whole range −1 to 1. */
function agreement(groups) {
  const rows = groups.flatMap((group) =>
    (group.agreement || []).map((found) =>
      make(
        "tr",
        null,
        make("th", { scope: "row" }, group.name),
        make("td", { class: "prose judges" }, judgesText(found)),
        make("td", { class: "measure" }, own(MEASURES, found.measure) || found.measure),
        make("td", { class: "drawn" }, intervalPlot({ mean: found.value, low: found.low, high: found.high }, -1, 1)),
        make("td", { class: "number strong" }, found.value === null ? "not defined" : short(found.value)),
        make("td", { class: "number" }, spanText(found, short)),
        make("td", { class: "number" }, ofAll(found.n, found.of)),
        make("td", { class: "number" }, percent(found.same))
      )
    )
  );
  if (!rows.length) return [];
  const axis = make("span", { class: "ends" }, make("span", null, "−1"), make("span", null, "0"), make("span", null, "1"));
  const numbers = ["value", "95 % interval", "n of N", "all the same"].map(right);
  return [
    make("h2", null, "Agreement of judges"),
    table("Agreement of judges", ["", "judges", "measure", axis, ...numbers], rows),
    make(
      "p",
      { class: "remark" },
      "Agreement on whether results passed: 1 is perfect, 0 is what chance gives. It is undefined if all ratings are equal. " +
        "α is shown without an interval, and so is κ if its standard error is 0: judges who always agree, or one who always gives the same rating."
    ),
  ];
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
  const unknown = groups.length - costed.length;
  const rows = points.map((point, place) =>
    make(
      "tr",
      null,
      make("td", { class: "number" }, place + 1),
      make("th", { scope: "row" }, point.name),
      make("td", { class: "number" }, money(point.x)),
      make("td", { class: "number" }, percent(point.y)),
      make("td", { class: "number" }, point.known)
    )
  );
  return [
    make("h2", null, "Cost and quality"),
    make(
      "div",
      { class: "beside" },
      make("div", { class: "wide" }, scatterPlot(points)),
      table("Cost and quality", ["", "", right("mean cost"), right("passed"), right("cost known for")], rows)
    ),
    unknown ? make("p", { class: "remark" }, `${ofAll(unknown, groups.length)} are not shown: their cost or share is unknown.`) : null,
  ];
}

function used(groups) {
  const rows = groups.map((group) => {
    const spent = group.spending;
    return make(
      "tr",
      null,
      make("th", { scope: "row" }, group.name),
      [
        amount(spent.cost_usd, money),
        amount(spent.scoring_cost_usd, money),
        amount(spent.input_tokens, whole),
        amount(spent.output_tokens, whole),
        whole(spent.cached_calls),
        ...["p50", "p90", "p99"].map((name) => seconds(group.duration_s[name])),
      ].map((text) => make("td", { class: "number" }, text))
    );
  });
  const head = ["cost", "scoring", "tokens in", "tokens out", "from the cache", "p50 time", "p90 time", "p99 time"].map(right);
  return table("Usage", ["", ...head], rows);
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
        make("figcaption", null, name, make("span", { class: "remark" }, ofAll(group.n, group.of))),
        histogramPlot(group.counts, each.edges, most, written),
        histogramTable(name, group.counts, each.edges, written)
      );
    });
    return [make("h2", null, titles[each.quantity]), make("div", { class: "figures" }, figures)];
  });
}

/** The same numbers for screen readers. */
function histogramTable(name, counts, edges, written) {
  const rows = counts.flatMap((count, place) =>
    count ? [make("tr", null, make("th", { scope: "row" }, binText(edges, place, written)), make("td", null, whole(count)))] : []
  );
  return make("div", { class: "heard" }, make("table", null, make("caption", null, name), make("tbody", null, rows)));
}

function confusions(groups) {
  const tables = groups.flatMap((group) =>
    Object.entries(group.confusion || {}).map(([scorer, found]) => {
      const title = `${group.name}, ${scorer}`;
      const most = Math.max(1, ...found.counts.flat());
      const head = ["target \\ answer", ...found.answers.map(right), right("no answer"), right("n")];
      const rows = found.targets.map((target, row) => {
        const cells = found.counts[row].map((count, column) => {
          const cell = make("td", { class: found.answers[column] === target ? "number hit" : "number" }, whole(count));
          cell.style.setProperty("--share", `${Math.round((count / most) * 60)}%`);
          return cell;
        });
        const sum = found.counts[row].reduce((a, b) => a + b, 0) + found.no_answer[row];
        return make(
          "tr",
          null,
          make("th", { scope: "row" }, target),
          cells,
          make("td", { class: "number quiet" }, whole(found.no_answer[row])),
          make("td", { class: "number quiet" }, whole(sum))
        );
      });
      return make(
        "div",
        { class: "one" },
        make("h3", null, title),
        table(title, head, rows, "confusion"),
        make("p", { class: "remark" }, `${ofAll(found.of, group.counts.results)} results have a target that is a label.`)
      );
    })
  );
  return tables.length ? [make("h2", null, "Targets and answers"), make("div", { class: "several" }, tables)] : [];
}

function errors(data, groups) {
  const rows = groups.flatMap((group) =>
    group.errors.map((error) =>
      make(
        "tr",
        null,
        make("th", { scope: "row" }, group.name),
        make("td", null, make("code", null, error.kind)),
        make("td", { class: "number" }, ofAll(error.count, group.counts.results)),
        make("td", { class: "prose" }, error.example)
      )
    )
  );
  if (!rows.length) return [];
  return [make("h2", null, "Errors by kind"), table("Errors by kind", ["", "kind", right("n of N"), "example"], rows)];
}

function showOrigin(data) {
  fill(byId("origin"), null, [
    make("h2", null, "Configuration"),
    ...data.batches.map((batch) =>
      make("details", null, make("summary", null, `Manifest of ${batch.name}`), make("pre", null, plain(batch.manifest, 2)))
    ),
    make("p", { class: "remark" }, `Written ${data.created}. Intervals are those of the summary. n of N: the number is based on n of N results.`),
  ]);
}
