"use strict";
// DOM and number helpers. Text enters the page only as text nodes and attributes, never as markup.

function element(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

function tableOf(headings, rows, attributes) {
  const head = headings.map((text, place) => element("th", { scope: "col", class: place ? "n" : null }, text));
  const body = rows.map((cells) =>
    element("tr", {}, cells.map((cell, place) => element("td", { class: place ? "n" : null }, cell))));
  return element("table", attributes, element("thead", {}, element("tr", {}, head)), element("tbody", {}, body));
}

/** Three significant digits; NaN and infinities by name; a dash for "nothing was compared". */
function formatNumber(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e4 ? String(Number(value.toPrecision(digits))) : value.toExponential(digits - 1);
}

/** A number known by its distance from 1, with the digits that this distance leaves. */
function formatNearOne(distance) {
  if (!Number.isFinite(distance)) return formatNumber(distance);
  if (distance === 0) return "1";
  if (Math.abs(distance) >= 1e-3) return String(Number((1 + distance).toPrecision(4)));
  return `1 ${distance > 0 ? "+" : "−"} ${formatNumber(Math.abs(distance), 2)}`;
}

function formatShare(share) {
  return Number.isFinite(share) ? `${formatNumber(100 * share)} %` : formatNumber(share);
}

const GLYPHS = { pass: "✓", fail: "✗", skip: "–", powerless: "○" };
const OUTCOME_WORDS = { pass: "passed", fail: "failed", skip: "unsupported", powerless: "powerless" };

function badge(outcome, text) {
  return element("span", { class: `badge ${outcome}` }, `${GLYPHS[outcome]} ${text}`);
}

function shellQuote(text) {
  return `'${text.replaceAll("'", `'"'"'`)}'`;
}

function replayCommand(caseId, candidate) {
  const plain = /^[\w@%+=:,./-]+$/.test(candidate);
  return `python -m verify repro ${shellQuote(caseId)} --candidate ${plain ? candidate : shellQuote(candidate)}`;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers that lend no clipboard to pages opened from files still copy a selection.
    const area = element("textarea", { readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
