// Bulk actions: the API changes a bounded number of jobs per call and returns a cursor. This loop
// calls it until there is no more, shows how far it is, and can be stopped and continued.
"use strict";

import { refresh, said, toast } from "./site.js";

const running = new WeakMap(); // by form: the AbortController of its loop

async function step(form, body, signal) {
  const reply = await fetch(form.action, {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      Accept: "application/json",
      "X-CSRF-Token": form.dataset.csrf,
    },
    body: JSON.stringify(body),
    signal,
  });
  const text = await reply.text();
  if (!reply.ok) throw new Error(said(text, `The dashboard returned an error (${reply.status}).`));
  return JSON.parse(text);
}

async function carryOut(form) {
  const shown = form.querySelector("[data-progress]");
  const body = JSON.parse(form.dataset.bulk);
  const stop = new AbortController();
  running.set(form, stop);
  form.classList.add("is-running");
  form.querySelector("[type=submit]").disabled = true;
  let changed = 0;
  let skipped = 0;
  try {
    do {
      const done = await step(form, body, stop.signal);
      changed += done.changed;
      skipped += done.skipped;
      body.cursor = done.cursor;
      body.began_ms = done.began_ms;
      shown.textContent = `${changed.toLocaleString("en-US")} changed`;
    } while (body.cursor && !stop.signal.aborted);
    const passed = skipped ? `, ${skipped.toLocaleString("en-US")} had moved on` : "";
    toast(`${form.dataset.did}: ${changed.toLocaleString("en-US")}${passed}.`);
  } catch (error) {
    const what = `${changed.toLocaleString("en-US")} changed`;
    if (error.name === "AbortError") toast(`Stopped: ${what}.`);
    else toast(`${error.message} ${what} before that.`, { bad: true });
  } finally {
    running.delete(form);
    form.closest("dialog")?.close();
    refresh();
  }
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.bulk === undefined) return;
  event.preventDefault();
  if (!running.has(form)) carryOut(form);
});

// Closing the dialog stops the loop after its current call.
document.addEventListener(
  "close",
  (event) => {
    for (const form of event.target.querySelectorAll?.("form[data-bulk]") ?? []) {
      running.get(form)?.abort();
    }
  },
  true,
);
