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

/** A trend of shares over batches of one name, the oldest first, with the interval of each. */
function trendPlot(points) {
  const width = 120;
  const height = 26;
  const step = points.length > 1 ? (width - 10) / (points.length - 1) : 0;
  const x = (place) => 5 + place * step;
  const y = (share) => height - 3 - share * (height - 6);
  const known = points.map((point) => point.estimate);
  const line = known.map((estimate, place) => `${x(place)},${y(estimate.mean)}`).join(" ");
  return drawing("trend", width, height, [
    known.map((estimate, place) => typeof estimate.low === "number" && makeSvg("line", { class: "whisker", x1: x(place), x2: x(place), y1: y(estimate.low), y2: y(estimate.high) })),
    makeSvg("polyline", { points: line }),
    known.map((estimate, place) => makeSvg("circle", { class: "point", cx: x(place), cy: y(estimate.mean), r: place === known.length - 1 ? 3 : 1.8 })),
  ]);
}

const BRUSH = { width: 640, height: 220, left: 56, right: 12, top: 10, bottom: 26 };

/**
 * A histogram of one column, or points of two. A range that is drawn with the pointer is given to `chosen`
 * as `[[x from, x to], [y from, y to] or null]`; the fields below the plot do the same with the keyboard.
 */
function brushPlot(plot, names, chosen) {
  const { width, height, left, right, top, bottom } = BRUSH;
  const isScatter = Boolean(plot.points);
  const xs = isScatter ? plot.points.map(([x]) => x) : plot.edges;
  const ys = isScatter ? plot.points.map(([, y]) => y) : [0, ...plot.counts];
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  const x = (each) => left + ((each - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (each) => height - bottom - ((each - y0) / (y1 - y0 || 1)) * (height - top - bottom);
  const backX = (at) => x0 + ((at - left) / (width - left - right)) * (x1 - x0);
  const backY = (at) => y0 + ((height - bottom - at) / (height - top - bottom)) * (y1 - y0);
  const marks = isScatter
    ? plot.points.map(([a, b, verdict]) => (verdict === "failed" || verdict === "error" ? makeSvg("path", { class: `dot dot-${verdict}`, d: `M${x(a) - 3} ${y(b) - 3}l6 6m0-6l-6 6` }) : makeSvg("circle", { class: `dot dot-${verdict}`, cx: x(a), cy: y(b), r: 3 })))
    : plot.counts.map((count, place) => count > 0 && makeSvg("rect", { class: "column", x: x(plot.edges[place]) + 0.5, y: y(count), width: Math.max(1, (width - left - right) / plot.counts.length - 1), height: y(0) - y(count) }));
  const texts = [
    makeSvg("text", { x: left, y: height - 8 }, short(x0)),
    makeSvg("text", { x: width - right, y: height - 8, "text-anchor": "end" }, short(x1)),
    makeSvg("text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, names[0]),
    makeSvg("text", { x: left - 6, y: top + 8, "text-anchor": "end" }, short(y1)),
    makeSvg("text", { x: left - 6, y: height - bottom, "text-anchor": "end" }, short(y0)),
  ];
  const axis = makeSvg("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - right}` });
  const brush = makeSvg("rect", { class: "brush", width: 0, height: height - top - bottom, y: top });
  const shown = drawing("brushed", width, height, [axis, texts, marks, brush]);
  let begun = null;
  const place = (event) => {
    const box = shown.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
  };
  shown.addEventListener("pointerdown", (event) => {
    begun = place(event);
    shown.setPointerCapture(event.pointerId);
  });
  shown.addEventListener("pointermove", (event) => {
    if (!begun) return;
    const now = place(event);
    const [low, high] = [Math.min(begun[0], now[0]), Math.max(begun[0], now[0])];
    fill(brush, { x: low, width: high - low }, []);
    if (isScatter) fill(brush, { y: Math.min(begun[1], now[1]), height: Math.abs(begun[1] - now[1]) }, []);
  });
  shown.addEventListener("pointerup", (event) => {
    if (!begun) return;
    const now = place(event);
    const range = [backX(begun[0]), backX(now[0])].sort((a, b) => a - b);
    const upper = isScatter ? [backY(begun[1]), backY(now[1])].sort((a, b) => a - b) : null;
    if (Math.abs(begun[0] - now[0]) > 3) chosen([range, upper]);
    begun = null;
  });
  const from = make("input", { type: "number", step: "any", name: "from", "aria-label": `${names[0]} from`, placeholder: short(x0) });
  const to = make("input", { type: "number", step: "any", name: "to", "aria-label": `${names[0]} to`, placeholder: short(x1) });
  const submit = (event) => {
    event.preventDefault();
    chosen([[from.value === "" ? x0 : Number(from.value), to.value === "" ? x1 : Number(to.value)], null]);
  };
  return make(
    "figure",
    { class: "brushing" },
    make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `Plot of ${names.filter(Boolean).join(" and ")}` }, shown),
    make("figcaption", { class: "remark" }, `${plural(plot.n, "result")}${isScatter && plot.points.length < plot.n ? `, every ${Math.round(plot.n / plot.points.length)}th is drawn` : ""}${names[1] ? `; up: ${names[1]}` : ""}. Draw a range to filter the rows, or give it:`),
    make("form", { class: "controls", submit }, labelled("from", from), labelled("to", to), make("button", null, "Filter"))
  );
}
