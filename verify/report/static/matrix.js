"use strict";
// Candidates against checks, dtypes, features, recipes or tensors. It always counts the whole run: it is the map.

function emptyTally() {
  return { pass: 0, fail: 0, skip: 0, powerless: 0, ratio: null };
}

function countMatrix(report, by) {
  const cells = new Map();
  const columns = new Map();
  const count = (record, column, status, ratio) => {
    const key = `${report.records.candidate[record]} ${column}`;
    columns.set(column, true);
    if (!cells.has(key)) cells.set(key, emptyTally());
    const tally = cells.get(key);
    tally[typeof status === "string" ? status : report.outcomes[status]]++;
    tally.ratio = worse(ratio, tally.ratio);
  };
  for (let record = 0; record < report.size; record++) COUNTERS[by](report, record, count);
  return { cells, columns: [...columns.keys()].sort((one, other) => one - other) };
}

const COUNTERS = {
  check(report, record, count) {
    for (let f = report.firstFinding[record]; f < report.firstFinding[record + 1]; f++) {
      let ratio = null;
      for (let c = report.firstComparison[f]; c < report.firstComparison[f + 1]; c++) {
        ratio = worse(report.comparisons.ratio[c], ratio);
      }
      count(record, report.findings.check[f], report.findings.status[f], ratio);
    }
  },
  tensor(report, record, count) {
    const last = report.firstComparison[report.firstFinding[record + 1]];
    for (let c = report.firstComparison[report.firstFinding[record]]; c < last; c++) {
      const outcome = report.comparisons.flags[c] & ACCEPTED ? "pass" : "fail";
      count(record, report.comparisons.tensor[c], outcome, report.comparisons.ratio[c]);
    }
  },
  dtype(report, record, count) {
    count(record, report.records.dtype[record], report.records.status[record], recordRatio(report, record));
  },
  recipe(report, record, count) {
    const recipe = report.recipeName[report.records.recipe[record]];
    count(record, recipe, report.records.status[record], recordRatio(report, record));
  },
  feature(report, record, count) {
    const names = report.vocabulary.features[report.records.features[record]];
    const columns = names.length ? names.map((name) => report.featureNames.indexOf(name)) : [-1];
    const ratio = recordRatio(report, record);
    columns.forEach((column) => count(record, column, report.records.status[record], ratio));
  },
};

function recordRatio(report, record) {
  let ratio = null;
  const last = report.firstComparison[report.firstFinding[record + 1]];
  for (let c = report.firstComparison[report.firstFinding[record]]; c < last; c++) {
    ratio = worse(report.comparisons.ratio[c], ratio);
  }
  return ratio;
}

function columnNames(report, by) {
  return { check: report.vocabulary.check, tensor: report.vocabulary.tensor, dtype: report.vocabulary.dtype,
    recipe: report.recipeNames, feature: report.featureNames }[by];
}

function drawMatrix(report, by, filters, holder) {
  const { cells, columns } = countMatrix(report, by);
  const names = columnNames(report, by);
  const word = (column) => (column === -1 ? "no feature" : names[column]);
  const head = [element("td", {}), ...columns.map((column) => element("th", { scope: "col" }, word(column)))];
  const rows = report.vocabulary.candidate.map((candidate, row) =>
    element("tr", {}, element("th", { scope: "row" }, candidate), columns.map((column) => {
      const tally = cells.get(`${row} ${column}`);
      return element("td", {}, tally ? matrixCell(tally, candidate, by, word(column), column, filters) : null);
    })));
  holder.replaceChildren(element("table", { class: "matrix" },
    element("thead", {}, element("tr", {}, head)), element("tbody", {}, rows)));
}

function matrixCell(tally, candidate, by, word, column, filters) {
  const kinds = ["fail", "pass", "powerless", "skip"].filter((kind) => tally[kind]);
  const counts = kinds.map((kind) => element("span", { class: kind }, `${GLYPHS[kind]} ${tally[kind]}`));
  const spoken = kinds.map((kind) => `${tally[kind]} ${OUTCOME_WORDS[kind]}`).join(", ");
  const ratio = tally.ratio === null ? "" : `worst ${formatNumber(tally.ratio)}`;
  const values = { candidate: `=${candidate}`, [by]: column === -1 ? "*none" : `=${word}` };
  const pressed = ["candidate", by].every((name) => filters.get(name) === values[name]);
  return element("button", { type: "button", class: kinds[0], "aria-pressed": String(pressed),
    "data-candidate": candidate, "data-column": word,
    "aria-label": `${candidate}, ${word}: ${spoken}${ratio && `, ${ratio}`}`,
    onclick: () => filters.set(pressed ? {} : values) },
  element("span", { class: "counts" }, counts), element("small", {}, ratio));
}
