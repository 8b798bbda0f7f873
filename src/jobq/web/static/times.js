// Ages on a page grow while it is open, and each time tells its local form on hover.
"use strict";

// Milliseconds between two passes. A live page renews young ages itself.
const EVERY_MS = 5000;

// The server's clock counts. A reader's machine may be minutes off.
const written = Number(document.documentElement.dataset.now);
const ahead = written ? written - Date.now() : 0;

/** A rounded duration in at most two units, as the server writes it. */
export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)}ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)}s`;
  if (s < 60) return `${Math.round(s)}s`;
  const units = [["m", 60, "s", 1, 3600], ["h", 3600, "m", 60, 86400], ["d", 86400, "h", 3600]];
  for (const [unit, size, small, part, limit = Infinity] of units) {
    if (s >= limit) continue;
    const rest = Math.floor((s % size) / part);
    const tail = rest ? `${String(rest).padStart(2, "0")}${small}` : "";
    return `${Math.floor(s / size)}${unit}${tail}`;
  }
  return "";
}

function renew() {
  const now = Date.now() + ahead;
  for (const each of document.querySelectorAll("time[data-ago]")) {
    const at = Number(each.dataset.ago);
    const gap = now - at;
    const seconds = Math.abs(gap) < 60000 ? Math.round(Math.abs(gap) / 1000) * 1000 : Math.abs(gap);
    if (seconds < 1000) each.textContent = "now";
    else each.textContent = gap >= 0 ? `${duration(seconds)} ago` : `in ${duration(seconds)}`;
  }
}

document.addEventListener("mouseover", (event) => {
  const time = event.target.closest?.("time[data-ago]");
  if (time) time.title = new Date(Number(time.dataset.ago)).toLocaleString();
});

setInterval(() => document.hidden || renew(), EVERY_MS);
