// One run: the tree of its steps beside a pane that shows the chosen one. The choice is in the fragment.

function runView(data) {
  const chosen = location.hash.slice(1) || "result";
  return [
    part("head", { ...data, rows: null, steps: null, conversations: null }, () => runHead(data)),
    part("tree", [data.rows, data.axis_s, chosen, data.status], () => runTree(data, chosen)),
    part("pane", [chosen, paneSource(data, chosen)], () => make("div", { class: "pane-inner" }, paneOf(data, chosen))),
  ];
}

function runHead(data) {
  const { summary, template } = data;
  const steps = summary && `${summary.planned === null ? plural(summary.steps, "step") : ofAll(summary.steps, summary.planned, "step")}${summary.retries ? `, ${whole(summary.retries)} retried` : ""}`;
  const isStopped = ["interrupted", "aborted", "failed"].includes(data.status);
  return [
    make("div", { class: "title" }, make("h1", null, data.title), badge(data.status), simulatedBadge(data.simulated), notifyButton(data)),
    make(
      "p",
      { class: "lead" },
      template && link(template.href, null, template.name),
      template && !template.is_same && make("span", { class: "quiet" }, " the template has changed since"),
      data.parent && [" · subtask of ", link(data.parent.href, null, `TASK-${data.parent.id}`)]
    ),
    remark(dotted(["in ", link(data.runs, null, data.name)], data.created, summary && seconds(summary.duration_s), steps, data.usage && `${tokensOf(data.usage)} tokens`, atLeast(data.cost_is_bound, costOf(data.usage)))),
    isStopped && data.resume && notice(data.status === "interrupted" ? "The run was interrupted: its process has ended. The steps that have ended are kept." : `The run ${data.status === "failed" ? "failed" : "was aborted"}; the steps that have succeeded are kept.`),
    command(data.resume, "To continue it:"),
    data.warnings.map((each) => notice(each)),
    data.resumptions.map((each) => remark(`resumed ${each.at}${each.allowed ? `, with ${each.allowed} allowed` : ""}`)),
  ];
}

// -- the tree --------------------------------------------------------------------------------------------

function runTree(data, chosen) {
  const columns = [
    column("Step", (row) => rowLabel(row), { className: "label" }),
    column(axisTitle(data.axis_s), (row) => barOf(row, data.axis_s), { className: "axis" }),
    numeric("Time", (row) => (row.duration_s > 0 ? seconds(row.duration_s) : row.bar && row.kind === "group" ? seconds(row.bar.end_s - row.bar.start_s) : "")),
    column("Status", (row) => statusOf(row, data)),
  ];
  const top = { depth: 0, label: "Result", id: "result", kind: "result", status: data.status };
  const rows = [top, ...data.rows.map((row) => ({ ...row, id: rowId(row) }))];
  const steps = rows.filter((row) => row.id);
  const at = steps.findIndex((row) => row.id === chosen);
  for (const [by, rel] of [[-1, "prev"], [1, "next"]]) if (at >= 0 && steps[at + by]) steps[at + by].rel = rel;
  return [
    make("h2", { class: "heard" }, "Steps"),
    table({
      caption: "Steps",
      className: "steps",
      columns,
      rows,
      rowOf: (row) => ({ class: `depth-${Math.min(row.depth, 8)}${row.id === chosen ? " chosen" : ""}` }),
    }),
    remark(legend()),
    data.is_cut && notice(`The first ${whole(data.rows.length)} rows; \`evaluator tasks show --tree\` prints all.`),
  ];
}

function rowId(row) {
  if (row.index !== null && row.index !== undefined) return `step-${row.index}`;
  return row.kind === "group" ? `part-${row.path}` : "";
}

function rowLabel(row) {
  const facts = [row.kind !== "group" && row.kind !== "result" && make("span", { class: "quiet" }, ` ${[row.kind, row.name].filter((each) => each && each !== row.label).join(" ")}`), row.attempt > 1 && make("span", { class: "quiet" }, ` retry ${row.attempt}/${row.max_attempts}`), row.cached && make("span", { class: "quiet" }, " cached")];
  if (row.href) return [link(row.href, null, row.label), facts, row.problem && ` ${row.problem}`];
  return [row.id ? link(`#${encodeURIComponent(row.id)}`, { id: `to-${row.id}`, rel: row.rel, "aria-label": row.label }, row.label) : row.label, facts];
}

function statusOf(row, data) {
  if (!row.status) return "";
  const wasCut = row.status === "running" && data.status === "interrupted";
  return badge(wasCut ? "interrupted" : row.status);
}

function axisTitle(length) {
  return length ? make("span", { class: "ends" }, make("span", null, "0 s"), make("span", null, seconds(length))) : "";
}

/** Where a step is on the time axis; the wait before a retry is hatched, an answer from the cache hollow. */
function barOf(row, length) {
  if (!row.bar) return null;
  const { start_s: start, end_s: end } = row.bar;
  const at = (each) => (length > 0 ? (100 * each) / length : 0);
  const width = Math.max(0.8, at(end - start));
  const x = Math.min(at(start), 100 - width);
  const kind = row.kind === "group" ? "group" : row.cached ? "cached" : row.bar.is_open ? "open" : own(TONES, row.status)?.[1] || "none";
  const wait = row.wait_s ? Math.min(x, at(row.wait_s)) : 0;
  const text = `from ${seconds(start)} to ${seconds(end)}${row.wait_s ? `, after a wait of ${seconds(row.wait_s)}` : ""}${row.cached ? ", from the cache" : ""}`;
  return makeSvg(
    "svg",
    { class: `length length-${kind}`, viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": text },
    makeSvg("title", null, text),
    wait > 0 && makeSvg("rect", { class: "wait", x: x - wait, y: 2.5, width: wait, height: 3 }),
    makeSvg("rect", { x, width, height: 8 })
  );
}

function legend() {
  const key = (kind, text) => make("span", { class: "legend" }, make("i", { class: `swatch swatch-${kind}` }), text);
  return [key("good", "done"), key("wait", "wait before a retry"), key("cached", "from the cache"), key("bad", "failed"), key("open", "not ended")];
}

// -- the pane --------------------------------------------------------------------------------------------

/** What the pane of a choice depends on, so that it is drawn again only if that changes. */
function paneSource(data, chosen) {
  if (chosen === "result") return [data.result, data.summary, data.inputs, data.findings];
  return [data.steps.length, data.conversations.length, chosenStep(data, chosen)];
}

function chosenStep(data, chosen) {
  const match = /^step-(\d+)$/.exec(chosen);
  return match ? data.steps[Number(match[1])] : undefined;
}

function paneOf(data, chosen) {
  if (chosen === "result") return resultPane(data);
  const step = chosenStep(data, chosen);
  if (step) return stepPane(data, step, Number(chosen.slice(5)));
  const path = decoded(chosen).replace(/^part-/, "");
  return partPane(data, path);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function resultPane(data) {
  const { summary, result } = data;
  const notes = result.notes && typeof result.notes === "object" ? result.notes : {};
  const warnings = Array.isArray(notes.warnings) ? notes.warnings : [];
  const text = result.content === undefined ? result.partial : result.content;
  return [
    make("h2", null, "Result"),
    !summary && quiet("There is no result yet."),
    summary && summary.status !== "completed" && alertNote(make("b", null, dotted(plain(result.type), plain(result.reason))), " ", plain(result.message) || plain(summary.reason)),
    data.findings.map(findingOf),
    result.parsed_content !== null && result.parsed_content !== undefined && [make("h3", null, "Parsed"), value(result.parsed_content, "parsed value")],
    text !== undefined && text !== null && [make("h3", null, result.parsed_content ? "Raw text" : "Text"), value(text, "answer")],
    warnings.length > 0 && [make("h3", null, "Warnings and repairs"), make("ul", null, warnings.map((each) => make("li", null, plain(each))))],
    Object.keys(notes).length > 0 && foldable("notes", "Notes", pairs(notes, "note"), false),
    make("h3", null, "Inputs"),
    data.request && data.template && data.request !== data.template.name && make("p", null, data.request),
    pairs(data.inputs, "input"),
  ];
}

function stepPane(data, step, index) {
  const talk = data.conversations.find((each) => each.turns.some((turn) => turn.step === index));
  const facts = dotted(step.kind, step.name, typeof step.duration_s === "number" && seconds(step.duration_s), step.usage && `${tokensOf(step.usage)} tokens`, step.usage && costOf(step.usage), step.attempt > 1 && `attempt ${step.attempt} of ${step.max_attempts}`, step.backoff_s && `after a wait of ${seconds(step.backoff_s)}`);
  const isCut = step.status === "running" && data.status === "interrupted";
  return [
    make("h2", null, step.path, " ", badge(isCut ? "interrupted" : step.status)),
    remark(facts),
    isCut && [notice("The process ended in this step; it is made again when the run is resumed."), command(data.resume, "To continue it:")],
    step.error && alertNote(step.error),
    iterationTabs(data, step.path),
    talk ? turnPane(talk, index) : [step.args !== null && [make("h3", null, "Arguments"), value(step.args, "arguments")], step.output !== null && step.output !== undefined && [make("h3", null, "Output"), value(step.output, "output")]],
    talk && foldable("as-recorded", "As recorded", [value(step.args, "arguments"), step.output !== null && value(step.output, "output")], false),
  ];
}

/** A turn of a conversation: what was new to the model, and its answer; the turns before it fold. */
function turnPane(talk, index) {
  const at = talk.turns.findIndex((turn) => turn.step === index);
  const before = talk.turns.slice(0, at).flatMap(messagesOf);
  const turn = talk.turns[at];
  const first = before.length;
  const prompts = Object.entries(talk.sources).filter(([place, spans]) => spans.length && place >= first && place < first + turn.sent.length);
  return [
    before.length > 0 && foldable("earlier", `${plural(before.length, "message")} before`, conversation(before, "before", [...before, ...turn.sent]), false),
    conversation(messagesOf(turn), "turn"),
    !turn.answer && talk.unanswered && unansweredOf(talk.unanswered),
    prompts.map(([place, spans]) => foldable(`origins-${place}`, "Where the prompt's parts come from", originsOf(spans), false)),
    talk.changes.length > 0 && foldable("changes", "What changed between its attempts", talk.changes.map((change) => [make("h4", null, change.title), sideBySide(change.before, change.after)]), false),
    Object.keys(talk.settings).length > 0 && foldable("settings", "Settings", pairs(talk.settings, "setting"), false),
  ];
}

function messagesOf(turn) {
  return turn.answer ? [...turn.sent, turn.answer] : turn.sent;
}

function originsOf(spans) {
  return make("pre", { class: "marked", tabindex: "0" }, spans.map((span) => (span.source ? make("mark", { "data-source": span.source }, span.text) : span.text)));
}

/** A part of the run: its conversations. */
function partPane(data, path) {
  const talks = data.conversations.filter((each) => each.path === path || each.path.startsWith(`${path}/`));
  return [
    make("h2", null, path),
    iterationTabs(data, path),
    talks.map((talk, place) => [make("h3", null, talk.path, " ", make("span", { class: "quiet" }, talk.model)), conversation(talk.turns.flatMap(messagesOf), `part-${place}`), talk.unanswered && unansweredOf(talk.unanswered)]),
    !talks.length && quiet("No model was called here; choose one of its steps."),
  ];
}

const ITERATION = /^(.*\biterations\[)(\d+)(\].*)$/s;

/** The iterations of the loop that a path is in, as tabs, with what changed since the one before. */
function iterationTabs(data, path) {
  const match = ITERATION.exec(path);
  if (!match) return null;
  const rest = match[3].slice(1);
  const known = new Map();
  for (const row of data.rows) {
    const found = ITERATION.exec(row.path);
    if (found && found[1] === match[1] && found[3].slice(1) === rest && rowId(row)) known.set(Number(found[2]), rowId(row));
  }
  const numbers = [...known.keys()].sort((a, b) => a - b);
  if (numbers.length < 2) return null;
  const now = Number(match[2]);
  const tabs = numbers.map((number) => link(`#${encodeURIComponent(known.get(number))}`, { id: `iteration-${number}`, class: "chip", "aria-current": number === now ? "true" : null }, `Iteration ${number}`));
  const session = rest.replace(/\/?turn\[\d+\].*$/, "");
  const answer = (number) => lastAnswer(data, `${match[1]}${number}]${session}`);
  const [before, after] = [answer(now - 1), answer(now)];
  return [
    make("nav", { class: "chips", "aria-label": "Iterations" }, tabs),
    before && after && before !== after && foldable("iteration-changes", `What changed since iteration ${now - 1}`, sideBySide(before, after, [`Iteration ${now - 1}`, `Iteration ${now}`]), true),
    before && before === after && remark(`The same answer as in iteration ${now - 1}.`),
  ];
}

function lastAnswer(data, path) {
  const talks = data.conversations.filter((each) => each.path === path || each.path.startsWith(`${path}/`));
  return talks.map((talk) => plain(talk.turns.at(-1)?.answer?.content)).filter(Boolean).join("\n\n");
}
