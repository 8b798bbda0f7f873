// Runs before the page is drawn, so that a chosen theme never flickers. All else is in site.js.
"use strict";
document.documentElement.classList.add("js");
try {
  const theme = localStorage.getItem("jobq-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage, the theme is the system's.
}
