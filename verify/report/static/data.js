"use strict";
// Unpacks the embedded datum: inflates it, turns "nan" and "inf" back into numbers, and finds where child rows start.

async function loadReport() {
  const holder = document.getElementById("report-data");
  const text = holder.dataset.encoding === "gzip" ? await inflate(holder.textContent) : holder.textContent;
  return unpack(JSON.parse(text));
}

async function inflate(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

const NUMBER_COLUMNS = {
  records: ["candidate_ms", "total_ms"],
  findings: ["ms"],
  comparisons: ["max_abs", "max_rel", "rms", "rel_l2", "bias", "max_ulp", "saturated", "gain_minus_1",
    "one_minus_cosine", "ratio"],
  elements: ["got", "expected", "bound", "ratio"],
};
const NON_FINITE = { nan: NaN, inf: Infinity, "-inf": -Infinity };

function unpack(report) {
  for (const [table, columns] of Object.entries(NUMBER_COLUMNS)) {
    for (const name of columns) {
      const column = report[table][name] || [];
      report[table][name] = column.map((value) => (typeof value === "string" ? NON_FINITE[value] : value));
    }
  }
  report.size = (report.records.case_id || []).length;
  report.firstFinding = starts(report.records.n_findings || []);
  report.firstComparison = starts(report.findings.n_comparisons || []);
  report.firstElement = starts(report.comparisons.n_elements || []);
  report.outcomes = report.statuses.map(([name, failing]) =>
    failing ? "fail" : { PASS: "pass", UNSUPPORTED: "skip" }[name] || "powerless");
  report.gravity = gravities(report);
  const recipes = report.vocabulary.recipe.map((text) => text.split(":")[0]);
  report.recipeNames = [...new Set(recipes)].sort();
  report.recipeName = recipes.map((name) => report.recipeNames.indexOf(name));
  report.featureNames = [...new Set(report.vocabulary.features.flat())].sort();
  report.haystacks = Array.from({ length: report.size }, (_, record) => haystack(report, record));
  return report;
}

function starts(counts) {
  const first = new Uint32Array(counts.length + 1);
  counts.forEach((count, place) => { first[place + 1] = first[place] + count; });
  return first;
}

/** Rank of each status for sorting: failures in the order of the enum, then powerless, passed, unsupported. */
function gravities(report) {
  const base = { fail: 3000, powerless: 2000, pass: 1000, skip: 0 };
  return report.statuses.map((_, code) => base[report.outcomes[code]] - code);
}

/** Everything that the free-text filter searches, in lower case. */
function haystack(report, record) {
  const { vocabulary, records, findings, comparisons } = report;
  const parts = [vocabulary.candidate[records.candidate[record]], report.statuses[records.status[record]][0],
    vocabulary.dtype[records.dtype[record]], vocabulary.shape[records.shape[record]],
    vocabulary.recipe[records.recipe[record]], ...vocabulary.features[records.features[record]],
    records.case_id[record], vocabulary.origin[records.origin[record]]];
  const route = vocabulary.route[records.route[record]];
  if (route) parts.push(route[0], route[2]);
  const texts = new Set(records.causes[record]);
  for (let f = report.firstFinding[record]; f < report.firstFinding[record + 1]; f++) {
    findings.reasons[f].forEach((code) => texts.add(code));
    for (let c = report.firstComparison[f]; c < report.firstComparison[f + 1]; c++) texts.add(comparisons.pattern[c]);
  }
  for (const code of texts) parts.push(vocabulary.text[code]);
  return parts.join(" ").toLowerCase();
}

const ACCEPTED = 1, FIXED_OK = 2, SHAPE_OK = 4, DTYPE_OK = 8;
const LIMIT_CELLS = { both_accept: 3, fixed_rejects: 1, bound_rejects: 2, both_reject: 0 };

/** Order of error/bound: NaN is worse than infinity, nothing compared is better than zero. */
function badness(value) {
  return value === null ? -1 : Number.isNaN(value) ? Number.MAX_VALUE : Math.min(value, Number.MAX_VALUE / 2);
}

function worse(one, other) {
  return badness(one) >= badness(other) ? one : other;
}
