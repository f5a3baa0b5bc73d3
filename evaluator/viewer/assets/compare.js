// Two sides compared: the result in words, the verdicts as a matrix, pairs side by side.

function compareView(data) {
  if (!data.entries.length) return [part("head", null, () => [make("h1", null, "Compare"), make("p", null, "There are no batches here yet.")])];
  return [
    part("head", [data.entries, data.sides, data.chosen, data.scorers, data.problem], () => [
      make("h1", null, "Compare"),
      sidesForm(data),
      data.problem && alertNote(data.problem),
      data.sides.map((side) => side.problem && notice(side.problem)),
    ]),
    data.numbers && part("words", data.numbers, () => comparedNumbers(data.numbers)),
    data.matrix && part("flips", [data.matrix, data.pairs, data.count, data.page], () => comparedPairs(data)),
  ];
}

function sidesForm(data) {
  const batches = data.entries.map((entry) => [entry.id, entry.name]);
  const side = (name, place) => {
    const found = data.sides[place];
    return [
      labelled(name, select(name, batches, data.chosen[name])),
      found && found.cells.length > 1 && labelled("Group", select(`cell_${name}`, found.cells.map((cell, number) => [number, cell]), found.cell)),
    ];
  };
  const scorers = data.scorers && data.scorers.length > 0 && labelled("Compare", select("scorer", [["", "whether it passed"], ...data.scorers.map((name) => [name, name])], data.chosen.scorer));
  return make("form", { class: "controls", method: "get", action: "/compare" }, side("a", 0), side("b", 1), scorers, make("button", null, "Compare"));
}

function comparedNumbers(numbers) {
  if (numbers.error) return alertNote(numbers.error);
  if (!numbers.data) return quiet("The numbers are being computed.");
  const { words, difference, warnings, tables } = numbers.data;
  const most = Math.max(0.01, ...[difference.low, difference.mean, difference.high].map((each) => Math.abs(each || 0)));
  const axis = make("span", { class: "ends" }, make("span", null, `−${short(most)}`), make("span", null, "0"), make("span", null, short(most)));
  return [
    make("p", { class: "verdict-words" }, words),
    difference.mean !== null && make("div", { class: "drawn" }, intervalPlot(difference, -most, most), axis),
    warnings.map((each) => notice(each)),
    foldable("compared-tables", "All numbers of the comparison", tables.flatMap(textTable), false),
  ];
}

/** The verdicts of a by those of b; a cell leads to its pairs. */
function comparedPairs(data) {
  return [
    make("h2", null, "Verdicts of a and b"),
    verdictTable(data.matrix, data.chosen, (from, to) => addressWith({ from, to })),
    make("h2", null, `${plural(data.count, "result")} ${data.chosen.from} in a and ${data.chosen.to} in b`),
    data.pairs.map((pair) => pairOf(pair)),
    !data.pairs.length && quiet("There are none."),
    pager(data, addressWith),
  ];
}

function verdictTable(matrix, chosen, href) {
  const used = VERDICTS.filter((verdict) => matrix.some((each) => each.a === verdict || each.b === verdict));
  const countOf = (a, b) => matrix.find((each) => each.a === a && each.b === b)?.count || 0;
  const columns = [
    column("a \\ b", (a) => badge(a, `${a} in a`)),
    ...used.map((b) =>
      numeric(badge(b, `${b} in b`), (a) => {
        const count = countOf(a, b);
        const isChosen = chosen && chosen.from === a && chosen.to === b;
        const text = make("span", { class: a !== b && count ? "flip-count" : null }, whole(count));
        return count && href ? link(href(a, b), { "data-local": true, "aria-current": isChosen ? "true" : null, "aria-label": `${whole(count)} ${a} in a and ${b} in b` }, text) : text;
      })
    ),
  ];
  return table({ caption: "Verdicts of a by verdicts of b", columns, rows: used, className: "flips" });
}

function pairOf(pair) {
  const [before, after] = differences(pair.results[0].content, pair.results[1].content);
  const side = (name, result, parts, tag) =>
    make(
      "div",
      null,
      make("h4", null, `${name}: `, link(result.href, { class: "verdict" }, badge(result.verdict)), simulatedBadge(result.simulated)),
      result.verdict !== "passed" && reasonLine(result),
      markedText(parts, tag)
    );
  return make(
    "article",
    { class: "pair" },
    make("h3", null, pair.title, pair.epoch > 1 && make("span", { class: "quiet" }, ` epoch ${pair.epoch}`)),
    make("p", null, Object.values(pair.inputs).map((each) => brief(each, 300)).join(" · ")),
    pair.target !== null && remark(`target: ${brief(pair.target, 200)}`),
    make("div", { class: "sides" }, side("a", pair.results[0], before, "del"), side("b", pair.results[1], after, "ins"))
  );
}
