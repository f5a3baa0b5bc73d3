// Draws the numbers of a batch as the report does; view.js says when there are new ones.

document.addEventListener("numbers", async (event) => {
  const answer = await fetch(event.detail, { cache: "no-store" });
  if (!answer.ok) return;
  const data = await answer.json();
  byId("key-figures").replaceChildren(...keyFigures(data).filter(Boolean));
  byId("plots").replaceChildren(...details(data).filter(Boolean));
  byId("plots").dataset.version = event.detail;
});
