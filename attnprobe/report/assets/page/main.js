// The start: unpack the numbers, build each part. A part that fails says so and leaves the others standing.

function attempt(name, build) {
  try {
    build();
  } catch (error) {
    complain(name, error);
  }
}

function complain(name, error) {
  const notice = byId("failure");
  notice.hidden = false;
  notice.textContent = t("page.failed", { part: name, error: String(error && error.message ? error.message : error) });
  console.error(error);
}

async function start() {
  document.documentElement.classList.add("scripted");
  attempt("theme", buildTheme);
  for (const table of document.querySelectorAll("main table.data")) enhanceTable(table, table.parentElement);
  await loadTables();
  attempt("atlas", buildAtlas);
  if (!page.comparison) attempt("patterns", buildPatterns);
  attempt("card", buildCard);
  if (!page.comparison) attempt("relations", buildRelations);
  attempt("best", enhanceBest);
  if (!page.comparison) attempt("layers", buildLayers);
  if (!page.comparison) attempt("clusters", buildClusters);
  window.addEventListener("scroll", () => tip.hide(), { passive: true });
  document.documentElement.dataset.ready = "yes";
  performance.mark("attnprobe-ready");
}

start().catch((error) => complain("numbers", error));
