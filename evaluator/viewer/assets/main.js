// Shows the page whose JSON is in the document, keeps it up to date, and moves between its states.
//
// A view returns the parts of its page. When new data arrives, only the parts whose data has changed are
// drawn again: what the reader opened, scrolled to or typed elsewhere stays.

const VIEWS = {
  start: startView, search: searchView, batches: batchesView, batch: batchView, sample: sampleView, compare: compareView,
  runs: runsView, run: runView, queue: queueView, entry: entryView, background: backgroundView, task: taskView,
  templates: templatesView, template: templateView, improvement: improvementView, label: labelView, problem: problemView, report: reportView,
};
const SECTIONS = {
  "/": ["Start", "start"], "/batches": ["Batches", "batches", "batch", "sample", "label", "improvement"], "/runs": ["Runs", "runs", "run"],
  "/compare": ["Compare", "compare"], "/queue": ["Queue", "queue", "entry"],
  "/background": ["Background", "background", "task"], "/templates": ["Templates", "templates", "template"],
};
const page = { data: null, parts: new Map(), tag: "", timer: 0, search: location.search };

/** A part of a page: its id, its data, and how it is drawn from them. */
function part(id, source, draw) {
  return { id, source, draw };
}

/** Whether a server answers, as opposed to a report, whose state is in the fragment of its address. */
function isServed() {
  return page.data.view !== "report";
}

function conditions() {
  return new URLSearchParams(isServed() ? location.search : location.hash.slice(1));
}

/** The address of this page with other conditions; `null` or "" removes one. */
function addressWith(changes) {
  const params = conditions();
  if (!("page" in changes)) params.delete("page");
  for (const [name, each] of Object.entries(changes)) {
    if (each === null || each === undefined || each === "") params.delete(name);
    else params.set(name, String(each));
  }
  return isServed() ? `?${params}` : `#${params}`;
}

function go(changes) {
  visitLocal(addressWith(changes));
}

async function visitLocal(href) {
  if (!isServed()) {
    location.hash = href;
    return;
  }
  history.pushState(null, "", href);
  await refresh(true);
}

function show(data) {
  const before = page.data;
  begin(data).forEach(update);
  if (before) announceEnd(before, data);
}

/** Makes the frame of a page, if it is another one. Returns: its parts. */
function begin(data) {
  const before = page.data;
  page.data = data;
  document.title = `${data.title}${isServed() ? " · evaluator" : ""}`;
  if (!before || before.view !== data.view) build();
  return VIEWS[data.view](data).flat().filter(Boolean);
}

function build() {
  page.parts.clear();
  byId("page")?.remove();
  const main = make("main", { id: "main", tabindex: "-1" }, make("div", { id: "parts" }));
  const announcement = make("p", { id: "announcement", class: "announcement", role: "status" });
  const connection = make("p", { id: "connection", class: "notice announcement", role: "status", hidden: true });
  document.body.prepend(
    make("div", { id: "page" }, make("a", { class: "skip", href: "#main", click: () => byId("main").focus() }, "Skip to the content"), isServed() && bar(), main, announcement, connection)
  );
}

function bar() {
  const links = Object.entries(SECTIONS).map(([href, [title, ...views]]) =>
    link(href, { "aria-current": views.includes(page.data.view) ? "true" : null }, title)
  );
  return make(
    "header",
    { class: "bar" },
    make("span", { class: "brand" }, make("b", null, "evaluator"), " ", make("span", { class: "project" }, page.data.project)),
    make("nav", { "aria-label": "Pages" }, links),
    make(
      "form",
      { class: "find", method: "get", action: "/search", role: "search" },
      make("input", { type: "search", id: "find", name: "text", placeholder: "Search everything  /", "aria-label": "search everything", "aria-keyshortcuts": "/" })
    )
  );
}

/** Draws a part, unless its data are those that it shows already. */
function update({ id, source, draw }) {
  const text = JSON.stringify(source === undefined ? null : source);
  const known = page.parts.get(id);
  if (known && known.text === text) return;
  const old = known && known.element;
  const element = make("div", { id, class: "part" }, draw(source));
  page.parts.set(id, { text, element });
  if (old) replace(old, element);
  else byId("parts").append(element);
  followEnds(element, old);
}

/** What the reader has opened and typed, and the focus, stay. */
function replace(old, element) {
  const opened = new Map([...old.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  const typed = [...old.querySelectorAll("input[type=search][id], textarea[id]")].filter((each) => each.value !== each.defaultValue);
  const sideways = [...old.querySelectorAll(".wide")].map((each) => each.scrollLeft);
  const ends = new Map([...old.querySelectorAll("[data-follow]")].map((each) => [each.id, isAtEnd(each) ? null : each.scrollTop]));
  old.replaceWith(element);
  for (const [id, isOpen] of opened) {
    const each = byId(id);
    if (each && each.open !== isOpen) each.open = isOpen;
  }
  [...element.querySelectorAll(".wide")].forEach((each, place) => (each.scrollLeft = sideways[place] || 0));
  for (const [id, top] of ends) {
    const each = byId(id);
    if (each) each.dataset.top = top === null ? "" : String(top);
  }
  const again = focused && byId(focused);
  if (again) again.focus({ preventScroll: true });
  for (const { id, value: text } of typed) {
    const each = byId(id);
    if (each) each.value = text;
  }
}

const isAtEnd = (each) => each.scrollTop + each.clientHeight >= each.scrollHeight - 4;

// An output is shown from its end, and follows it unless the reader scrolls up.
function followEnds(element) {
  for (const each of element.querySelectorAll("[data-follow]")) each.scrollTop = each.dataset.top ? Number(each.dataset.top) : each.scrollHeight;
}

// -- news ------------------------------------------------------------------------------------------------

function note(text) {
  const place = byId("connection");
  place.hidden = text === "";
  if (place.textContent !== text) place.textContent = text;
}

let quietTimer = 0;

/** Says something to the reader, also to a screen reader. */
function announce(text) {
  byId("announcement").textContent = text;
  clearTimeout(quietTimer);
  quietTimer = setTimeout(() => (byId("announcement").textContent = ""), 8_000);
}

function stateOf(data) {
  if (data.control?.form?.is_paused) return "paused";
  return data.progress ? data.progress.state : data.status || "";
}

const UNDER_WAY = ["running", "pending", "paused"];

/** Says that what ran has ended or is paused. */
function announceEnd(before, data) {
  const state = stateOf(data);
  const isNews = state === "paused" ? stateOf(before) !== state : !UNDER_WAY.includes(state);
  if (!UNDER_WAY.includes(stateOf(before)) || !isNews || !state) return;
  const text = `${data.title} is ${state}${data.progress ? `: ${countsText(data.progress.counts)}` : ""}`;
  announce(text);
  document.title = `(${state}) ${document.title}`;
  if (page.notifies && Notification.permission === "granted") new Notification(`evaluator: ${data.title}`, { body: text });
}

/** A button that asks the browser for a notification when what runs has ended. */
function notifyButton(data) {
  if (!UNDER_WAY.includes(stateOf(data)) || !("Notification" in window)) return null;
  const ask = async (event) => {
    page.notifies = (await Notification.requestPermission()) === "granted";
    announce(page.notifies ? "You are notified when it ends." : "The browser does not allow notifications.");
    event.target.setAttribute("aria-pressed", String(page.notifies));
  };
  return make("button", { type: "button", id: "notify", click: ask, "aria-pressed": String(Boolean(page.notifies)) }, "Notify me when it ends");
}

async function refresh(isNew) {
  clearTimeout(page.timer);
  const asked = location.href;
  try {
    const headers = { Accept: "application/json", ...(page.tag && !isNew ? { "If-None-Match": page.tag } : {}) };
    const answer = await fetch(location.pathname + location.search, { headers, cache: "no-store" });
    note(answer.ok || answer.status === 304 ? "" : `The server answers ${answer.status}; this page is not updated.`);
    if (answer.ok) {
      const data = await answer.json();
      if (location.href === asked) {
        page.tag = answer.headers.get("ETag") || "";
        page.search = location.search;
        show(data);
      }
    }
  } catch {
    note("The server does not answer; this page is not updated.");
  }
  schedule();
}

function schedule() {
  clearTimeout(page.timer);
  if (!isServed() || !page.data.live_ms) return;
  page.timer = setTimeout(() => (document.hidden ? schedule() : refresh(false)), page.data.live_ms);
}

// -- keys ------------------------------------------------------------------------------------------------

const KEYS = { ArrowLeft: "prev", ArrowRight: "next", k: "prev", j: "next", u: "up" };

function pressed(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select, dialog")) return;
  if (event.key.startsWith("Arrow") && event.target.closest("pre, .wide, [role=tree], [role=tablist]")) return;
  if (event.key === "/" && byId("find")) {
    byId("find").focus();
    event.preventDefault();
  }
  const answers = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  const rel = own(KEYS, event.key);
  const found = answers || (rel && document.querySelector(`a[rel="${rel}"]`));
  if (!found) return;
  if (found.matches("input, textarea")) {
    found.focus();
    event.preventDefault();
  } else found.click();
}

function clicked(event) {
  if (event.button || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || event.defaultPrevented) return;
  const found = event.target.closest("a[data-local]");
  if (!found) return;
  event.preventDefault();
  visitLocal(found.getAttribute("href"));
}

/** Draws the head of the page before the rest, which takes longer. A hidden page has no frames to wait for. */
function start() {
  const [head, ...rest] = begin(JSON.parse(byId("data").textContent));
  update(head);
  if (document.hidden) finish(rest);
  else requestAnimationFrame(() => setTimeout(() => finish(rest)));
}

function finish(rest) {
  rest.forEach(update);
  document.addEventListener("keydown", pressed);
  document.addEventListener("click", clicked);
  // A change of the fragment alone needs no other data.
  addEventListener("popstate", () => isServed() && location.search !== page.search && refresh(true));
  addEventListener("hashchange", () => show(page.data));
  addEventListener("pageshow", (event) => event.persisted && isServed() && refresh(true));
  byId(location.hash.slice(1))?.scrollIntoView();
  schedule();
  // Milliseconds since the page was requested, for measurements and for tests that wait.
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start();
