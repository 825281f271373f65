"use strict";
// The sortable, paged table of cases. Only one page of rows is in the document at any time.

const PAGE_ROWS = 50;
const COLUMNS = [
  ["status", (report, row) => report.gravity[row.status]],
  ["candidate", (report, row) => report.vocabulary.candidate[report.records.candidate[row.record]]],
  ["dtype", (report, row) => report.vocabulary.dtype[report.records.dtype[row.record]]],
  ["shape", (report, row) => report.vocabulary.shape[report.records.shape[row.record]]],
  ["features", (report, row) => report.vocabulary.features[report.records.features[row.record]].join(" ")],
  ["recipe", (report, row) => report.vocabulary.recipe[report.records.recipe[row.record]]],
  ["tensor", (report, row) => (row.worst === -1 ? "" : report.vocabulary.tensor[report.comparisons.tensor[row.worst]])],
  ["error/bound", (report, row) => badness(row.ratio)],
  ["case", (report, row) => report.records.case_id[row.record]],
];
const DESCENDING_FIRST = new Set(["status", "error/bound"]);

class CaseTable {
  constructor(report, table, pager) {
    this.report = report;
    this.pager = pager;
    this.sort = { name: "status", descending: true };
    this.page = 0;
    this.rows = [];
    this.body = element("tbody", {});
    this.head = element("tr", {});
    table.append(element("thead", {}, this.head), this.body);
  }

  show(rows) {
    this.rows = rows;
    this.page = 0;
    this.order();
    this.draw();
  }

  order() {
    const [, key] = COLUMNS.find(([name]) => name === this.sort.name);
    const keyed = this.rows.map((row) => [key(this.report, row), badness(row.ratio), row]);
    const sign = this.sort.descending ? -1 : 1;
    keyed.sort((one, other) => sign * compare(one[0], other[0]) || other[1] - one[1]
      || one[2].record - other[2].record);
    this.rows = keyed.map(([, , row]) => row);
  }

  sortBy(name) {
    const descending = this.sort.name === name ? !this.sort.descending : DESCENDING_FIRST.has(name);
    this.sort = { name, descending };
    this.page = 0;
    this.order();
    this.draw();
    this.head.querySelector(`[data-sort="${name}"]`).focus();
  }

  draw() {
    this.head.replaceChildren(element("th", { scope: "col" }, element("span", { class: "dim" }, "")),
      ...COLUMNS.map(([name]) => this.heading(name)));
    const first = this.page * PAGE_ROWS;
    const shown = this.rows.slice(first, first + PAGE_ROWS);
    this.body.replaceChildren(...shown.map((row) => this.rowOf(row)));
    const pages = Math.max(1, Math.ceil(this.rows.length / PAGE_ROWS));
    const turn = (step, words) => element("button", { type: "button", disabled: !this.has(step, pages),
      onclick: () => { this.page += step; this.draw(); } }, words);
    this.pager.replaceChildren(turn(-1, "← Previous"), turn(1, "Next →"), element("span", { class: "dim" },
      this.rows.length ? `rows ${first + 1} to ${first + shown.length} of ${this.rows.length}` : "no case passes the filters"));
  }

  has(step, pages) {
    return this.page + step >= 0 && this.page + step < pages;
  }

  heading(name) {
    const sorted = this.sort.name === name;
    const arrow = sorted ? (this.sort.descending ? " ↓" : " ↑") : "";
    const state = sorted ? (this.sort.descending ? "descending" : "ascending") : null;
    return element("th", { scope: "col", class: name === "error/bound" ? "n" : null, "aria-sort": state },
      element("button", { type: "button", "data-sort": name, onclick: () => this.sortBy(name) }, name + arrow));
  }

  rowOf(row) {
    const { report } = this;
    const { vocabulary, records } = report;
    const toggle = element("button", { type: "button", class: "toggle", "aria-expanded": "false",
      "aria-label": `Details of case ${row.record + 1}` }, "▸");
    const tensor = row.worst === -1 ? "–" : vocabulary.tensor[report.comparisons.tensor[row.worst]];
    const caseId = records.case_id[row.record];
    const line = element("tr", { class: "row", onclick: (event) => this.expand(event, row, line, toggle) },
      element("td", {}, toggle),
      element("td", {}, badge(report.outcomes[row.status], report.statuses[row.status][0])),
      element("td", {}, vocabulary.candidate[records.candidate[row.record]]),
      element("td", {}, vocabulary.dtype[records.dtype[row.record]]),
      element("td", {}, vocabulary.shape[records.shape[row.record]]),
      element("td", { class: "features" }, vocabulary.features[records.features[row.record]].join(" ") || "–"),
      element("td", {}, vocabulary.recipe[records.recipe[row.record]]), element("td", {}, tensor),
      element("td", { class: `n${row.ratio > 1 ? " strong" : ""}` }, formatNumber(row.ratio, 4)),
      element("td", { class: "id", title: caseId }, element("code", {}, caseId)));
    return line;
  }

  expand(event, row, line, toggle) {
    const selected = String(window.getSelection());
    if (selected && event.target !== toggle) return;  // Selecting text of a row is not a click on it.
    const open = toggle.getAttribute("aria-expanded") === "true";
    toggle.setAttribute("aria-expanded", String(!open));
    toggle.textContent = open ? "▸" : "▾";
    if (open) line.nextElementSibling.remove();
    else line.after(element("tr", { class: "detail" },
      element("td", { colspan: COLUMNS.length + 1 }, detailOf(this.report, row.record))));
  }
}

function compare(one, other) {
  return one < other ? -1 : one > other ? 1 : 0;
}
