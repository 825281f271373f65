"use strict";
// Connects the parts: one filter state, from which the table, the charts and the matrix marks are redrawn.

async function start() {
  const report = await loadReport();
  const byId = (id) => document.getElementById(id);
  const table = new CaseTable(report, byId("cases-table"), byId("pager"));
  const metric = byId("metric");
  metric.append(...Object.entries(METRICS).map(([value, words]) => element("option", { value }, words)));
  const candidateOf = (row) => report.records.candidate[row.record];
  const recipeOf = (row) => report.recipeName[report.records.recipe[row.record]];
  let rows = [];

  const drawPlots = () => {
    const names = report.vocabulary.candidate;
    drawStrips(report, rows, metric.value, candidateOf, names, byId("plot-candidate"), 600);
    drawStrips(report, rows, metric.value, recipeOf, report.recipeNames, byId("plot-recipe"), 600);
    for (const name of ["max_abs", "max_rel", "one_minus_cosine"]) {
      drawStrips(report, rows, name, candidateOf, names, byId(`plot-${name}`), 420);
    }
  };
  const drawMap = () => drawMatrix(report, byId("matrix-by").value, filters, byId("matrix-table"));
  let pending = 0;
  const changed = () => {
    rows = filters.rows();
    filters.count.textContent = `${rows.length} of ${report.size} cases`;
    table.show(rows);
    // Charts wait until typing pauses: the table must follow each key.
    clearTimeout(pending);
    pending = setTimeout(() => {
      drawMap();
      drawPlots();
      drawLimits(report, rows, filters, byId("limits-table"));
      document.body.dataset.ready = String(rows.length);
    }, 120);
  };

  const filters = new Filters(report, byId("filters"), changed);
  metric.addEventListener("input", drawPlots);
  byId("matrix-by").addEventListener("input", drawMap);
  for (const button of document.querySelectorAll("#failures button")) {
    button.addEventListener("click", () => {
      filters.set({ group: `=${report.groups[button.dataset.group]}` });
      byId("cases").scrollIntoView();
    });
  }
  byId("kept").textContent = keptText(report);
  changed();
}

/** What a large run left out of the page, rejected comparisons having been served first. */
function keptText({ kept, wanted }) {
  return ["elements", "maps"].filter((name) => kept[name] < wanted[name]).map((name) =>
    `This page carries ${kept[name]} of ${wanted[name]} ${name === "maps" ? "error maps" : "worst elements"}; `
    + "rejected comparisons come first, the replay command shows the others.").join(" ");
}

start().catch((error) => {
  const message = document.getElementById("load-error");
  message.textContent = `The report's data could not be shown (${error}). A browser from 2023 or later is needed.`;
  message.hidden = false;
});
