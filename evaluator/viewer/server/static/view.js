// Pages work without this script. It updates a page of something that runs, and adds the arrow keys.

const parts = () => [...document.querySelectorAll("[data-live]")];
let tag = "";

function note(text) {
  const place = document.getElementById("connection");
  place.hidden = text === "";
  if (place.textContent !== text) place.textContent = text;
}

const isAtEnd = (each) => each.scrollTop + each.clientHeight >= each.scrollHeight - 4;

// An output is shown from its end, and follows it unless the reader scrolls up.
function showEnds() {
  for (const each of document.querySelectorAll("[data-follow]")) each.scrollTop = each.scrollHeight;
}

// Replaces a part that changes. What the reader has opened, and the focus, stay.
function replace(old, part) {
  const open = [...old.querySelectorAll("details[open][id]")].map((each) => each.id);
  const focus = old.contains(document.activeElement) && document.activeElement.id;
  const scrolled = [...old.querySelectorAll("[data-follow]")].map((each) => [each.id, each.scrollTop, isAtEnd(each)]);
  old.replaceWith(part);
  for (const [id, top, atEnd] of scrolled) {
    const each = document.getElementById(id);
    if (each) each.scrollTop = atEnd ? each.scrollHeight : top;
  }
  for (const id of open) {
    const each = document.getElementById(id);
    if (each) each.open = true;
  }
  const focused = focus && document.getElementById(focus);
  if (focused) focused.focus({ preventScroll: true });
}

async function update() {
  if (!document.hidden) {
    try {
      const answer = await fetch(location.href, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
      note(answer.ok || answer.status === 304 ? "" : `The server answers ${answer.status}; this page is not updated.`);
      if (answer.ok) {
        tag = answer.headers.get("ETag") || "";
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const old of parts()) {
          const part = page.getElementById(old.id);
          if (part) replace(old, part);
        }
        draw();
      }
    } catch {
      note("The server does not answer; this page is not updated.");
    }
  }
  schedule();
}

function schedule() {
  const wait = Math.max(0, ...parts().map((part) => Number(part.dataset.live)));
  if (wait) setTimeout(update, wait);
}

// Shows what a form gives, as it is typed. Its button works without this.
function preview(form) {
  let timer = 0;
  let last = null;
  const send = async () => {
    if (last) last.abort();
    last = new AbortController();
    const data = new URLSearchParams(new FormData(form));
    data.set("action", "render");
    try {
      const answer = await fetch(form.getAttribute("action"), { method: "POST", body: data, signal: last.signal });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const part = page.getElementById(form.dataset.preview);
      if (part) document.getElementById(form.dataset.preview).replaceWith(part);
      note(part ? "" : `The server answers ${answer.status}; the prompt is not shown.`);
    } catch (error) {
      if (error.name !== "AbortError") note("The server does not answer; the prompt is not shown.");
    }
  };
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(send, 300);
  });
}

// Asks for plots of the numbers that the page shows, unless they are drawn already.
let drawn = "";
function draw() {
  const place = document.querySelector("[data-numbers]");
  if (!place || place.dataset.numbers === drawn) return;
  drawn = place.dataset.numbers;
  document.dispatchEvent(new CustomEvent("numbers", { detail: drawn }));
}

function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
}

document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select, pre")) return;
  const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
  const link = rel && document.querySelector(`a[rel="${rel}"]`);
  if (link) link.click();
});
addEventListener("hashchange", openTarget);
openTarget();
showEnds();
addEventListener("DOMContentLoaded", draw);
document.querySelectorAll("form[data-preview]").forEach(preview);
schedule();
