// Dead letters: a button of a cause opens the dialog that runs its jobs again or removes them.
// bulk.js carries it out, step by step.
"use strict";

const dialog = document.getElementById("bulk");
const form = dialog?.querySelector("form");

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-bulk-of]");
  if (!button || !form) return;
  const agree = form.querySelector("[type=submit]");
  form.action = button.dataset.bulkOf;
  form.dataset.bulk = button.dataset.body;
  form.dataset.did = button.dataset.did;
  form.querySelector("h2").textContent = button.dataset.question;
  form.querySelector("[data-about]").textContent = button.dataset.about;
  form.querySelector("[data-progress]").textContent = "";
  agree.textContent = button.textContent;
  agree.className = button.classList.contains("danger") ? "danger" : "main-action";
  agree.disabled = false;
  dialog.showModal();
});
