// Keyboard: / searches, g and a letter goes to a page, j and k choose a row, ? shows this list.
"use strict";

// Milliseconds within which the second key of "g o" has to follow.
const PAIR_MS = 1500;
let begun = 0;

function typing(target) {
  return target.closest("input, textarea, select, [contenteditable]") !== null;
}

/** Move the focus to the next or previous row. A row is reached by its first link. */
function choose(step) {
  const links = [...document.querySelectorAll("tbody tr, [data-row]")]
    .map((row) => row.querySelector("a[href]"))
    .filter((link) => link && link.offsetParent !== null);
  if (!links.length) return;
  const row = document.activeElement?.closest("tbody tr, [data-row]");
  const now = links.findIndex((link) => row?.contains(link));
  const next = now < 0 ? (step > 0 ? 0 : links.length - 1) : now + step;
  const link = links[Math.min(links.length - 1, Math.max(0, next))];
  link.focus();
  link.scrollIntoView({ block: "nearest" });
}

function go(letter) {
  const link = document.querySelector(`[data-key="${CSS.escape(letter)}"]`);
  if (link) location.assign(link.href);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && document.activeElement?.matches("[data-search]")) {
    document.activeElement.blur();
    return;
  }
  if (typing(event.target) || document.querySelector("dialog[open]")) return;
  if (begun && Date.now() - begun < PAIR_MS) {
    begun = 0;
    go(event.key);
    return;
  }
  begun = 0;
  switch (event.key) {
    case "/":
      event.preventDefault(); // or the slash would be typed into the field
      document.querySelector("[data-search]")?.focus();
      break;
    case "?":
      document.getElementById("keys")?.showModal();
      break;
    case "g":
      begun = Date.now();
      break;
    case "j":
      choose(1);
      break;
    case "k":
      choose(-1);
      break;
    default:
  }
});
