"use strict";
// What a row of the table expands to: replay command, causes, every finding with every comparison, error maps.

function detailOf(report, record) {
  const { vocabulary, records } = report;
  const caseId = records.case_id[record];
  const command = replayCommand(caseId, vocabulary.candidate[records.candidate[record]]);
  const copied = element("button", { type: "button", class: "copy",
    onclick: async () => { await copyText(command); copied.textContent = "Copied"; } }, "Copy");
  const causes = records.causes[record].map((code) => element("li", {}, vocabulary.text[code]));
  const findings = [];
  for (let f = report.firstFinding[record]; f < report.firstFinding[record + 1]; f++) {
    findings.push(findingOf(report, f));
  }
  return element("div", { class: "inner" },
    element("div", { class: "replay" }, element("code", {}, command), copied),
    causes.length ? element("div", {}, element("h4", {}, "Likely causes"), element("ol", {}, causes)) : null,
    recordFacts(report, record), findings.length ? findings : element("p", {}, "No check ran."));
}

function recordFacts(report, record) {
  const { vocabulary, records } = report;
  const route = vocabulary.route[records.route[record]];
  const facts = { shape: vocabulary.shape[records.shape[record]], recipe: vocabulary.recipe[records.recipe[record]],
    features: vocabulary.features[records.features[record]].join(", ") || "none",
    origin: vocabulary.origin[records.origin[record]], route: route ? routeText(route) : "no reply",
    source: vocabulary.source[records.source[record]], run: vocabulary.run[records.run[record]],
    started: records.started_at[record],
    time: `candidate ${formatNumber(records.candidate_ms[record])} ms of ${formatNumber(records.total_ms[record])} ms` };
  return element("dl", { class: "facts inline" }, Object.entries(facts).map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function routeText([backend, asked, reason, details]) {
  const fallback = (asked && asked !== backend) || reason;
  const facts = details.map(([name, value]) => `${name} ${value}`).join(", ");
  return backend + (fallback ? `, a fallback from ${asked || backend}: ${reason || "no reason given"}` : "")
    + (facts && ` (${facts})`);
}

function findingOf(report, f) {
  const { vocabulary, findings } = report;
  const status = findings.status[f];
  const reasons = findings.reasons[f].map((code) => element("li", {}, vocabulary.text[code]));
  const places = [];
  for (let c = report.firstComparison[f]; c < report.firstComparison[f + 1]; c++) places.push(c);
  return element("div", { class: "finding" },
    element("h3", {}, vocabulary.check[findings.check[f]], badge(report.outcomes[status], report.statuses[status][0]),
      findings.ms[f] ? element("span", { class: "dim" }, `${formatNumber(findings.ms[f])} ms`) : null),
    reasons.length ? element("ul", {}, reasons) : null,
    places.length ? element("div", { class: "scroll" }, comparisonTable(report, places)) : null,
    places.map((c) => evidence(report, c)));
}

function comparisonTable(report, places) {
  const { vocabulary, comparisons: all } = report;
  const headings = ["tensor", "bound", "error/bound", "exceeding", "max abs", "max rel", "rms", "rel L2", "gain",
    "bias", "cosine", "max ulp", "NaN/+inf/−inf mismatch", "NaN/inf returned", "saturated", "fixed limits",
    "shape, dtype"];
  const verdict = (yes, words) => badge(yes ? "pass" : "fail", words[yes ? 0 : 1]);
  const rows = places.map((c) => {
    const flags = all.flags[c];
    const shape = `${flags & SHAPE_OK ? "" : "shape differs "}${flags & DTYPE_OK ? "" : "dtype differs"}`.trim();
    return [vocabulary.tensor[all.tensor[c]], verdict(flags & ACCEPTED, ["accepts", "rejects"]),
      formatNumber(all.ratio[c], 4), `${all.n_exceeding[c]} of ${all.n_total[c]}`, formatNumber(all.max_abs[c]),
      formatNumber(all.max_rel[c]), formatNumber(all.rms[c]), formatNumber(all.rel_l2[c]),
      formatNearOne(all.gain_minus_1[c]), formatNumber(all.bias[c]), formatNearOne(-all.one_minus_cosine[c]),
      formatNumber(all.max_ulp[c]),
      `${all.nan_mismatch[c]}/${all.posinf_mismatch[c]}/${all.neginf_mismatch[c]}`,
      `${all.nan_count[c]}/${all.inf_count[c]}`, formatShare(all.saturated[c]),
      verdict(flags & FIXED_OK, ["accept", "reject"]), shape || "ok"];
  });
  return tableOf(headings, rows, { class: "comparisons" });
}

/** Pattern, error map and worst elements; folded away for a comparison that the bound accepts. */
function evidence(report, c) {
  const { comparisons, vocabulary } = report;
  const parts = [];
  if (comparisons.map[c]) parts.push(errorMap(report, c));
  if (comparisons.n_elements[c]) parts.push(worstElements(report, c));
  const tensor = vocabulary.tensor[comparisons.tensor[c]];
  const pattern = vocabulary.text[comparisons.pattern[c]];
  const body = element("div", { class: "evidence" }, parts);
  if (comparisons.flags[c] & ACCEPTED) {
    return parts.length ? element("details", {}, element("summary", {}, `${tensor}: worst elements`), body) : null;
  }
  return element("div", {}, element("h4", {}, `${tensor}: where it exceeds`),
    pattern ? element("p", {}, pattern) : null, body);
}

function worstElements(report, c) {
  const { elements } = report;
  const rows = [];
  for (let e = report.firstElement[c]; e < report.firstElement[c + 1]; e++) {
    rows.push([elements.index[e].join(", "), elements.tile[e].join(", "), formatNumber(elements.got[e], 9),
      formatNumber(elements.expected[e], 9), formatNumber(elements.bound[e]), formatNumber(elements.ratio[e], 4)]);
  }
  return element("figure", {}, element("figcaption", {}, `Worst elements (${rows.length})`),
    tableOf(["index", "tile", "got", "expected", "bound", "error/bound"], rows, { class: "elements" }));
}

const MAP_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
const MAP_CLASSES = [[1 / 64, "to 1/64"], [1 / 16, "to 1/16"], [1 / 4, "to 1/4"], [1, "to 1 (accepted)"],
  [4, "to 4"], [16, "to 16"], [64, "to 64"], [Infinity, "above"]];

/** error/bound of one character of a map; NaN where nothing was compared. */
function mapCell(character) {
  if (character === ".") return NaN;
  if (character === "!") return Infinity;
  return 2 ** (MAP_ALPHABET.indexOf(character) / 3 - 8);
}

function mapClass(ratio) {
  if (Number.isNaN(ratio)) return "none";
  return ratio === Infinity ? "cell8" : `cell${MAP_CLASSES.findIndex(([limit]) => ratio <= limit)}`;
}

function errorMap(report, c) {
  const { comparisons, vocabulary } = report;
  const rows = comparisons.map[c].split(",");
  const columns = Math.max(...rows.map((row) => row.length));
  const [rowAxis, columnAxis] = comparisons.axes[c].map((code) => vocabulary.text[code]);
  const cell = Math.max(6, Math.min(22, Math.floor(320 / Math.max(rows.length, columns))));
  const marks = [];
  rows.forEach((row, y) => [...row].forEach((character, x) => {
    const ratio = mapCell(character);
    const words = Number.isNaN(ratio) ? "nothing compared" : `error/bound about ${formatNumber(ratio, 2)}`;
    marks.push(svg("rect", { x, y, width: 0.94, height: 0.94, class: mapClass(ratio) },
      svg("title", {}, `${rowAxis || "row"} bucket ${y}, ${columnAxis || "column"} bucket ${x}: ${words}`)));
  }));
  const label = `Error map of ${vocabulary.tensor[comparisons.tensor[c]]}: ${rows.length} by ${columns} buckets`;
  const picture = svg("svg", { class: "map", role: "img", "aria-label": label, width: columns * cell,
    height: rows.length * cell, viewBox: `0 0 ${columns} ${rows.length}` }, marks);
  return element("figure", {}, element("figcaption", {},
    `Largest error/bound; down: ${rowAxis || "row"}, across: ${columnAxis || "column"}`), picture, mapLegend());
}

function mapLegend() {
  const entries = [...MAP_CLASSES.map(([, words]) => words), "inf"];
  return element("div", { class: "legend" }, "error/bound", entries.map((words, place) => element("span", {},
    svg("svg", { class: "map", viewBox: "0 0 1 1" }, svg("rect", { width: 1, height: 1, class: `cell${place}` })), words)));
}
