"use strict";
// Histograms on a log scale, one strip for each group, and the table of fixed limits against the bound.

const METRICS = { ratio: "error/bound", max_abs: "max abs", max_rel: "max rel", rel_l2: "relative L2", rms: "rms",
  max_ulp: "max ulp", one_minus_cosine: "1 − cosine" };
const MARKS = { ratio: [[1, "bound"]], max_abs: [[1e-5, "fp32"], [1e-4, "grad"], [1e-3, "fp16"]],
  max_rel: [[1e-2, "fp16"]] };
const BINS_PER_DECADE = 4;
const MAX_GROUPS = 30;
const STRIP = { height: 50, bars: 28, special: 46, top: 28, bottom: 20 };

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
  const left = STRIP.special, right = width - STRIP.special;
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
  parts.push(svg("text", { x: STRIP.special / 4, y: base + 14, "text-anchor": "middle" }, "0"),
    svg("text", { x: scale.right + STRIP.special * 0.75, y: base + 14, "text-anchor": "middle" }, "inf"));
  marks.forEach(([value, words], place) => {
    const x = scale.x(value);
    // Marks a decade apart would print over each other on one line.
    const y = STRIP.top - 5 - 11 * (place % 2);
    parts.push(svg("line", { class: "limit", x1: x, x2: x, y1: y + 2, y2: base }),
      svg("text", { x: x + 3, y }, words));
  });
  return parts;
}

function stripOf(scale, name, points, top, width) {
  const bins = binsOf(scale, points);
  const base = top + STRIP.height - 2;
  const tallest = Math.max(...[...bins.values()].map((bin) => bin.pass + bin.fail));
  const bars = [...bins].map(([place, bin]) => barOf(scale, name, place, bin, tallest, base));
  const sorted = points.map(([value]) => value).sort((one, other) => badness(one) - badness(other));
  const median = formatNumber(sorted[sorted.length >> 1]), worst = formatNumber(sorted[sorted.length - 1]);
  const short = name.length > 34 ? `${name.slice(0, 33)}…` : name;
  return [svg("line", { class: "axis", x1: 0, x2: width, y1: base, y2: base }), bars,
    svg("text", { class: "name", x: 0, y: top + 16 }, svg("title", {}, name), short),
    svg("text", { x: width, y: top + 16, "text-anchor": "end" },
      `${points.length} cases, median ${median}, max ${worst}`)];
}

/** Counts by bin; -1 holds exact zeros, the last one infinities and NaN. */
function binsOf(scale, points) {
  const bins = new Map();
  for (const [value, outcome] of points) {
    const place = value === 0 ? -1 : !Number.isFinite(value) ? scale.bins
      : Math.min(scale.bins - 1, Math.max(0, Math.floor((Math.log10(value) - scale.first) * BINS_PER_DECADE)));
    if (!bins.has(place)) bins.set(place, { pass: 0, fail: 0 });
    bins.get(place)[outcome]++;
  }
  return bins;
}

function barOf(scale, name, place, bin, tallest, base) {
  const special = place === -1 || place === scale.bins;
  const wide = special ? STRIP.special / 4 : Math.max(1, scale.step - 1);
  const x = place === -1 ? STRIP.special / 8 : place === scale.bins ? scale.right + STRIP.special * 0.625
    : scale.left + place * scale.step;
  const count = bin.pass + bin.fail;
  // The square root keeps a single failure visible beside thousands of passes.
  const all = STRIP.bars * Math.sqrt(count / tallest), failed = bin.fail ? Math.max(2, all * bin.fail / count) : 0;
  return svg("g", { "data-count": count },
    svg("title", {}, `${name}: ${bin.pass} not failed, ${bin.fail} failed`),
    svg("rect", { class: "mark pass", x, y: base - all, width: wide, height: Math.max(0, all - failed) }),
    svg("rect", { class: "mark fail", x, y: base - failed, width: wide, height: failed }));
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
