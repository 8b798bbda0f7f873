// What every page has: menu, theme, dialogs, and actions with their confirmations and toasts.
"use strict";

const html = document.documentElement;

// ── toasts ──────────────────────────────────────────────────────────────────────────────────────

// Milliseconds that a toast stays. One about a failure stays until somebody closes it.
const TOAST_MS = 6000;
const MAX_TOASTS = 4;

/** Show a message at the corner of the page. The text is never read as HTML. */
export function toast(text, { bad = false } = {}) {
  const place = document.getElementById("toasts");
  if (!place) return;
  const box = document.createElement("div");
  box.className = bad ? "toast bad" : "toast";
  const words = document.createElement("span");
  words.textContent = text;
  const close = document.createElement("button");
  close.type = "button";
  close.className = "plain";
  close.setAttribute("aria-label", "Close this message");
  close.textContent = "×";
  close.addEventListener("click", () => box.remove());
  box.append(words, close);
  place.append(box);
  while (place.children.length > MAX_TOASTS) place.firstElementChild.remove();
  if (!bad) setTimeout(() => box.remove(), TOAST_MS);
}

/** Ask the parts of the page that are live to read their figures again. */
export function refresh() {
  document.body.dispatchEvent(new CustomEvent("live", { detail: { acted: true } }));
}

// ── dialogs ─────────────────────────────────────────────────────────────────────────────────────

/** Ask a question in the page's dialog. Resolves to whether the reader agrees. */
function confirmed(question, button) {
  const dialog = document.getElementById("confirm");
  const [, title, detail] = question.match(/^(.*?\?)\s*(.*)$/s) ?? ["", question, ""];
  dialog.querySelector("[data-question]").textContent = title;
  dialog.querySelector("[data-detail]").textContent = detail;
  const agree = dialog.querySelector("[value=yes]");
  agree.textContent = button.dataset.agree || button.textContent.trim() || "Yes";
  agree.className = button.classList.contains("danger") ? "danger" : "main-action";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  if (opener) document.getElementById(opener.dataset.opens)?.showModal();
  const closer = event.target.closest("[data-closes]");
  if (closer) closer.closest("dialog")?.close();
  // A click beside an open dialog closes it: only the backdrop is the dialog itself.
  if (event.target instanceof HTMLDialogElement) event.target.close();
});

document.body.addEventListener("htmx:confirm", (event) => {
  if (!event.detail.question) return;
  event.preventDefault();
  confirmed(event.detail.question, event.detail.elt).then((yes) => {
    if (yes) event.detail.issueRequest(true);
  });
});

// ── actions ─────────────────────────────────────────────────────────────────────────────────────

/** What a reply of the API says, as one sentence. */
export function said(reply, otherwise) {
  try {
    const found = JSON.parse(reply);
    return found.message ?? found.error?.message ?? found.error ?? otherwise;
  } catch {
    return otherwise;
  }
}

// An action was sent that leads to another page, e.g. because it removes what this one shows.
let leaving = false;

document.body.addEventListener("htmx:beforeRequest", (event) => {
  const { elt, requestConfig } = event.detail;
  if (leaving && requestConfig.verb === "get") event.preventDefault(); // it might be gone by now
  if (elt.dataset.goto) leaving = true;
});

document.body.addEventListener("htmx:afterRequest", (event) => {
  const { elt, xhr, successful, requestConfig } = event.detail;
  if (elt.dataset.goto && !successful) leaving = false;
  if (xhr.status === 401) location.reload(); // the session has ended: the server asks to sign in
  if (!requestConfig || (requestConfig.verb === "get" && (successful || !elt.dataset.opens))) return;
  if (!successful) {
    document.getElementById(elt.dataset.opens)?.close();
    toast(said(xhr.responseText, failed(xhr.status)), { bad: true });
    return;
  }
  toast(elt.dataset.done || said(xhr.responseText, "Done."));
  elt.closest("dialog")?.close();
  if (elt.dataset.goto) location.assign(elt.dataset.goto);
  else refresh();
});

function failed(status) {
  if (status === 0) return "The dashboard does not respond.";
  if (status === 401) return "You are signed out: sign in again.";
  if (status === 403) return "You are not allowed to do this.";
  return `The dashboard returned an error (${status}).`;
}

// The API takes JSON: a checkbox is true, a field of type number a number, and an empty field that
// is not required is left out.
window.htmx?.defineExtension("json", {
  onEvent(name, event) {
    if (name === "htmx:configRequest") event.detail.headers["Content-Type"] = "application/json";
  },
  encodeParameters(xhr, parameters, elt) {
    const form = elt instanceof HTMLFormElement ? elt : elt.closest("form");
    const body = {};
    parameters.forEach((value, name) => {
      const field = form?.elements.namedItem(name);
      if (value === "" && !field?.required) return;
      if (field?.type === "checkbox") body[name] = true;
      else if (field?.type === "number") body[name] = Number(value);
      else if (field?.dataset?.flag !== undefined) body[name] = value === "true";
      else body[name] = value;
    });
    return JSON.stringify(body);
  },
});

// A time is sent as milliseconds.
document.addEventListener("change", (event) => {
  const field = event.target;
  if (field.dataset?.fillsMs === undefined) return;
  const target = field.form.elements.namedItem(field.dataset.fillsMs);
  target.value = field.value ? String(new Date(field.value).getTime()) : "";
});

// A field of JSON (data-json) says what is wrong before anything is sent.
document.addEventListener("input", (event) => {
  const field = event.target;
  if (field.dataset?.json === undefined) return;
  let problem = "";
  try {
    JSON.parse(field.value);
  } catch (error) {
    problem = `This is not JSON: ${error.message}`;
  }
  field.setCustomValidity(problem);
});

// ── refreshes ───────────────────────────────────────────────────────────────────────────────────

// A refresh changes only what is new. What a reader has opened stays open, and what a script draws
// (data-keep) stays as it is.
if (window.Idiomorph) {
  Object.assign(window.Idiomorph.defaults.callbacks, {
    beforeNodeMorphed: (node) => !(node instanceof Element && node.hasAttribute("data-keep")),
    beforeAttributeUpdated: (name, node) => !(name === "open" && node.matches("details, dialog")),
  });
}

// ── menu and theme ──────────────────────────────────────────────────────────────────────────────

const THEMES = ["system", "light", "dark"];

function showTheme(button) {
  const theme = html.dataset.theme ?? "system";
  button.querySelector("[data-theme-name]").textContent = theme;
  button.title = `Theme: ${theme}. Choose the next one.`;
}

for (const button of document.querySelectorAll("[data-switches-theme]")) {
  button.hidden = false;
  showTheme(button);
  button.addEventListener("click", () => {
    const now = THEMES.indexOf(html.dataset.theme ?? "system");
    const next = THEMES[(now + 1) % THEMES.length];
    if (next === "system") delete html.dataset.theme;
    else html.dataset.theme = next;
    try {
      localStorage.setItem("jobq-theme", next);
    } catch {
      // Without storage, the choice holds for this page.
    }
    showTheme(button);
    document.dispatchEvent(new CustomEvent("theme"));
  });
}

// A choice that needs no button: it sends its form, or goes to the address that it has as value.
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-sends]")) event.target.form.requestSubmit();
  if (event.target.matches("[data-goes]")) location.assign(event.target.value);
});

for (const button of document.querySelectorAll("[data-opens-menu]")) {
  button.addEventListener("click", () => {
    const open = button.closest(".side").classList.toggle("is-open");
    button.setAttribute("aria-expanded", String(open));
  });
}
