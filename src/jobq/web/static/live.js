// Keeps a page live. One stream of server-sent events per visible tab says that something has
// changed; the parts of the page that listen for "live" then read themselves again.
"use strict";

// Milliseconds between two refreshes, unless the page says otherwise.
const APART_MS = 1000;
// The events that the server sends, see feeds.py.
const EVENTS = ["queue", "job", "workers", "end"];
// Milliseconds until a lost stream is opened again. It doubles up to the second number.
const AGAIN_MS = 1000;
const AGAIN_MAX_MS = 30000;

const source = document.querySelector("[data-live-source]");
const apart = Number(source?.dataset.liveApart) || APART_MS;
let stream = null;
let ended = false;
let again = AGAIN_MS;
let timer = 0;
let last = 0;

function show(state, text) {
  for (const each of document.querySelectorAll("[data-live]")) {
    each.dataset.live = state;
    each.textContent = text;
  }
}

/** Tell the page, at most once per `apart`. What arrives meanwhile is told together. */
function tell() {
  if (timer) return;
  const wait = Math.max(0, last + apart - Date.now());
  timer = setTimeout(() => {
    timer = 0;
    last = Date.now();
    document.body.dispatchEvent(new CustomEvent("live"));
  }, wait);
}

function open() {
  if (stream || document.hidden) return;
  stream = new EventSource(source.dataset.liveSource);
  stream.addEventListener("open", () => {
    show("on", "live");
    if (again !== AGAIN_MS) tell(); // something may have happened while the stream was lost
    again = AGAIN_MS;
  });
  for (const name of EVENTS) stream.addEventListener(name, tell);
  stream.addEventListener("end", () => {
    close();
    ended = true;
    show("", "ended");
  });
  stream.addEventListener("error", () => {
    close();
    show("off", "not connected");
    setTimeout(open, again);
    again = Math.min(AGAIN_MAX_MS, again * 2);
  });
}

// An action may have begun what had ended: a job that runs again.
document.body.addEventListener("live", (event) => {
  if (!ended || !event.detail?.acted) return;
  ended = false;
  open();
});

function close() {
  stream?.close();
  stream = null;
}

if (source) {
  // A hidden tab holds no stream: a browser allows six connections to a host over HTTP/1.1.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
    } else {
      open();
      tell();
    }
  });
  window.addEventListener("pagehide", close);
  open();
}

// A log that was scrolled to its end stays there when lines are added.
const atEnd = new WeakSet();
document.body.addEventListener("htmx:beforeSwap", () => {
  for (const log of document.querySelectorAll("pre.log")) {
    if (log.scrollTop + log.clientHeight >= log.scrollHeight - 4) atEnd.add(log);
    else atEnd.delete(log);
  }
});
document.body.addEventListener("htmx:afterSettle", () => {
  for (const log of document.querySelectorAll("pre.log")) {
    if (atEnd.has(log)) log.scrollTop = log.scrollHeight;
  }
});
for (const log of document.querySelectorAll("pre.log")) log.scrollTop = log.scrollHeight;
