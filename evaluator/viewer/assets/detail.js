// One result in a dialog. The arrow keys show the next and the previous result of the table.

function openDetail(view, sample) {
  const dialog = byId("detail");
  const list = view.state.beside ? view.state.rows.flatMap((row) => [...row.cells.values()]) : view.state.rows;
  const show = (each) => {
    const place = list.indexOf(each);
    const step = (by) => () => list[place + by] && show(list[place + by]);
    dialog.replaceChildren(
      make(
        "header",
        null,
        make("h2", { id: "detail-title" }, each.title === "" ? "(empty id)" : each.title),
        make("span", { class: "count" }, ofAll(place + 1, list.length)),
        make("button", { type: "button", click: step(-1), disabled: place <= 0, "aria-label": "previous result" }, "‹"),
        make("button", { type: "button", click: step(1), disabled: place >= list.length - 1, "aria-label": "next result" }, "›"),
        make("button", { type: "button", autofocus: true, click: () => dialog.close(), "aria-label": "close" }, "×")
      ),
      detailOf(view, each)
    );
    dialog.onkeydown = (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("pre")) return;
      if (event.key === "ArrowLeft") step(-1)();
      else if (event.key === "ArrowRight") step(1)();
      else return;
      event.preventDefault();
      dialog.querySelector("button[autofocus]").focus();
    };
    dialog.scrollTop = 0;
  };
  show(sample);
  dialog.showModal();
}

function detailOf(view, sample) {
  const facts = [
    ["verdict", verdictCell(sample)],
    view.data.batches.length > 1 && ["batch", view.data.batches[sample.batch].name],
    ["template", sample.template],
    sample.variant && ["variant", sample.variant],
    sample.model && ["model", sample.model],
    ["epoch", whole(sample.epoch)],
    ["row", whole(sample.place + 1)],
    ["sample id", make("code", null, sample.id)],
    ["time", seconds(sample.duration_s)],
    ["started", sample.started],
    ["cost", money(keyOf(sample, "cost")) + (sample.scoring_cost_usd === 0 ? "" : `, scoring ${money(sample.scoring_cost_usd)}`)],
    ["identity", make("code", null, sample.identity)],
    (sample.link || sample.task !== null) && ["task file", taskLink(sample)],
  ].filter(Boolean);
  return make(
    "div",
    { class: "detail" },
    make("dl", { class: "facts" }, facts.map(([name, value]) => make("div", null, make("dt", null, name), make("dd", null, value)))),
    sample.failure && section("Error", failureOf(sample.failure)),
    section("Inputs", pairs(sample.inputs)),
    section("Target", sample.target === null ? quiet("none") : text(sample.target)),
    section("Answer", sample.content === "" ? quiet("empty") : text(sample.content)),
    sample.parsed !== null && section("Parsed answer", text(sample.parsed, 2)),
    section("Scores", scoresOf(sample)),
    Object.keys(sample.metadata).length > 0 && section("Metadata", pairs(sample.metadata)),
    sample.warnings.length > 0 && section("Warnings", make("ul", null, sample.warnings.map((warning) => make("li", null, warning)))),
    section("Usage", usageOf(sample)),
    (sample.transcripts || []).map(transcriptOf)
  );
}

/** A link that the report wrote: relative, inside the batch's folder. */
function taskLink(sample) {
  const name = sample.task === null ? "open" : `TASK-${sample.task}`;
  return sample.link ? make("a", { href: sample.link }, name) : name;
}

function section(title, content) {
  return make("section", null, make("h3", null, title), content);
}

function text(value, indent) {
  return make("pre", { tabindex: "0" }, plain(value, indent));
}

function quiet(word) {
  return make("p", { class: "quiet" }, word);
}

function pairs(values) {
  const entries = Object.entries(values);
  if (!entries.length) return quiet("none");
  return make("dl", { class: "pairs" }, entries.map(([name, value]) => [make("dt", null, name), make("dd", null, text(value, 2))]));
}

function failureOf(failure) {
  const retry = failure.retryable ? "the same may succeed later" : "the same will fail again";
  return [make("p", null, make("code", null, failure.type), " ", make("code", null, failure.kind), ` (${retry})`), text(failure.message)];
}

function scoresOf(sample) {
  const entries = Object.entries(sample.scores);
  if (!entries.length) return quiet(sample.failure ? "none: there is no answer" : "none: no scorer");
  return entries.map(([name, score]) => {
    const verdict = score.error !== undefined ? "error" : score.passed === undefined ? "unscored" : score.passed ? "passed" : "failed";
    return make(
      "div",
      { class: "score" },
      make("p", null, make("b", null, name), ": ", verdictCell({ verdict }), score.value === undefined ? null : `, ${short(score.value)}`),
      score.answer !== undefined && make("p", null, "read: ", make("code", null, score.answer)),
      score.error !== undefined && text(score.error),
      score.explanation && text(score.explanation),
      score.metadata && text(score.metadata, 2)
    );
  });
}

/** The conversations of a task or a judge, message by message. */
function transcriptOf(transcript) {
  const conversations = transcript.conversations.map((each) => [
    make("p", { class: "quiet" }, [each.path, each.model].filter(Boolean).join(" · ")),
    each.messages.map(messageOf),
    each.unanswered && make("p", { class: "notice" }, `no answer: ${each.unanswered.status} ${plain(each.unanswered.error || "")}`),
    each.unanswered && each.unanswered.partial && text(each.unanswered.partial, 2),
  ]);
  const problem = transcript.problem && make("p", { class: "notice" }, transcript.problem);
  return section(`${transcript.title}, TASK-${transcript.task}`, [problem, conversations]);
}

function messageOf(message) {
  const calls = Array.isArray(message.tool_calls) ? message.tool_calls : [];
  return [
    make("p", null, make("b", null, plain(message.role || "message"))),
    message.reasoning && make("details", null, make("summary", null, "reasoning"), text(message.reasoning, 2)),
    message.content && text(message.content, 2),
    calls.map((call) => [make("p", { class: "quiet" }, "calls"), text(call, 2)]),
  ];
}

function usageOf(sample) {
  const names = { input_tokens: "tokens in", output_tokens: "tokens out", cached_tokens: "cached tokens", reasoning_tokens: "reasoning tokens", turns: "turns", tool_calls: "tool calls" };
  const parts = Object.entries(names)
    .filter(([name]) => sample.usage[name] !== undefined)
    .map(([name, title]) => `${sample.usage[name] === null ? "unknown" : whole(sample.usage[name])} ${title}`);
  if (sample.cached_calls) parts.push(`${whole(sample.cached_calls)} calls from the cache`);
  return make("p", null, parts.length ? parts.join(", ") : "nothing");
}
