// Two batches compared: the tables of `evaluator compare`, and the flipped samples with their answers side by side.

function showComparisons(data) {
  fill(byId("comparison"), null, (data.comparisons || []).flatMap(comparisonOf));
}

function comparisonOf(found) {
  const [a, b] = found.names.map((name, side) => `${name}: ${found.cells[side]}`);
  return [
    make("h2", null, `Comparison: a is ${a}, b is ${b}`),
    ...found.tables.flatMap((each) => [
      make("h3", null, each.title),
      ...each.lines.map((line) => make("p", null, line)),
      each.rows.length ? table(each.title, textHead(each.head), each.rows.map(textRow)) : null,
    ]),
    flipsOf("passed in a and failed in b", found.lost),
    flipsOf("failed in a and passed in b", found.gained),
  ];
}

function textHead(head) {
  return head.map((name, place) => (place ? right(name) : name));
}

function textRow(row) {
  return make("tr", null, row.map((cell, place) => (place ? make("td", { class: "number" }, cell) : make("th", { scope: "row" }, cell))));
}

function flipsOf(title, found) {
  if (!found.count) return null;
  const more = found.count > found.flips.length ? make("p", { class: "remark" }, `${ofAll(found.flips.length, found.count)} are shown.`) : null;
  return make("details", { class: "flips" }, make("summary", null, `${whole(found.count)} ${title}`), more, found.flips.map(flipOf));
}

function flipOf(flip) {
  return make(
    "article",
    null,
    make("h4", null, flip.title),
    pairs(flip.inputs),
    flip.target === null ? null : make("p", { class: "remark" }, `target: ${plain(flip.target)}`),
    make("div", { class: "sides" }, flip.sides.map((side, place) => answerOf(side, place ? "b" : "a", place ? "ins" : "del")))
  );
}

function answerOf(side, name, tag) {
  return make(
    "div",
    null,
    make("h4", null, `${name}: `, make("span", { class: `verdict verdict-${side.verdict}` }, side.verdict)),
    side.failure === null ? null : make("p", { class: "notice" }, side.failure),
    make("pre", { tabindex: "0" }, side.parts.map(([part, isChanged]) => (isChanged ? make(tag, null, part) : part)))
  );
}
