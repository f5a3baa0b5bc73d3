// What a batch has to decide: its looks, taken and ahead, with the boundaries at which it stops.

/** `results`: how many results a running batch has; between looks nothing is tested. */
function decisionOf(decision, results) {
  const { design, looks, ahead } = decision;
  const rows = [...looks, ...ahead];
  const isRace = design.method === "race";
  const amount = (value) => (design.measure ? short(value) : `${short(100 * value)} points`);
  const signed = (value) => (typeof value === "number" ? `${value < 0 ? "−" : "+"}${amount(Math.abs(value))}` : UNKNOWN);
  const boundary = (name) => numeric(name === "efficacy" ? "stops from" : "or below", (look) => (look[name] ? look[name].toFixed(2) : UNKNOWN));
  const columns = [
    column("look", (look) => `${look.number} of ${design.looks}`, { className: "name" }),
    numeric("rows", (look) => ofAll(look.rows, design.rows)),
    numeric("with all values", (look) => (look.pairs === undefined ? "" : whole(look.pairs))),
    ...(isRace
      ? [column("dropped", (look) => (look.dropped || []).map((each) => `${each.name} (${signed(each.difference)} to ${each.by})`).join("; ")), numeric("left", (look) => (look.left === undefined ? "" : whole(look.left)))]
      : [
          numeric("difference", (look) => (look.pairs === undefined ? "" : signed(look.difference))),
          numeric("|z|", (look) => (typeof look.z === "number" ? make("b", null, Math.abs(look.z).toFixed(2)) : "")),
          boundary("efficacy"), boundary("futility"),
          numeric("p", (look) => (typeof look.p === "number" ? short(look.p) : "")),
          numeric("95 % interval", (look) => (typeof look.low === "number" ? spanText(look, signed) : "")),
        ]),
    column("", (look) => look.verdict || "ahead"),
  ];
  const [next] = ahead;
  const done = Math.min(next ? next.rows : 0, Math.floor(results / design.epochs));
  return [
    make("h2", null, "Decision"),
    make("p", { role: "status" }, make("b", null, `${decision.status[0].toUpperCase()}${decision.status.slice(1)}.`), next && !isRace && results !== null && ` Look ${next.number} waits for its rows: ${ofAll(done, next.rows)}.`),
    decision.words.map((line) => remark(line)),
    design.looks > 1 && !isRace && boundaryPlot(rows, design),
    table({ caption: "Looks", columns, rows }),
    looks.some((look) => typeof look.low === "number") && remark("p and interval of a look are valid after stopping; the other intervals are those of a fixed number of rows."),
  ];
}

/** |z| at each look between the boundaries; the batch stops above the upper and below the lower one. */
function boundaryPlot(rows, design) {
  const width = 640;
  const height = 200;
  const box = { left: 44, right: width - 12, top: 10, bottom: height - 34 };
  const tested = rows.filter((look) => typeof look.efficacy === "number");
  const most = 1.1 * Math.max(2.5, ...tested.map((look) => Math.min(6, Math.max(look.efficacy, Math.abs(look.z || 0)))));
  const x = (look) => box.left + ((look.time || look.rows / design.rows) * (box.right - box.left)) / Math.max(1, ...rows.map((each) => each.time || 0));
  const y = (value) => box.bottom - (Math.min(value, most) / most) * (box.bottom - box.top);
  const edge = (name) => makeSvg("polyline", { class: "axis", points: tested.map((look) => `${x(look)},${y(look[name])}`).join(" ") });
  const marks = [0, 1, 2, 3, 4, 5, 6].filter((tick) => tick < most).flatMap((tick) => [
    makeSvg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }),
    makeSvg("text", { x: box.left - 8, y: y(tick) + 4, "text-anchor": "end" }, String(tick)),
  ]);
  for (const look of rows) marks.push(makeSvg("text", { x: x(look), y: box.bottom + 16, "text-anchor": "middle" }, String(look.number)));
  marks.push(edge("efficacy"), edge("futility"), makeSvg("text", { x: box.right, y: height - 4, "text-anchor": "end" }, "look; |z| between the boundaries"));
  for (const look of tested) if (typeof look.z === "number") marks.push(makeSvg("circle", { class: "point", cx: x(look), cy: y(Math.abs(look.z)), r: 5 }));
  return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Plot of the looks" }, drawing("looks", width, height, marks));
}
