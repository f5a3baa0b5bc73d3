// Labelling: one question after the other, answered with a key. The page has no verdict, no variant and no label
// of others until the labeller has finished.

let askedAt = 0;

function labelView(data) {
  const { question, finished } = data;
  if (data.choices) return [part("label-setup", data.choices, () => labelSetup(data))];
  if (data.problem) return [part("question", data.problem, () => [make("h1", null, data.title), alertNote(data.problem)])];
  if (finished) return [part("question", finished, () => labelResult(data)), part("label-progress", null, () => null)];
  if (!question) return [part("question", null, () => [make("h1", null, data.title), quiet("The answers are being read.")])];
  return [
    part("question", question, () => {
      askedAt = performance.now();
      return questionOf(data);
    }),
    part("label-progress", [data.count, data.needed], () => labelProgress(data)),
  ];
}

function labelSetup(data) {
  const { choices, settings } = data;
  const field = (name, title, attributes) => make("p", { class: "controls" }, labelled(title, make("input", { id: `label-${name}`, name, value: settings[name] || null, ...attributes })));
  const scorers = choices.scorers.map((name) => [name, choices.judges.includes(name) ? `${name} (a model judges)` : name]);
  const only = choices.judges.length === 1 ? choices.judges[0] : scorers[0]?.[0];
  const subjects = [["", "whether an answer is right"], ...choices.sides.map(([key, names]) => [key, `which is better: ${names}`])];
  return [
    make("h1", null, data.title),
    make("p", null, "You see the inputs, the target, the criteria and the answer. The verdict, the model and the labels of others are shown when you have finished. Answers are drawn at random. Each label is stored at once; stop at any time."),
    scorers.length === 0 && choices.sides.length === 0 && notice("The batch has no scorer, and no two variants to compare."),
    make(
      "form",
      { method: "get", action: data.href },
      field("labeller", "Your name", { required: true, maxlength: 200, autocomplete: "name" }),
      choices.sides.length > 0 && make("p", { class: "controls" }, labelled("Decide", select("sides", subjects, settings.sides))),
      scorers.length > 0 && make("p", { class: "controls" }, labelled("Question of", select("scorer", scorers, settings.scorer || only))),
      field("precision", "Stop when the share is known to ± points", { type: "number", min: 0.1, max: 50, step: 0.1, value: settings.precision || choices.precision }),
      make("p", null, make("button", null, "Begin"))
    ),
  ];
}

function questionOf(data) {
  const { question } = data;
  const answers = question.sections.slice(-question.answers);
  const sectionOf = ([name, text], kind) => make("section", { class: kind }, make("h2", null, name), text === "" ? quiet("empty") : value(text, name));
  return [
    make("h1", { id: "asked", tabindex: "-1" }, answers.length > 1 ? "Which answer is better?" : "Is the answer right?"),
    make("div", { class: "sides" }, question.sections.slice(0, -answers.length).map((each) => sectionOf(each, null))),
    make("div", { class: "sides" }, answers.map((each) => sectionOf(each, "asked"))),
    make(
      "div",
      { class: "answers", role: "group", "aria-label": "Answers" },
      question.choices.map(([key, meaning]) => keyButton(key, meaning, () => answerWith(data, { action: "label", answer: key }))),
      question.has_value && make("form", { class: "keyed", submit: (event) => sendValue(event, data) }, make("kbd", null, "v"), " ", make("input", { id: "label-value", "data-key": "v", type: "number", min: 0, max: 1, step: "any", "aria-label": "a value from 0 to 1", placeholder: "0 to 1", keydown: leave })),
      keyButton("s", "skip", () => answerWith(data, { action: "skip" })),
      keyButton("u", "undo", () => answerWith(data, { action: "undo" })),
      keyButton("q", "finish", () => visitLocal(addressWith({ finish: "1", question: null })))
    ),
    make("p", { class: "keyed" }, make("kbd", null, "n"), " ", make("input", { id: "label-note", "data-key": "n", maxlength: 10_000, placeholder: "note for this label", "aria-label": "note for this label", keydown: leave })),
  ];
}

/** Enter and Escape return from a field to the keys. */
function leave(event) {
  if (event.key === "Escape" || (event.key === "Enter" && event.target.id === "label-note")) {
    event.preventDefault();
    byId("asked").focus();
  }
}

function keyButton(key, text, click) {
  return make("button", { type: "button", click, "data-key": key, "aria-keyshortcuts": key }, make("kbd", { "aria-hidden": "true" }, key), " ", text);
}

function sendValue(event, data) {
  event.preventDefault();
  const typed = byId("label-value").value;
  if (typed !== "") answerWith(data, { action: "label", answer: typed });
}

let isSending = false;

/** Stores an answer and shows the next question. A second key is not an answer to a question that is not shown yet. */
async function answerWith(data, fields) {
  if (isSending) return;
  isSending = true;
  const { question } = data;
  const asked = { question: question.id, shown: question.shown, note: byId("label-note").value, seconds: (performance.now() - askedAt) / 1000, token: data.token };
  try {
    const answer = await fetch(data.href, { method: "POST", body: new URLSearchParams({ ...data.settings, ...asked, ...fields }), headers: { Accept: "application/json" } });
    const next = await answer.json();
    note(answer.ok ? "" : next.message);
    if (answer.ok) {
      const { pathname, search } = new URL(answer.url);
      history.replaceState(null, "", pathname + search);
      page.search = search;
      show(next);
      announce({ label: "Stored.", skip: "Skipped.", undo: "Withdrawn." }[fields.action]);
      (byId("asked") || byId("main")).focus();
      scrollTo(0, 0);
    }
  } catch {
    note("The server does not answer; the label may not be stored. Start `evaluator view` again and open its address.");
  }
  isSending = false;
}

function labelProgress({ count, needed }) {
  const rest = needed === null ? "" : needed ? `; about ${whole(needed)} more for the precision` : "; the precision is reached";
  return make("p", { class: "count", role: "status" }, `${plural(count, "label")} of yours${rest}`);
}

/** What was hidden. */
function labelResult(data) {
  const { finished } = data;
  const columns = [
    column("Sample", (label) => link(label.href, null, label.title), { className: "name" }),
    column("Answer of", (label) => label.cell, { className: "name" }),
    column("Your label", (label) => badge(label.verdict, label.label)),
    column("Scorer", (label) => label.judge && [badge(label.judge), ["passed", "failed"].includes(label.verdict) && label.verdict !== label.judge && make("b", null, " differs")]),
    column("Note", (label) => label.note, { className: "text" }),
  ];
  return [
    make("h1", null, data.title),
    finished.lines.map((line) => make("p", null, line)),
    make("p", null, link(addressWith({ finish: null }), null, "Continue"), " · ", link(data.batch, null, "The batch")),
    section("Labels and verdicts", finished.tables.map(textTable)),
    section("Your labels", finished.count > finished.labels.length && remark(`The last ${ofAll(finished.labels.length, finished.count)}.`), table({ caption: "Your labels", columns, rows: finished.labels, className: "list" })),
  ];
}
