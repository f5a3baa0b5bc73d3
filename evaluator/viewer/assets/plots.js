// Plots as SVG. The numbers of each plot are shown next to it, so plots are hidden from screen readers.

/** A point with its interval on a line from `low` to `high`. */
function intervalPlot(estimate, low, high) {
  const width = 220;
  const height = 22;
  const at = (value) => 6 + ((value - low) / (high - low || 1)) * (width - 12);
  const marks = ticksOf(low, high).map((tick) =>
    makeSvg("line", { class: "grid", x1: at(tick), x2: at(tick), y1: 0, y2: height })
  );
  if (estimate.low !== null && estimate.high !== null) {
    const from = at(Math.max(low, estimate.low));
    const to = at(Math.min(high, estimate.high));
    marks.push(makeSvg("line", { class: "bar", x1: from, x2: to, y1: 11, y2: 11 }));
    for (const end of [from, to]) marks.push(makeSvg("line", { class: "bar", x1: end, x2: end, y1: 7, y2: 15 }));
  }
  if (estimate.mean !== null) marks.push(makeSvg("circle", { class: "point", cx: at(estimate.mean), cy: 11, r: 4 }));
  return drawing("interval", width, height, marks);
}

/** The range of the axis of interval plots: 0 to 1, or wider if values lie outside. */
function domainOf(estimates) {
  const values = estimates.flatMap((each) => [each.low, each.mean, each.high]).filter((value) => value !== null);
  const means = estimates.map((each) => each.mean).filter((value) => value !== null);
  if (means.every((mean) => mean >= 0 && mean <= 1)) return [0, 1];
  return [Math.min(0, ...values), Math.max(...values)];
}

function ticksOf(low, high) {
  return [0, 0.25, 0.5, 0.75, 1].map((share) => low + share * (high - low));
}

/** One bar, divided by verdict. */
function countsPlot(counts) {
  const width = 220;
  const height = 14;
  const total = counts.total || 1;
  let x = 0;
  const marks = [];
  for (const name of ["passed", "failed", "error", "unscored", "pending"]) {
    const part = ((counts[name] || 0) / total) * width;
    if (part > 0) marks.push(makeSvg("rect", { class: `fill-${name}`, x, y: 0.5, width: part, height: height - 1 }));
    x += part;
  }
  return drawing("counts", width, height, [hatching(), ...marks]);
}

/** Errors are hatched, so that they differ from failed results without colour. */
function hatching() {
  const pattern = makeSvg(
    "pattern",
    { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    makeSvg("rect", { class: "hatch-ground", width: 5, height: 5 }),
    makeSvg("rect", { class: "hatch-line", width: 2.4, height: 5 })
  );
  return makeSvg("defs", null, pattern);
}

/** Counts in bins; `most` is the highest count of all plots that are compared. */
function histogramPlot(counts, edges, most, written) {
  const width = 320;
  const height = 90;
  const floor = height - 18;
  const step = width / edges.length;
  const marks = [makeSvg("line", { class: "axis", x1: 0, x2: width, y1: floor + 0.5, y2: floor + 0.5 })];
  counts.forEach((count, place) => {
    const tall = most ? (count / most) * (floor - 4) : 0;
    if (count) {
      marks.push(
        makeSvg(
          "rect",
          { class: "column", x: place * step + 0.5, y: floor - Math.max(1, tall), width: Math.max(1, step - 1), height: Math.max(1, tall) },
          makeSvg("title", null, `${binText(edges, place, written)}: ${whole(count)}`)
        )
      );
    }
  });
  const labelled = [0, Math.floor((edges.length - 1) / 2), edges.length - 1];
  for (const place of new Set(labelled)) {
    const last = place === edges.length - 1 && place > 0;
    const anchor = place === 0 ? "start" : last ? "end" : "middle";
    const x = place === 0 ? 0 : last ? width : place * step;
    marks.push(makeSvg("text", { x, y: height - 4, "text-anchor": anchor }, (last ? "≥ " : "") + written(edges[place])));
  }
  return drawing("histogram", width, height, marks);
}

function binText(edges, place, written) {
  if (place === edges.length - 1) return `${written(edges[place])} or more`;
  return `${written(edges[place])} to ${written(edges[place + 1])}`;
}

/** Cost on a scale from 0 against a share, each point with its name and interval. */
function scatterPlot(points) {
  const width = 640;
  const height = 300;
  const box = { left: 52, right: width - 16, top: 14, bottom: height - 44 };
  const most = Math.max(...points.map((point) => point.x)) * 1.15 || 1;
  const x = (value) => box.left + (value / most) * (box.right - box.left);
  const y = (value) => box.bottom - value * (box.bottom - box.top);
  const marks = [];
  for (const tick of ticksOf(0, 1)) {
    marks.push(makeSvg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }));
    marks.push(makeSvg("text", { x: box.left - 8, y: y(tick) + 4, "text-anchor": "end" }, `${100 * tick} %`));
  }
  for (const tick of roundTicks(most)) {
    marks.push(makeSvg("text", { x: x(tick), y: box.bottom + 18, "text-anchor": "middle" }, money(tick)));
  }
  marks.push(makeSvg("text", { x: box.right, y: height - 6, "text-anchor": "end" }, "mean cost of a result"));
  for (const point of points) {
    const at = x(point.x);
    if (point.low !== null && point.high !== null) {
      marks.push(makeSvg("line", { class: "bar", x1: at, x2: at, y1: y(point.low), y2: y(point.high) }));
    }
    marks.push(makeSvg("circle", { class: "point", cx: at, cy: y(point.y), r: 5 }, makeSvg("title", null, point.name)));
  }
  for (const label of labelsOf(points.map((point) => [x(point.x), y(point.y)]))) {
    const leftward = label.x > width / 2;
    const anchor = leftward ? "end" : "start";
    marks.push(makeSvg("text", { class: "name", x: label.x + (leftward ? -10 : 10), y: label.y + 4, "text-anchor": anchor }, label.text));
  }
  return drawing("scatter", width, height, marks);
}

/** Labels with the numbers of points; points that overlap share a label. */
function labelsOf(places) {
  const labels = [];
  places.forEach(([x, y], place) => {
    const near = labels.find((label) => Math.abs(label.x - x) < 26 && Math.abs(label.y - y) < 13);
    if (near) near.text += `, ${place + 1}`;
    else labels.push({ x, y, text: String(place + 1) });
  });
  return labels;
}

/** About five round numbers from 0 to `most`. */
function roundTicks(most) {
  const power = 10 ** Math.floor(Math.log10(most / 5));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => most / each <= 6);
  const ticks = [];
  for (let place = 0; place * step <= most; place++) ticks.push(Number((place * step).toPrecision(6)));
  return ticks;
}

function drawing(kind, width, height, marks) {
  return makeSvg(
    "svg",
    { class: `plot ${kind}`, viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true", focusable: "false" },
    marks
  );
}
