// The drawn graph of a flow: arrow keys, highlighted neighbours and zoom.
//
// The server draws the graph, so it can be read without this module. Each box has data-n, its
// number, and is a link if it is a job. Each line has data-from and data-to. A live update changes
// the drawing in place, so nothing here is remembered by element except the figure itself.
"use strict";

const SCALES = [0.25, 0.35, 0.5, 0.7, 1, 1.4];
const FULL_SIZE = SCALES.indexOf(1);
const scales = new WeakMap(); // by figure: an index in SCALES
const current = new WeakMap(); // by figure: the job that the tab key reaches

const figureOf = (element) => element.closest?.("figure[data-graph]");
const linksOf = (figure) => [...figure.querySelectorAll("a[data-n]")];

function neighbours(figure, box, own, other) {
  return [...figure.querySelectorAll(`path[data-${own}="${box.dataset.n}"]`)]
    .map((line) => figure.querySelector(`[data-n="${line.dataset[other]}"]`))
    .filter(Boolean);
}

const after = (figure, box) => neighbours(figure, box, "from", "to");
const before = (figure, box) => neighbours(figure, box, "to", "from");
const firstLink = (boxes) => boxes.find((box) => box.matches("a"));

/** One job is in the tab order; the arrow keys reach the others. */
function select(figure, link) {
  for (const other of linksOf(figure)) other.setAttribute("tabindex", other === link ? "0" : "-1");
  current.set(figure, link?.dataset.job);
}

function highlight(figure, box) {
  const lit = new Set(box ? [box, ...after(figure, box), ...before(figure, box)] : []);
  figure.querySelector("svg").classList.toggle("dimmed", Boolean(box));
  for (const each of figure.querySelectorAll("[data-n]")) {
    each.classList.toggle("lit", lit.has(each));
  }
  for (const line of figure.querySelectorAll("path[data-from]")) {
    const ends = [line.dataset.from, line.dataset.to];
    line.classList.toggle("lit", Boolean(box) && ends.includes(box.dataset.n));
  }
}

/** The job that a key leads to: undefined if there is none, null if the key is not of the graph. */
function target(figure, link, key) {
  const all = linksOf(figure);
  const column = all
    .filter((other) => other.dataset.x === link.dataset.x)
    .sort((a, b) => a.dataset.y - b.dataset.y);
  const place = column.indexOf(link);
  switch (key) {
    case "ArrowRight": return firstLink(after(figure, link));
    case "ArrowLeft": return firstLink(before(figure, link));
    case "ArrowDown": return column[place + 1];
    case "ArrowUp": return column[place - 1];
    case "Home": return all[0];
    case "End": return all[all.length - 1];
    default: return null;
  }
}

function zoom(figure, scale) {
  const svg = figure.querySelector("svg");
  const kept = Math.max(0, Math.min(SCALES.length - 1, scale));
  scales.set(figure, kept);
  svg.setAttribute("width", Math.round(svg.viewBox.baseVal.width * SCALES[kept]));
  svg.setAttribute("height", Math.round(svg.viewBox.baseVal.height * SCALES[kept]));
}

/** The scale at which the whole width is visible, if there is one. */
function fitting(figure) {
  const width = figure.querySelector("svg").viewBox.baseVal.width;
  const room = figure.querySelector("[data-scroll]").clientWidth;
  return Math.min(FULL_SIZE, SCALES.findLastIndex((scale) => width * scale <= room));
}

/** After the page has loaded, and after each live update. */
function setUp() {
  for (const figure of document.querySelectorAll("figure[data-graph]")) {
    const links = linksOf(figure);
    const kept = links.find((link) => link.dataset.job === current.get(figure));
    select(figure, kept ?? links[0]);
    for (const button of figure.querySelectorAll("[data-zoom]")) button.hidden = false;
    zoom(figure, scales.get(figure) ?? FULL_SIZE);
  }
}

document.addEventListener("keydown", (event) => {
  const link = event.target.closest?.("a[data-n]");
  const figure = link && figureOf(link);
  if (!figure || event.altKey || event.ctrlKey || event.metaKey) return;
  const next = target(figure, link, event.key);
  if (next === null) return;
  event.preventDefault(); // or the arrow would scroll
  next?.focus();
});

document.addEventListener("focusin", (event) => {
  const link = event.target.closest?.("a[data-n]");
  const figure = link && figureOf(link);
  if (!figure) return;
  select(figure, link);
  highlight(figure, link);
});

document.addEventListener("focusout", (event) => {
  const figure = figureOf(event.target);
  if (figure) highlight(figure, null);
});

document.addEventListener("pointerover", (event) => {
  const figure = figureOf(event.target);
  if (figure) highlight(figure, event.target.closest("[data-n]"));
});

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-zoom]");
  const figure = button && figureOf(button);
  if (!figure) return;
  const now = scales.get(figure) ?? FULL_SIZE;
  const wish = { in: now + 1, out: now - 1, fit: fitting(figure) };
  zoom(figure, wish[button.dataset.zoom]);
});

setUp();
document.addEventListener("htmx:afterSwap", setUp);
