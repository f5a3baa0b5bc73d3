// One result: what was asked, what was answered, why it got its scores, and the conversation.

function sampleView(data) {
  return [
    part("head", [data.result, data.place, data.count, data.others, data.batch, data.previous, data.next], () => sampleHead(data)),
    part("sample", data, () => sampleBody(data.result, data)),
  ];
}

function sampleHead(data) {
  const { result } = data;
  return [
    make(
      "nav",
      { class: "pages", "aria-label": "Samples" },
      data.previous && link(data.previous, { rel: "prev", "aria-keyshortcuts": "k" }, "← Previous"),
      make("span", null, data.place === null ? "not in the list" : ofAll(data.place + 1, data.count)),
      data.next && link(data.next, { rel: "next", "aria-keyshortcuts": "j" }, "Next →"),
      link(data.batch.href, { rel: "up", "aria-keyshortcuts": "u" }, `↑ ${data.batch.name}`)
    ),
    sampleTitle(result),
    data.others.length > 1 && otherResults(data),
  ];
}

function sampleTitle(result) {
  return [make("div", { class: "title" }, make("h1", { id: "sample-title" }, result.title), badge(result.verdict), simulatedBadge(result.simulated)), reasonLine(result)];
}

/** The other results of the sample: of each column and epoch. */
function otherResults(data) {
  const names = [...new Set(data.others.map((each) => each.cell))];
  return make(
    "nav",
    { class: "others", "aria-label": "Other results of this sample" },
    names.map((name) =>
      make("span", null, names.length > 1 && [make("b", null, name), " "], data.others.filter((each) => each.cell === name).map((each) =>
        link(each.href, { class: "verdict", "aria-current": each.is_this ? "page" : null }, badge(each.verdict, data.others.some((other) => other.epoch > 1) ? `epoch ${each.epoch}: ${each.verdict}` : each.verdict))
      ))
    )
  );
}

/** `context`: transcripts, the command that repeats the sample, and where task files are shown (`run`). */
function sampleBody(result, context) {
  const prompt = Object.entries(result.inputs).map(([name, each]) => `${name}: ${plain(each, 2)}`).join("\n");
  const compared = result.target === null ? null : againstTarget(result.content, result.target);
  const transcripts = context.transcripts || [];
  return [
    make("div", { class: "tools left" }, copyButton(prompt, "the inputs"), copyButton(result.content, "the answer"), context.command && copyButton(context.command, "the command that repeats it")),
    result.failure && section("Error", make("p", null, make("code", null, result.failure.type), " ", make("code", null, result.failure.kind), ` ${result.failure.retryable ? "the same may succeed later" : "the same will fail again"}`), value(result.failure.message, "error")),
    result.warnings.length > 0 && section("Warnings and repairs", make("ul", null, result.warnings.map((each) => make("li", null, each)))),
    make(
      "div",
      { class: "sides" },
      section("Inputs", pairs(result.inputs, "input")),
      make("div", null, section("Answer", result.content === "" ? quiet("The answer is empty.") : value(result.content, "answer")), result.parsed !== null && foldable("parsed", "Parsed value", value(result.parsed, "parsed value"), false)),
      section("Target", result.target === null ? quiet("There is no target.") : value(result.target, "target"), compared && foldable("against", "Answer against the target", compared, true))
    ),
    section("Scores", scoresOf(result)),
    context.labels && context.labels.length > 0 && section("Labels of people", labelTable(context.labels)),
    transcripts.map((each, place) => transcriptOf(each, context, place)),
    timeOf(transcripts),
    section("Details", factsOf(result), Object.keys(result.metadata).length > 0 && pairs(result.metadata, "metadata"), context.command && command(context.command, "To repeat it:")),
  ];
}

function factsOf(result) {
  const usage = result.usage || {};
  return facts([
    ["template", result.template],
    ["variant", result.variant],
    ["model", result.model],
    ["epoch", whole(result.epoch)],
    ["row", whole(result.place + 1)],
    ["sample id", make("code", null, result.id)],
    ["time", seconds(result.duration_s)],
    ["started", plain(result.started).slice(0, 16).replace("T", " ")],
    ["cost", atLeast(result.interrupted_calls > 0, costOf(usage)) + (result.scoring_cost_usd ? `, scoring ${money(result.scoring_cost_usd)}` : "")],
    ["tokens in", usage.input_tokens === undefined ? "0" : short(usage.input_tokens)],
    ["tokens out", usage.output_tokens === undefined ? "0" : short(usage.output_tokens)],
    ["turns", whole(usage.turns || 0)],
    result.cached_calls > 0 && ["calls from the cache", whole(result.cached_calls)],
    result.interrupted_calls > 0 && ["interrupted calls", `${whole(result.interrupted_calls)}, which may be billed too`],
    ["identity", make("code", null, result.identity)],
    result.task !== null && ["task file", link(result.task_href || null, null, `TASK-${result.task}`)],
  ]);
}

function scoresOf(result) {
  const entries = Object.entries(result.scores);
  if (!entries.length) return quiet(result.failure ? "There are none, as there is no answer." : "There is no scorer.");
  return entries.map(([name, score], place) => {
    const verdict = score.error !== undefined ? "error" : typeof score.passed !== "boolean" ? "unscored" : score.passed ? "passed" : "failed";
    return make(
      "div",
      { class: "score" },
      make("h3", null, name, " ", badge(verdict), typeof score.value === "number" && make("span", { class: "score-value" }, short(score.value))),
      score.error !== undefined && value(score.error, "error"),
      score.explanation && value(score.explanation, "explanation"),
      score.answer !== undefined && make("p", null, "read as: ", make("code", null, score.answer)),
      score.metadata && foldable(`score-${place}`, "Metadata of the score", value(score.metadata, "metadata"), false)
    );
  });
}

function labelTable(labels) {
  const columns = [
    column("Labeller", (label) => label.labeller),
    column("Label", (label) => [badge(label.verdict), label.grade && ` ${label.grade}`, !label.grade && label.value !== null && ` ${short(label.value)}`, label.is_stale && make("div", { class: "under" }, "stale: the text has changed since")]),
    column("For", (label) => label.scorer),
    column("Note", (label) => label.note, { className: "text" }),
    column("When", (label) => label.at, { className: "measure" }),
    numeric("Took", (label) => (label.seconds ? seconds(label.seconds) : "")),
  ];
  return table({ caption: "Labels of people", columns, rows: labels, className: "list" });
}

/** A task file of a sample: its own, or that of a judge. */
function transcriptOf(transcript, context, place) {
  const name = transcript.title === "Task" ? "Conversation" : transcript.title;
  const number = `TASK-${transcript.task}`;
  const file = context.run ? link(`${context.run}${transcript.task}`, { class: "quiet" }, number) : make("span", { class: "quiet" }, number);
  const talks = transcript.conversations.map((each, at) => [
    (each.path || transcript.conversations.length > 1) && make("h3", null, each.path || "Conversation", " ", make("span", { class: "quiet" }, each.model)),
    conversation(each.messages, `${place}-${at}`),
    each.unanswered && unansweredOf(each.unanswered),
  ]);
  return make("section", null, make("h2", null, name, " ", file), transcript.problem && notice(transcript.problem), talks);
}

function unansweredOf(step) {
  return make(
    "article",
    { class: "message message-other" },
    make("h4", null, `No answer: ${step.status}`),
    step.error && notice(step.error),
    step.partial && [quiet("Partial answer"), value(step.partial, "partial answer")]
  );
}

const ROLES = ["system", "user", "assistant", "tool"];
const MAX_MESSAGES = 300;

/** Messages in their order; the result of a tool stands below its call, also one that follows in `all`. */
function conversation(messages, id, all = messages) {
  const results = new Map();
  for (const each of all) if (each.role === "tool" && each.tool_call_id) results.set(each.tool_call_id, each);
  const called = new Set(messages.flatMap((each) => toolCalls(each).map((call) => call.id)));
  const shown = messages.slice(0, MAX_MESSAGES).filter((each) => !(each.role === "tool" && called.has(each.tool_call_id)));
  return make(
    "div",
    { class: "conversation" },
    shown.map((each, place) => messageOf(each, `${id}-${place}`, results)),
    messages.length > MAX_MESSAGES && notice(`The first ${ofAll(MAX_MESSAGES, messages.length)} messages; \`evaluator tasks show --messages\` prints all.`)
  );
}

/** Images as images, where a server has them, and what is recorded of all attachments. */
function attachmentsOf(attachments) {
  const folder = page.data.attachments;
  const isImage = (each) => each && typeof each === "object" && /^image\//.test(each.media_type) && /^[0-9a-f]{64}$/.test(each.sha256);
  const images = folder && Array.isArray(attachments) ? attachments.filter(isImage) : [];
  return [
    quiet("Attached"),
    images.map((each) => make("img", { class: "attached", src: folder + each.sha256, alt: `attached: ${plain(each.source)}`, loading: "lazy" })),
    value(attachments, "attachments"),
  ];
}

function toolCalls(message) {
  return (Array.isArray(message.tool_calls) ? message.tool_calls : []).map((call) => (call && typeof call === "object" ? call : { arguments: call }));
}

function messageOf(message, id, results) {
  const role = ROLES.includes(message.role) ? message.role : "other";
  const content = message.content && value(message.content, `${role} message`);
  return make(
    "article",
    { class: `message message-${role}` },
    make("h4", null, plain(message.role) || "a message without a role"),
    message.reasoning && foldable(`reasoning-${id}`, "Reasoning", value(message.reasoning, "reasoning"), false),
    role === "system" && plain(message.content).length > 400 ? foldable(`system-${id}`, brief(message.content, 140), content, false) : content,
    !message.content && message.content_of !== undefined && quiet(`The record has no answer of ${plain(message.content_of)}.`),
    message.attachments && attachmentsOf(message.attachments),
    toolCalls(message).map((call, place) => toolCall(call, `${id}-${place}`, results))
  );
}

/** A call of a tool with its result. */
function toolCall(call, id, results) {
  const result = results.get(call.id);
  return make(
    "div",
    { class: "call" },
    make("p", null, "calls ", make("b", null, plain(call.name) || "a tool"), " ", make("span", { class: "quiet" }, plain(call.id))),
    call.arguments !== undefined && value(call.arguments, "arguments"),
    result ? make("div", { class: "call-result" }, make("p", { class: "quiet" }, "result"), result.content === "" ? quiet("empty") : value(result.content, "tool result"), result.attachments && attachmentsOf(result.attachments)) : results.size > 0 && quiet("The conversation has no result of it.")
  );
}

/** Why it took long: the calls with their attempts, failures and waits. */
function timeOf(transcripts) {
  const calls = transcripts.flatMap((each) => (each.calls || []).map((call) => ({ ...call, title: each.title })));
  if (!calls.length) return null;
  const retries = calls.filter((call) => call.attempt > 1);
  const waited = calls.reduce((sum, call) => sum + (call.backoff_s || 0), 0);
  const summary = retries.length ? `Time: ${plural(retries.length, "retry", "retries")}, ${seconds(waited)} of waiting` : `Time: ${plural(calls.length, "call")}, no retry`;
  const columns = [
    column("call", (call) => (call.title === "Task" ? call.path : `${call.title}: ${call.path}`)),
    column("name", (call) => call.name),
    column("status", (call) => [badge(call.status), call.attempt > 1 && ` attempt ${call.attempt}`]),
    numeric("waited before", (call) => (call.backoff_s ? seconds(call.backoff_s) : "")),
    numeric("took", (call) => (call.duration_s === null ? "" : seconds(call.duration_s))),
    column("error", (call) => call.error && brief(call.error, 200)),
  ];
  return make("section", null, foldable("time", summary, table({ caption: "Calls", columns, rows: calls }), retries.length > 0));
}
