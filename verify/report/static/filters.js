"use strict";
// The filter state, its form, its place in the address (so that a view can be linked), and the rows that pass it.

const FILTER_NAMES = ["group", "candidate", "status", "check", "tensor", "dtype", "recipe", "feature", "limits", "text"];
const LIMIT_WORDS = { both_accept: "both accept", fixed_rejects: "only fixed limits reject",
  bound_rejects: "only the bound rejects", both_reject: "both reject" };

const LABELS = { group: "kind of failure", limits: "fixed limits" };

class Filters {
  constructor(report, form, changed) {
    this.report = report;
    this.changed = changed;
    this.inputs = {};
    const { vocabulary } = report;
    const present = new Set([...report.records.status || [], ...report.findings.status || []]);
    const statuses = report.statuses.map(([name]) => name).filter((_, code) => present.has(code));
    this.choice(form, "group", report.groups);
    this.choice(form, "candidate", vocabulary.candidate);
    this.choice(form, "status", statuses, { "*fail": "any failure" });
    this.choice(form, "check", vocabulary.check);
    this.choice(form, "tensor", vocabulary.tensor);
    this.choice(form, "dtype", vocabulary.dtype);
    this.choice(form, "recipe", report.recipeNames);
    this.choice(form, "feature", report.featureNames, { "*none": "no feature" });
    this.choice(form, "limits", [], LIMIT_WORDS);
    const text = element("input", { type: "search", name: "text", placeholder: "words, all must occur" });
    this.add(form, "text", "search", text);
    form.append(element("button", { type: "button", id: "reset", onclick: () => this.set({}) }, "Reset"));
    this.count = element("output", { id: "count", "aria-live": "polite" });
    form.append(this.count);
    form.addEventListener("submit", (event) => event.preventDefault());
    this.read(new URLSearchParams(location.hash.slice(1)));
  }

  choice(form, name, values, extra = {}) {
    const options = [element("option", { value: "" }, "any")];
    for (const [value, words] of Object.entries(extra)) options.push(element("option", { value }, words));
    values.forEach((value) => options.push(element("option", { value: `=${value}` }, value)));
    this.add(form, name, LABELS[name] || name, element("select", { name }, options));
  }

  add(form, name, label, input) {
    input.addEventListener("input", () => this.update());
    this.inputs[name] = input;
    form.append(element("label", {}, label, input));
  }

  get(name) {
    return this.inputs[name].value;
  }

  /** Replace the whole state; values of vocabularies are given with a leading "=". */
  set(values) {
    for (const name of FILTER_NAMES) this.inputs[name].value = values[name] || "";
    this.update();
  }

  read(parameters) {
    for (const name of FILTER_NAMES) if (parameters.has(name)) this.inputs[name].value = parameters.get(name);
    for (const name of FILTER_NAMES) if (this.inputs[name].selectedIndex === -1) this.inputs[name].value = "";
    this.mark();
  }

  update() {
    this.mark();
    const parameters = new URLSearchParams();
    for (const name of FILTER_NAMES) if (this.get(name)) parameters.set(name, this.get(name));
    history.replaceState(null, "", `#${parameters}`);
    this.changed();
  }

  mark() {
    for (const input of Object.values(this.inputs)) input.classList.toggle("active", input.value !== "");
  }

  /** Code of the chosen value in a list: -1 for any, -2 for one that the list lacks. */
  code(name, values) {
    const value = this.get(name);
    if (!value.startsWith("=")) return -1;
    const place = values.indexOf(value.slice(1));
    return place === -1 ? -2 : place;
  }

  compile() {
    const { report } = this;
    const words = this.get("text").toLowerCase().split(/\s+/).filter(Boolean);
    const feature = this.get("feature");
    const statuses = report.statuses.map(([name]) => name);
    return {
      group: this.code("group", report.groups),
      candidate: this.code("candidate", report.vocabulary.candidate),
      check: this.code("check", report.vocabulary.check),
      tensor: this.code("tensor", report.vocabulary.tensor),
      dtype: this.code("dtype", report.vocabulary.dtype),
      recipe: this.code("recipe", report.recipeNames),
      status: this.code("status", statuses),
      anyFailure: this.get("status") === "*fail",
      limits: this.get("limits") ? LIMIT_CELLS[this.get("limits")] : -1,
      features: report.vocabulary.features.map((names) =>
        !feature || (feature === "*none" ? names.length === 0 : names.includes(feature.slice(1)))),
      words,
    };
  }

  /** Rows that pass: under a check or tensor filter, status and worst error/bound are those of that check or tensor. */
  rows() {
    const wanted = this.compile();
    const rows = [];
    for (let record = 0; record < this.report.size; record++) {
      if (!matchesRecord(this.report, record, wanted)) continue;
      const row = viewOf(this.report, record, wanted);
      if (row && matchesStatus(this.report, row.status, wanted)) rows.push(row);
    }
    return rows;
  }
}

function matchesRecord(report, record, wanted) {
  const { records } = report;
  return (wanted.group === -1 || records.group[record] === wanted.group)
    && (wanted.candidate === -1 || records.candidate[record] === wanted.candidate)
    && (wanted.dtype === -1 || records.dtype[record] === wanted.dtype)
    && (wanted.recipe === -1 || report.recipeName[records.recipe[record]] === wanted.recipe)
    && wanted.features[records.features[record]]
    && wanted.words.every((word) => report.haystacks[record].includes(word));
}

function matchesStatus(report, status, wanted) {
  return (wanted.status === -1 || status === wanted.status)
    && (!wanted.anyFailure || report.outcomes[status] === "fail");
}

function viewOf(report, record, wanted) {
  const { records, findings, comparisons } = report;
  const row = { record, status: records.status[record], ratio: null, worst: -1, compared: [] };
  let checkStatus = -1;
  for (let f = report.firstFinding[record]; f < report.firstFinding[record + 1]; f++) {
    if (wanted.check !== -1 && findings.check[f] !== wanted.check) continue;
    const status = findings.status[f];
    if (checkStatus === -1 || report.gravity[status] > report.gravity[checkStatus]) checkStatus = status;
    for (let c = report.firstComparison[f]; c < report.firstComparison[f + 1]; c++) {
      if (wanted.tensor !== -1 && comparisons.tensor[c] !== wanted.tensor) continue;
      if (wanted.limits !== -1 && (comparisons.flags[c] & 3) !== wanted.limits) continue;
      row.compared.push(c);
      if (row.worst !== -1 && badness(comparisons.ratio[c]) <= badness(row.ratio)) continue;
      row.worst = c;
      row.ratio = comparisons.ratio[c];
    }
  }
  if (wanted.check !== -1) {
    if (checkStatus === -1) return null;
    row.status = checkStatus;
  }
  return (wanted.tensor !== -1 || wanted.limits !== -1) && row.worst === -1 ? null : row;
}
