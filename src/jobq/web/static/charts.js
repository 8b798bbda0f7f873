// Charts of what happened per minute, drawn by uPlot.
//
// <data id="figures" value='{"at": [seconds, …], "series": {"completed": […], …}}'>
// <div data-chart="figures"> becomes a chart. When a refresh of the page renews the figures, the
// chart shows them and keeps its place, size and cursor.
"use strict";

import { duration } from "./times.js";

const LABELS = {
  accepted: "accepted",
  completed: "completed",
  retried: "retried",
  failed: "failed",
  wait: "wait",
  run: "run",
};
// The variables of site.css whose colours the series have.
const COLORS = {
  accepted: "--delayed",
  completed: "--completed",
  retried: "--active",
  failed: "--failed",
  wait: "--waiting",
  run: "--blocked",
};
// Distances of lines on the scale: whole jobs, and durations that people name.
const STEPS = [1, 10, 1e2, 1e3, 1e4, 1e5, 1e6].flatMap((n) => [n, 2 * n, 5 * n]);
const S = 1000;
const STEPS_MS = [
  ...[1, 10, 100].flatMap((n) => [n, 2 * n, 5 * n]),
  ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400].map((n) => n * S),
];
const FILLED = new Set(["completed", "wait"]);
const charts = new Map(); // by element

/** The colour of a variable as the canvas needs it: resolved for the theme in force. */
function color(variable) {
  const probe = document.createElement("i");
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function faint(of) {
  return of.replace(/^rgb\((.*)\)$/, "rgb($1 / 12%)").replaceAll(",", " ");
}

const counted = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  hourCycle: "h23",
});

function options(box, data) {
  const names = Object.keys(data.series);
  const inMs = box.dataset.chartUnit === "ms";
  const soft = color("--soft");
  const line = color("--line");
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: soft, font, ticks: { show: false } };
  return {
    width: box.clientWidth,
    height: box.clientHeight,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    padding: [8, 16, 0, 0],
    scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high, 1) * 1.08] } },
    axes: [
      {
        ...axis,
        grid: { show: false },
        size: 26,
        gap: 8,
        space: 60,
        values: (_, at) => at.map((s) => clock.format(s * 1000)),
      },
      {
        ...axis,
        size: inMs ? 58 : 44,
        space: 34,
        grid: { stroke: line, width: 1 },
        incrs: inMs ? STEPS_MS : STEPS,
        values: (_, values) => values.map((v) => (inMs ? duration(v) : short.format(v))),
      },
    ],
    series: [
      {},
      ...names.map((name) => {
        const stroke = color(COLORS[name] ?? "--accent");
        return {
          label: LABELS[name] ?? name,
          stroke,
          width: 1.5,
          fill: FILLED.has(name) ? faint(stroke) : undefined,
          points: { show: true, size: 4, fill: stroke, filter: alone },
          spanGaps: false,
        };
      }),
    ],
    hooks: { setCursor: [(plot) => tell(box, plot)] },
  };
}

/** The places of values between two gaps, which no line would show. */
function alone(plot, place) {
  const values = plot.data[place];
  const gap = (at) => values[at] === null || values[at] === undefined;
  return [...values.keys()].filter((at) => !gap(at) && gap(at - 1) && gap(at + 1));
}

function rows(data) {
  return [data.at, ...Object.values(data.series)];
}

/** Write the figures at the cursor, or the newest ones, into the legend. */
function tell(box, plot) {
  const legend = document.getElementById(box.dataset.chartLegend ?? "");
  if (!legend) return;
  const inMs = box.dataset.chartUnit === "ms";
  const last = plot.data[1].findLastIndex((value) => value !== null);
  const at = plot.cursor.idx ?? Math.max(0, last);
  const when = legend.querySelector("[data-at]");
  if (when && plot.data[0][at]) when.textContent = clock.format(plot.data[0][at] * 1000);
  plot.series.slice(1).forEach((series, place) => {
    const value = plot.data[place + 1][at];
    const shown = legend.querySelector(`[data-series="${CSS.escape(series.label)}"]`);
    if (!shown) return;
    if (value === null || value === undefined) shown.textContent = "–";
    else shown.textContent = inMs ? duration(value) : counted.format(value);
  });
}

function draw(box) {
  charts.get(box)?.plot.destroy();
  box.replaceChildren();
  const text = figures(box);
  const data = JSON.parse(text);
  const plot = new window.uPlot(options(box, data), rows(data), box);
  charts.set(box, { plot, text, data });
  tell(box, plot);
}

function figures(box) {
  return document.getElementById(box.dataset.chart).getAttribute("value");
}

function renew(box) {
  const found = charts.get(box);
  const text = figures(box);
  if (text === found.text) return;
  found.text = text;
  found.data = JSON.parse(text);
  found.plot.setData(rows(found.data));
  tell(box, found.plot);
}

/** Draw the charts that are not drawn yet, renew the others, and forget those that are gone. */
function begin() {
  for (const box of charts.keys()) {
    if (box.isConnected) continue;
    charts.get(box).plot.destroy();
    charts.delete(box);
    resized.unobserve(box);
  }
  for (const box of document.querySelectorAll("[data-chart]")) {
    if (charts.has(box)) {
      renew(box);
    } else {
      draw(box);
      resized.observe(box);
    }
  }
}

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const plot = charts.get(target)?.plot;
    const size = { width: target.clientWidth, height: target.clientHeight };
    if (!plot || (plot.width === size.width && plot.height === size.height)) continue;
    plot.setSize(size);
  }
});

function redraw() {
  for (const box of [...charts.keys()]) draw(box);
}

if (window.uPlot) {
  begin();
  document.body.addEventListener("htmx:afterSettle", begin);
  document.addEventListener("theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
