// Lists of batches and runs, the queue, background tasks and templates.

function problemView(data) {
  return [part("problem", data.message, () => [make("h1", null, data.title), alertNote(data.message)])];
}

function batchesView(data) {
  const choice = (name) => (batch) => batch.href && make("label", { class: "box" }, make("input", { type: "radio", name, value: batch.id, "aria-label": `${batch.name} as ${name}` }), name);
  const last = [column("Compare", (batch) => [choice("a")(batch), " ", choice("b")(batch)], { className: "measure" })];
  return [
    part("list", data, () => [
      make("h1", null, "Batches"),
      data.searches.length > 0 && make("p", null, "Searches for better templates: ", dotted(...data.searches.map(([href, name]) => link(href, null, name)))),
      data.is_cut && notice(`The first ${whole(data.entries.length)} batches are shown; start \`evaluator view\` in a smaller folder for the others.`),
      data.entries.length
        ? make("form", { method: "get", action: "/compare" }, batchTable(data.entries, { last }), make("p", null, make("button", null, "Compare a with b")))
        : make("p", null, "There are no batches here yet. ", make("code", null, "evaluator batch"), " and ", make("code", null, "evaluator demo"), " make some."),
    ]),
  ];
}

function improvementView(data) {
  return [
    part("improvement", data, () => [
      make("h1", null, data.name),
      data.tables === null && quiet("The search has no certificate yet."),
      data.is_own === false && notice("Another user, or another machine, has signed this certificate."),
      data.tables && data.tables.map((each) => textTable(each)),
      data.compare && make("p", null, link(data.compare, null, "Compare the answers to the sealed rows")),
      data.diff && section("Changes", make("pre", { tabindex: "0" }, data.diff)),
      data.tables && command(data.command, "Recompute it:"),
    ]),
  ];
}

function runsView(data) {
  if (data.chosen === null) {
    return [part("list", data, () => [make("h1", null, "Runs"), data.is_cut && cutNote(), make("p", null, "There are no task files here yet. ", make("code", null, "evaluator run"), " and ", make("code", null, "evaluator demo"), " write some.")])];
  }
  return [
    part("head", [data.folders, data.chosen, data.conditions, data.problem, data.unnumbered], () => [
      make("h1", null, "Runs"),
      data.is_cut && cutNote(),
      runFilters(data),
      data.problem && alertNote(data.problem),
      data.unnumbered && data.unnumbered.length > 0 && remark("Runs without a number: ", data.unnumbered.map((each) => [link(each.href, null, each.name), " "])),
    ]),
    part("list", [data.runs, data.searched, data.older], () => [
      make("p", { class: "count", role: "status" }, `${plural(data.runs.length, "run")} shown${data.searched === undefined ? "" : `, ${plural(data.searched, "file")} read`}`),
      runTable(data.runs),
      data.older && make("p", { class: "pages" }, link(data.older, { rel: "next" }, "Older runs")),
    ]),
  ];
}

function cutNote() {
  return notice("This folder has very many folders; not all were searched. Start `evaluator view` in a smaller one.");
}

function runFilters({ folders, chosen, name, conditions, statuses }) {
  const known = folders.some(([key]) => key === chosen) ? folders : [...folders, [chosen, name]];
  const field = (key, title, size, placeholder) => labelled(title, make("input", { type: "search", name: key, value: conditions[key], size, placeholder }));
  return make(
    "form",
    { class: "controls", method: "get", action: "/runs", role: "search", "aria-label": "Filter the runs" },
    labelled("Folder", select("folder", known, chosen)),
    labelled("Status", select("status", [["", "any"], ...statuses.map((each) => [each, each])], conditions.status)),
    field("template", "Template", 12), field("model", "Model", 12), field("since", "Since", 9, "2h"), field("until", "Until", 9), field("cost", "Cost from $", 5), field("text", "Text", 16),
    make("button", null, "Filter")
  );
}

// -- the queue -------------------------------------------------------------------------------------------

function queueView(data) {
  if (data.chosen === null) return [part("board", data, () => [make("h1", null, "Queue"), make("p", null, "There is no queue here yet. ", make("code", null, 'evaluator queue add "…"'), " makes one.")])];
  const choice = make("form", { class: "controls", method: "get", action: "/queue" }, labelled("Queue", select("folder", data.folders, data.chosen)), make("button", null, "Show"));
  return [
    part("head", [data.folders, data.chosen], () => [make("h1", null, "Queue"), data.folders.length > 1 ? choice : remark(data.folders[0][1])]),
    part("board", data.board, () => boardOf(data.board)),
  ];
}

const COLUMNS_SHOWN = ["pending", "running", "done"];

function boardOf({ value: board, error }) {
  if (error) return alertNote(error);
  if (!board) return quiet("The queue is being read.");
  const columns = board.columns.filter((each) => each.count || COLUMNS_SHOWN.includes(each.status));
  return [
    remark(`${whole(board.ready)} could run now · at most ${whole(board.max_concurrent)} at once · ${whole(board.archived)} archived`),
    make("div", { class: "board" }, columns.map((each) =>
      make(
        "section",
        { "aria-labelledby": `column-${each.status}` },
        make("h2", { id: `column-${each.status}` }, badge(each.status), " ", make("span", { class: "quiet" }, whole(each.count))),
        make("ul", { class: "cards" }, each.cards.map(cardOf)),
        each.count > each.cards.length && quiet(`${ofAll(each.cards.length, each.count)} are shown; \`evaluator queue list --status ${each.status}\` prints all.`)
      )
    )),
  ];
}

function cardOf(card) {
  return make(
    "li",
    { class: `card card-${own(TONES, card.status)?.[1] || "none"}` },
    link(card.href, null, make("b", null, card.id), ` ${brief(card.description, 140)}`),
    " ",
    simulatedBadge(card.simulated),
    make("p", { class: "quiet" }, dotted(card.type, card.attempts > 0 && plural(card.attempts, "attempt"), card.time)),
    card.blocked_reason ? [make("p", { class: "reason reason-bad" }, brief(card.blocked_reason, 200)), make("p", null, link(`${card.href}#actions`, null, "Retry…"))] : card.deliverable && make("p", null, brief(card.deliverable, 140))
  );
}

function entryView(data) {
  const { entry } = data;
  const minute = (time) => plain(time).slice(0, 16).replace("T", " ");
  const attempt = ({ attempt: each, run }) =>
    make(
      "article",
      { class: "message" },
      make("h3", null, `${each.attempt} · ${each.strategy} `, make("span", { class: "quiet" }, minute(each.attempted_at)), run.href && [" ", link(run.href, null, "run")], simulatedBadge(run.simulated)),
      value(each.result, "result"),
      each.verification_failure && notice(`not accepted: ${each.verification_failure}`)
    );
  return [
    part("entry", { ...data, token: null }, () => [
      make("div", { class: "title" }, make("h1", null, data.title), badge(entry.status)),
      make("p", { class: "lead" }, entry.type),
      remark(dotted(["in ", link(data.queue, null, data.name)], `added ${minute(entry.added_at)}`, entry.started_at && `started ${minute(entry.started_at)}`, entry.completed_at && `ended ${minute(entry.completed_at)}`, `${whole(entry.retries)} of ${plural(entry.max_retries, "retry", "retries")} used`)),
      entry.blocked_reason && alertNote(entry.blocked_reason),
      entry.user_action_required && section("What to do", value(entry.user_action_required)),
      section("Text", value(entry.description)),
      entry.goal && entry.goal !== entry.description && section("Goal", value(entry.goal)),
      Object.keys(data.details).length > 0 && section("Options", pairs(data.details)),
      entry.deliverable && section("Deliverable", value(entry.deliverable, "deliverable"), entry.deliverable_path && remark(entry.deliverable_path)),
      section("Attempts", data.attempts.length ? data.attempts.map(attempt) : quiet("Nothing was tried yet.")),
    ]),
    part("actions", [data.href, data.token, entry.status], () => entryActions(data)),
  ];
}

function entryActions({ href, token, entry }) {
  const button = (name, text) => make("button", { name: "action", value: name }, text);
  if (entry.status === "pending") return section("Actions", confirmed(href, token, `Cancel ${entry.id} for good; it is never run`, button("skip", "Skip")));
  if (entry.status !== "blocked") return null;
  const guidance = make("p", null, make("label", { for: "guidance" }, make("b", null, "What to do differently"), make("span", { class: "quiet" }, " optional; added to the text for the next attempts")), make("textarea", { id: "guidance", name: "guidance", rows: "3" }));
  return section("Actions", confirmed(href, token, `Return ${entry.id} to the queue, where a worker runs it again`, button("retry", "Retry"), guidance));
}

// -- background tasks ------------------------------------------------------------------------------------

function backgroundView(data) {
  const tokens = (row) => (row.input_tokens === null || row.output_tokens === null ? "" : whole(row.input_tokens + row.output_tokens));
  const columns = [
    column("Task", (row) => link(row.href, null, row.id), { className: "measure" }),
    column("Status", (row) => [badge(row.status), row.is_waiting && make("div", { class: "under" }, "waits for an answer")]),
    column("Type", (row) => row.type),
    column("Description", (row) => brief(row.description), { className: "text" }),
    column("Started", (row) => row.created, { className: "measure" }),
    numeric("Time", (row) => (row.duration_s === null ? "" : seconds(row.duration_s))),
    numeric("Tokens", tokens),
    column("Reason", (row) => row.reason && brief(row.reason), { className: "text" }),
  ];
  return [
    part("list", data, () => [
      make("h1", null, "Background tasks"),
      data.problems.map((each) => alertNote(each)),
      data.has_folders
        ? [make("p", { class: "count" }, ofAll(data.rows.length, data.total, "task")), table({ caption: "Background tasks", columns, rows: data.rows, className: "list" })]
        : make("p", null, "There are no background tasks here yet. ", make("code", null, "evaluator start -- COMMAND"), " starts one."),
    ]),
  ];
}

function taskView(data) {
  const hasTokens = data.input_tokens !== null && data.output_tokens !== null;
  const { window: output } = data;
  return [
    part("head", { ...data, window: null, token: null }, () => [
      make("div", { class: "title" }, make("h1", null, data.title), badge(data.status), notifyButton(data)),
      make("p", { class: "lead" }, data.description),
      remark(dotted(data.type, ["in ", link("/background", null, data.name)], data.created, data.duration_s !== null && seconds(data.duration_s), data.exit_code !== null && `exit code ${data.exit_code}`, data.signal && `signal ${data.signal}`, hasTokens && `${whole(data.input_tokens)} tokens in, ${whole(data.output_tokens)} out`, `process ${data.process}`, data.run && link(data.run, null, data.task_file))),
      data.is_waiting && notice("It seems to wait for an answer: its output ends with a prompt and has stopped growing."),
      data.kill_reason && !data.has_ended && notice("Its kill was requested."),
      data.reason && notice(data.reason),
      data.summary && section("Result", value(data.summary, "result")),
    ]),
    part("output-part", [output, data.has_ended], () => section("Output", outputOf(output, data))),
    part("kill", [data.has_ended, data.token], () => !data.has_ended && section("Kill", confirmed(data.href, data.token, `End ${data.id} and everything that it started; its output is kept`, make("button", null, "Kill")))),
  ];
}

function outputOf(output, data) {
  if (output.problem) return notice(output.problem);
  const isMessage = (each) => each && typeof each === "object" && each.role !== undefined;
  const record = (each, place) => (isMessage(each) ? conversation([each], `record-${place}`) : foldable(`record-${place}`, (each && plain(each.type)) || "line", value(each), false));
  return [
    output.before > 0 && remark("The end of it; ", make("code", null, `evaluator logs ${data.id} --all`), ` prints the ${plural(output.before, "byte")} before.`),
    output.records.map(record),
    output.text && make("pre", { id: "output", class: "output", tabindex: "0", "data-follow": true, role: "log", "aria-label": "The end of the output" }, output.text),
    !output.text && !output.records.length && quiet(data.has_ended ? "There is none." : "There is none yet."),
  ];
}

// -- templates -------------------------------------------------------------------------------------------

function templatesView(data) {
  const columns = [
    column("Template", (row) => link(row.href, null, row.name), { className: "name" }),
    column("Type", (row) => row.type),
    column("Description", (row) => brief(row.description, 200), { className: "text" }),
    numeric("Findings", (row) => row.findings || ""),
  ];
  return [
    part("list", data, () => [
      make("h1", null, "Templates"),
      data.findings.length > 0 && section("Errors", data.findings.map(findingOf)),
      make("p", { class: "count" }, ofAll(data.rows.length, data.total, "template")),
      table({ caption: "Templates", columns, rows: data.rows, className: "list" }),
    ]),
  ];
}

function templateView(data) {
  return [
    part("head", [data.description, data.title, data.file, data.portrait], () => [make("h1", null, data.title), make("p", null, brief(data.description, 2_000)), portraitOf(data)]),
    part("form", [data.href, data.token, data.fields.map((field) => field.name)], () => section("Prompt", promptForm(data))),
    part("preview", [data.fields, data.bound, data.problem, data.error_findings, data.previews], () => previewOf(data)),
    part("examples", data.portrait.prompts, () => examplesOf(data.portrait)),
    part("source", [data.lines, data.findings], () => section(`Source: ${data.file || ""}`, data.findings.map(findingOf), fileLines(data.lines, "source"))),
  ];
}

/** What `evaluator docs` writes about a template. */
function portraitOf({ portrait, file, href }) {
  const names = (list) => list.flatMap((each, place) => [place > 0 && ", ", link(each.href, null, each.name)]);
  const edges = portrait.edges.map(([caller, called]) => make("li", null, link(caller.href, null, caller.name), " calls ", link(called.href, null, called.name)));
  const relations = remark(dotted(portrait.calls.length > 0 && ["calls ", names(portrait.calls)], portrait.callers.length > 0 && ["called by ", names(portrait.callers)]));
  const graph = portrait.edges.length > portrait.calls.length && foldable("graph", "Graph of its calls", make("ul", null, edges), false);
  if (portrait.error) return [relations, graph, notice(portrait.error)];
  if (!portrait.facts) return [relations, graph, quiet("Calls and price are being computed.")];
  const list = (items) => make("ul", null, items.map((each) => make("li", null, make("code", null, each))));
  return [
    facts([...portrait.facts.map(([name, text]) => [name, name === "sha256" ? make("code", null, text.slice(0, 12)) : text]), ["file", file], ["output", make("code", null, brief(portrait.output, 400))], ["calls", portrait.bound], ["price", portrait.price]]),
    relations,
    graph,
    portrait.inputs.length > 0 && section("Inputs", list(portrait.inputs)),
    portrait.reaches.length > 0 && section("What a run may reach", list(portrait.reaches)),
    make("form", { class: "controls", method: "get", action: href }, labelled("Price with the model", make("input", { type: "search", id: "price-model", name: "model", value: portrait.model, size: 24, placeholder: "openai/gpt-4o-mini" })), make("button", null, "Show")),
    portrait.explanation && foldable("bound", "How the calls are counted", make("pre", null, portrait.explanation), false),
  ];
}

function examplesOf({ prompts }) {
  if (!prompts) return null;
  return section("Examples", prompts.map((each, place) => foldable(`example-${place}`, each.title, [
    each.requests.map((text) => make("pre", null, text)),
    each.error && notice(each.error),
    each.expected !== null && [quiet("Expected output"), value(each.expected, "expected output")],
  ], false)));
}

function promptForm(data) {
  const field = (each, place) =>
    make(
      "p",
      null,
      make("label", { for: `input-${place + 1}` }, make("b", null, each.name), " ", make("span", { class: "quiet" }, `${each.type}${each.is_required ? "" : ", optional"}`), ` ${brief(each.description, 300)}`),
      make("textarea", { id: `input-${place + 1}`, name: `input.${each.name}`, rows: "2", placeholder: brief(each.default, 200) }, each.text)
    );
  const form = make(
    "form",
    { method: "post", action: data.href },
    data.fields.map(field),
    make("input", { type: "hidden", name: "token", value: data.token }),
    make("p", { class: "controls" }, make("label", { class: "box" }, make("input", { type: "checkbox", name: "confirm", value: "yes" }), "I know that scripts, commands and functions of this template run"), " ", make("button", { name: "action", value: "run" }, "Run with the simulated model"))
  );
  let timer = 0;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => preview(form), 300);
  });
  return form;
}

let lastPreview = null;

/** Shows the prompt that a form gives, as it is typed. */
async function preview(form) {
  if (lastPreview) lastPreview.abort();
  lastPreview = new AbortController();
  const body = new URLSearchParams(new FormData(form));
  body.set("action", "render");
  try {
    const answer = await fetch(form.getAttribute("action"), { method: "POST", body, signal: lastPreview.signal, headers: { Accept: "application/json" } });
    if (answer.ok) show(await answer.json());
    note(answer.ok ? "" : `The server answers ${answer.status}; the prompt is not shown.`);
  } catch (error) {
    if (error.name !== "AbortError") note("The server does not answer; the prompt is not shown.");
  }
}

function previewOf(data) {
  const request = (each, place) => [
    make("h3", null, `Request ${place + 1}: ${each.task || "task"} `, make("span", { class: "quiet" }, `about ${plural(each.input_tokens, "token")}${each.exact ? "" : ", after simulated answers"}`)),
    each.tools.length > 0 && remark(`tools: ${each.tools.join(", ")}`),
    conversation(each.messages, `preview-${place}`),
  ];
  return make(
    "div",
    { "aria-live": "polite" },
    data.fields.filter((field) => field.problem).map((field) => notice(`${field.name}: ${field.problem}`)),
    data.bound && remark(`A run makes ${data.bound}.`),
    data.problem && alertNote(data.problem),
    data.error_findings.map(findingOf),
    data.previews.map(request),
    data.requests > data.previews.length && notice(`The first ${ofAll(data.previews.length, data.requests)} requests; \`evaluator render\` prints all.`)
  );
}
