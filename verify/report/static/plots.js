"use strict";
// Histograms on a log scale, one strip for each group, and the table of fixed limits against the bound.

const METRICS = { ratio: "error/bound", max_abs: "max abs", max_rel: "max rel", rel_l2: "relative L2", rms: "rms",
  max_ulp: "max ulp", one_minus_cosine: "1 − cosine" };
const MARKS = { ratio: [[1, "bound"]], max_abs: [[1e-5, "fp32"], [1e-4, "grad"], [1e-3, "fp16"]],
  max_rel: [[1e-2, "fp16"]] };
const BINS_PER_DECADE = 4;
const MAX_GROUPS = 30;
const STRIP = { height: 34, name: 150, summary: 150, special: 26, top: 16, bottom: 20 };

/** Worst value of a metric over the comparisons of a row; null when nothing was compared. */
function metricOf(report, row, metric) {
  const column = report.comparisons[metric];
  return row.compared.reduce((worst, c) => worse(Math.abs(column[c]), worst), null);
}

function drawStrips(report, rows, metric, groupOf, names, holder, width) {
  const groups = new Map();
  for (const row of rows) {
    const value = metricOf(report, row, metric);
    if (value === null) continue;
    const group = groupOf(row);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push([value, report.outcomes[row.status] === "fail" ? "fail" : "pass"]);
  }
  const keys = [...groups.keys()].sort((one, other) => compare(names[one], names[other]));
  if (!keys.length) return holder.replaceChildren(element("p", { class: "dim" }, "Nothing was compared."));
  const shown = keys.slice(0, MAX_GROUPS);
  const scale = logScale([...groups.values()].flat().map(([value]) => value), MARKS[metric] || [], width);
  const height = STRIP.top + shown.length * STRIP.height + STRIP.bottom;
  const picture = svg("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${METRICS[metric]} of ${rows.length} cases in ${shown.length} groups` },
  axisOf(scale, MARKS[metric] || [], height),
  shown.map((key, place) => stripOf(scale, names[key], groups.get(key), STRIP.top + place * STRIP.height, width)));
  const left = keys.length - shown.length;
  return holder.replaceChildren(picture, left ? element("p", { class: "note" }, `${left} more groups not drawn`) : "");
}

function logScale(values, marks, width) {
  const finite = values.filter((value) => Number.isFinite(value) && value > 0);
  // A loop, since spreading tens of thousands of arguments overflows the stack.
  let low = Infinity, high = -Infinity;
  for (const value of [...finite, ...marks.map(([mark]) => mark)]) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) [low, high] = [0.1, 1];
  const first = Math.floor(Math.log10(low) - 0.01), last = Math.max(first + 1, Math.ceil(Math.log10(high) + 0.01));
  const left = STRIP.name + STRIP.special, right = width - STRIP.summary - STRIP.special;
  const bins = (last - first) * BINS_PER_DECADE;
  return { first, last, left, right, bins, step: (right - left) / bins,
    x: (value) => left + (right - left) * (Math.log10(value) - first) / (last - first) };
}

function axisOf(scale, marks, height) {
  const base = height - STRIP.bottom;
  const decades = scale.last - scale.first, every = Math.ceil(decades / 7);
  const parts = [];
  for (let decade = scale.first; decade <= scale.last; decade += every) {
    const x = scale.x(10 ** decade);
    parts.push(svg("line", { class: "grid", x1: x, x2: x, y1: STRIP.top, y2: base }),
      svg("text", { x, y: base + 14, "text-anchor": "middle" }, decade === 0 ? "1" : `1e${decade}`));
  }
  parts.push(svg("text", { x: scale.left - STRIP.special / 2, y: base + 14, "text-anchor": "middle" }, "0"),
    svg("text", { x: scale.right + STRIP.special / 2 + 4, y: base + 14, "text-anchor": "middle" }, "inf"));
  for (const [value, words] of marks) {
    const x = scale.x(value);
    parts.push(svg("line", { class: "limit", x1: x, x2: x, y1: STRIP.top - 3, y2: base }),
      svg("text", { x, y: STRIP.top - 5, "text-anchor": "middle" }, words));
  }
  return parts;
}

function stripOf(scale, name, points, top, width) {
  const bins = new Map();
  for (const [value, outcome] of points) {
    const place = value === 0 ? -1 : !Number.isFinite(value) ? scale.bins
      : Math.min(scale.bins - 1, Math.max(0, Math.floor((Math.log10(value) - scale.first) * BINS_PER_DECADE)));
    if (!bins.has(place)) bins.set(place, { pass: 0, fail: 0 });
    bins.get(place)[outcome]++;
  }
  const tallest = Math.max(...[...bins.values()].map((bin) => bin.pass + bin.fail));
  const room = STRIP.height - 8, base = top + STRIP.height - 2;
  const marks = [...bins].flatMap(([place, bin]) => {
    const x = place === -1 ? scale.left - STRIP.special * 0.75
      : place === scale.bins ? scale.right + STRIP.special * 0.4 : scale.left + place * scale.step;
    const wide = place === -1 || place === scale.bins ? STRIP.special / 2 : Math.max(1, scale.step - 1);
    // The square root keeps a single failure visible beside thousands of passes.
    const size = (count) => room * Math.sqrt(count / tallest);
    const all = size(bin.pass + bin.fail), failed = bin.fail ? Math.max(2, all * bin.fail / (bin.pass + bin.fail)) : 0;
    const words = svg("title", {}, `${name}: ${bin.pass} not failed, ${bin.fail} failed`);
    return svg("g", {}, words, svg("rect", { class: "mark pass", x, y: base - all, width: wide, height: all - failed }),
      svg("rect", { class: "mark fail", x, y: base - failed, width: wide, height: failed }));
  });
  const sorted = points.map(([value]) => value).sort((one, other) => badness(one) - badness(other));
  const summary = `${points.length}, median ${formatNumber(sorted[sorted.length >> 1], 2)}`;
  const short = name.length > 22 ? `${name.slice(0, 21)}…` : name;
  return [svg("line", { class: "axis", x1: STRIP.name, x2: width - STRIP.summary, y1: base, y2: base }), ...marks,
    svg("text", { class: "name", x: STRIP.name - 8, y: base - 8, "text-anchor": "end" }, svg("title", {}, name), short),
    svg("text", { x: width - STRIP.summary + 8, y: base - 15 }, summary),
    svg("text", { x: width - STRIP.summary + 8, y: base - 2 }, `max ${formatNumber(sorted[sorted.length - 1], 3)}`)];
}

function drawLimits(report, rows, filters, holder) {
  const { comparisons, records, vocabulary } = report;
  const counts = new Map();
  for (const row of rows) {
    for (const c of row.compared) {
      const kind = /^d[a-z]/.test(vocabulary.tensor[comparisons.tensor[c]]) ? "gradients" : "forward";
      const key = `${vocabulary.dtype[records.dtype[row.record]]} ${kind}`;
      if (!counts.has(key)) counts.set(key, { dtype: vocabulary.dtype[records.dtype[row.record]], cells: [0, 0, 0, 0] });
      counts.get(key).cells[comparisons.flags[c] & 3]++;
    }
  }
  const lines = [...counts.keys()].sort().map((key) => [key, ...Object.keys(LIMIT_WORDS).map((name) => {
    const { dtype, cells } = counts.get(key);
    const count = cells[LIMIT_CELLS[name]];
    return element("button", { type: "button", disabled: !count, "data-limits": name,
      onclick: () => filters.set({ dtype: `=${dtype}`, limits: name }) }, String(count));
  })]);
  holder.replaceChildren(tableOf(["comparisons", "✓ both accept", "fixed limits too strict (only they reject)",
    "fixed limits too loose (only the bound rejects)", "✗ both reject"], lines, { class: "limits" }));
}
