// The sample filter: the controls above the table, and whether a sample matches them.

const MAX_CHOICES = 60;

/** A sample as an object, from the array that the page holds. */
function samplesOf(data) {
  const fields = data.fields;
  return data.samples.flatMap((list, batch) =>
    list.map((cells) => {
      const sample = { batch };
      for (let place = 0; place < fields.length; place++) sample[fields[place]] = cells[place];
      const [template, variant] = data.batches[batch].groups[sample.group];
      sample.template = template;
      sample.variant = variant;
      sample.verdict = data.verdicts[sample.verdict];
      return sample;
    })
  );
}

function emptyFilter() {
  return { verdicts: new Set(), batch: "", template: "", variant: "", scorer: "", outcome: "", field: "", value: "", text: "" };
}

function fits(sample, filter, words) {
  if (filter.verdicts.size && !filter.verdicts.has(sample.verdict)) return false;
  if (filter.batch !== "" && sample.batch !== Number(filter.batch)) return false;
  if (filter.template !== "" && `=${sample.template}` !== filter.template) return false;
  if (filter.variant !== "" && `=${sample.variant}` !== filter.variant) return false;
  if (filter.scorer !== "" && !scorerFits(sample, filter)) return false;
  if (filter.field !== "" && filter.value !== "" && `=${plain(own(sample.metadata, filter.field.slice(1)))}` !== filter.value) return false;
  return words.every((word) => searched(sample).includes(word));
}

function scorerFits(sample, filter) {
  const name = filter.scorer.slice(1);
  const score = own(sample.scores, name);
  if (score === undefined) return filter.outcome === "absent";
  switch (filter.outcome) {
    case "passed":
      return score.passed === true;
    case "failed":
      return score.passed === false;
    case "error":
      return score.error !== undefined;
    case "unscored":
      return score.error === undefined && score.passed === undefined;
    case "absent":
      return false;
    default:
      return true;
  }
}

/** The text that a search looks through; built once, at the first search. */
function searched(sample) {
  if (sample.searched === undefined) {
    const scores = Object.values(sample.scores).map((score) => [score.answer, score.explanation, score.error]);
    const parts = [sample.id, sample.title, sample.inputs, sample.target, sample.metadata, sample.content, sample.failure, scores, sample.model];
    sample.searched = parts.map((part) => plain(part)).join("\n").toLowerCase();
  }
  return sample.searched;
}

/** The values that a select offers, the most frequent first; none if there are too many. */
function choicesOf(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}

function metadataFields(samples) {
  const fields = new Map();
  for (const sample of samples) {
    for (const [name, value] of Object.entries(sample.metadata)) {
      if (!fields.has(name)) fields.set(name, new Set());
      if (fields.get(name).size <= MAX_CHOICES) fields.get(name).add(plain(value));
    }
  }
  return [...fields].filter(([, values]) => values.size <= MAX_CHOICES).map(([name]) => name);
}

/** The controls. `changed` is called after each change of `filter`; `last` is one more control. Values carry "=" so that "" is "any". */
function controls(data, samples, filter, changed, last) {
  const set = (name) => (event) => {
    filter[name] = event.target.value;
    changed();
  };
  const scorers = [...new Set(samples.flatMap((sample) => Object.keys(sample.scores)))];
  const value = make("select", { "aria-label": "metadata value", hidden: true, change: set("value") });
  const pickField = (event) => {
    filter.field = event.target.value;
    filter.value = "";
    const name = filter.field.slice(1);
    value.hidden = filter.field === "";
    const found = value.hidden ? [] : choicesOf(samples.map((sample) => plain(own(sample.metadata, name))));
    value.replaceChildren(option("", "any value"), ...found.map(([text, count]) => option(`=${text}`, `${text || "(none)"} (${whole(count)})`)));
    changed();
  };
  const outcome = make("select", { "aria-label": "outcome of the scorer", hidden: true, change: set("outcome") }, [
    option("", "any outcome"), option("passed", "passed"), option("failed", "failed"), option("error", "scorer error"),
    option("unscored", "could not judge"), option("absent", "not scored by it"),
  ]);
  const pickScorer = (event) => {
    filter.scorer = event.target.value;
    outcome.hidden = filter.scorer === "";
    changed();
  };
  let waiting = 0;
  const type = (event) => {
    filter.text = event.target.value;
    clearTimeout(waiting);
    waiting = setTimeout(changed, 120);
  };
  return make(
    "form",
    { class: "controls", "aria-label": "Filter the samples", submit: (event) => event.preventDefault() },
    verdictBoxes(samples, filter, changed),
    make("input", { type: "search", id: "search", placeholder: "search in texts", "aria-label": "search in texts", input: type }),
    pick("batch", data.batches.map((batch, place) => [String(place), batch.name]), set("batch")),
    pick("template", choicesOf(samples.map((sample) => sample.template)).map(([text]) => [`=${text}`, text]), set("template")),
    pick("variant", choicesOf(samples.map((sample) => sample.variant)).map(([text]) => [`=${text}`, text]), set("variant")),
    pick("scorer", scorers.map((text) => [`=${text}`, text]), pickScorer, 1),
    outcome,
    pick("metadata", metadataFields(samples).map((text) => [`=${text}`, text]), pickField, 1),
    value,
    last
  );
}

function verdictBoxes(samples, filter, changed) {
  const counts = new Map(choicesOf(samples.map((sample) => sample.verdict)));
  const boxes = VERDICTS.map((verdict) => {
    const toggle = (event) => {
      if (event.target.checked) filter.verdicts.add(verdict);
      else filter.verdicts.delete(verdict);
      changed();
    };
    return make(
      "label",
      { class: "box" },
      make("input", { type: "checkbox", name: "verdict", value: verdict, change: toggle }),
      make("i", { class: `key key-${verdict}` }),
      `${verdict} ${whole(counts.get(verdict) || 0)}`
    );
  });
  return make("fieldset", null, make("legend", { class: "heard" }, "verdict"), boxes);
}

/** A select; nothing if there are fewer than `least` choices. */
function pick(label, choices, change, least) {
  if (choices.length < (least || 2)) return null;
  return make("select", { "aria-label": label, name: label, change }, option("", `any ${label}`), choices.map(([value, text]) => option(value, text || "(none)")));
}

function option(value, text) {
  return make("option", { value }, text);
}
