// Builds the page from its data.

function main() {
  const data = JSON.parse(byId("data").textContent);
  showHeader(data);
  showSummary(data);
  showComparisons(data);
  showSamples(data);
  showOrigin(data);
  // Milliseconds since the page was requested, for measurements and for tests that wait.
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}
