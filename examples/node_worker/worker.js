// A worker for jobq in Node.js. It needs only proto/jobq/v1, which it reads when it starts.
//
// The worker registers, receives jobs on a stream within its credit, sends heartbeats that name its
// running jobs, reports ended runs in batches, and stops gracefully on SIGTERM.

import { readFileSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const here = path.dirname(fileURLToPath(import.meta.url));
const { values: options } = parseArgs({
  options: {
    "server-addr": { type: "string", default: "127.0.0.1:50051" },
    queues: { type: "string", default: "default" },
    concurrency: { type: "string", default: "10" },
    "worker-id": { type: "string", default: "" },
    "tls-ca": { type: "string" }, // without it the connection is plaintext
    "token-file": { type: "string" }, // default: JQ_TOKEN
    grace: { type: "string", default: "30" }, // seconds that jobs may run on after SIGTERM
    proto: { type: "string", default: path.join(here, "../../proto") },
  },
});

// A handler gets the arguments of the job, and { job, signal }. The signal is aborted when the job
// is cancelled, when its lease is lost, and when its timeout has passed.
const handlers = {
  greet: async ([name]) => {
    if (typeof name !== "string") throw new TypeError("greet takes one string");
    return `hello ${name} from node`;
  },
  nap: ([seconds], _, { signal }) =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(() => resolve(seconds), seconds * 1000);
      signal.addEventListener("abort", () => {
        clearTimeout(timer);
        reject(signal.reason);
      });
    }),
};

const CALL_MS = 10_000; // for one call
const DEAF_MS = 15_000; // the server sends something at least every 5 s
const MAX_REPORTS = 1000; // results of one Report
const TEMPORARY = new Set([
  grpc.status.UNAVAILABLE,
  grpc.status.DEADLINE_EXCEEDED,
  grpc.status.RESOURCE_EXHAUSTED,
  grpc.status.ABORTED,
]);

const { jobq } = grpc.loadPackageDefinition(
  loader.loadSync("jobq/v1/workers.proto", {
    includeDirs: [options.proto],
    keepCase: true,
    longs: Number, // times in milliseconds fit
    defaults: true,
    oneofs: true,
  }),
);
const client = new jobq.v1.WorkerService(
  options["server-addr"],
  options["tls-ca"]
    ? grpc.credentials.createSsl(readFileSync(options["tls-ca"]))
    : grpc.credentials.createInsecure(),
);

const concurrency = Number(options.concurrency);
const running = new Map(); // token → { ref, abort, ended }
const unreported = [];
let worker = options["worker-id"];
let session = "";
let stream = null;
let stopping = false;
let reporting = false;
let calls = 0;
let wake = () => {};

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const refOf = ({ queue, id, token }) => ({ queue, id, token });
const refs = () => [...running.values()].map((run) => run.ref);
const log = (...words) => console.error(new Date().toISOString(), ...words);

function metadata() {
  const made = new grpc.Metadata();
  // Read again for each call: a token in a file may be renewed.
  const file = options["token-file"];
  const token = file ? readFileSync(file, "utf8").trim() : process.env.JQ_TOKEN;
  if (token) made.set("authorization", `Bearer ${token}`);
  return made;
}

function ask(method, request) {
  return new Promise((resolve, reject) => {
    const deadline = Date.now() + CALL_MS;
    client[method](request, metadata(), { deadline }, (error, reply) =>
      error ? reject(error) : resolve(reply),
    );
  });
}

async function askUntilAnswered(method, request) {
  for (;;) {
    try {
      return await ask(method, request);
    } catch (error) {
      if (!TEMPORARY.has(error.code)) throw error;
      await pause(1000);
    }
  }
}

// ── the stream ──────────────────────────────────────────────────────────────────────────────────

async function streamUntilStopped() {
  for (let wait = 100; !stopping; wait = Math.min(2 * wait, 5000)) {
    const opened = Date.now();
    const error = await streamOnce();
    if (stopping) return;
    log(`the stream ended: ${error?.message ?? "closed by the server"}`);
    if (Date.now() - opened > DEAF_MS) wait = 100;
    await Promise.race([pause(wait), stopped]);
  }
}

function streamOnce() {
  return new Promise((resolve) => {
    const opened = client.StreamJobs(metadata());
    let deaf;
    const hear = () => {
      clearTimeout(deaf);
      deaf = setTimeout(() => {
        opened.cancel();
        end(new Error("nothing was received for too long"));
      }, DEAF_MS);
    };
    const end = (error) => {
      clearTimeout(deaf);
      if (stream === opened) stream = null;
      resolve(error);
    };
    opened.on("data", (message) => {
      hear();
      take(opened, message);
    });
    opened.on("error", end);
    opened.on("end", () => end());
    stopped.then(() => {
      opened.cancel();
      end();
    });
    hear();
    opened.write({
      open: { worker, session, running: refs() },
      credit: concurrency - running.size,
    });
    stream = opened;
  });
}

function take(opened, { jobs, cancelled, request }) {
  if (jobs.length) opened.write({ received: jobs.map(refOf) }); // confirm before anything starts
  for (const job of jobs) start(job);
  for (const { token } of cancelled) running.get(token)?.abort.abort(new Error("cancelled"));
  obey(request);
  if (!jobs.length && !cancelled.length && !request) opened.write({}); // alive
}

// ── jobs ────────────────────────────────────────────────────────────────────────────────────────

async function start(job) {
  const abort = new AbortController();
  running.set(job.token, { ref: refOf(job), abort });
  const timer =
    job.timeout_ms > 0
      ? setTimeout(() => abort.abort(new DOMException("timed out", "TimeoutError")), job.timeout_ms)
      : null;
  const result = await run(job, abort.signal);
  clearTimeout(timer);
  if (running.has(job.token)) {
    // A lost or released job is reported by nobody.
    running.get(job.token).ended = true;
    unreported.push(result);
    report();
  }
}

async function run(job, signal) {
  const lease = refOf(job);
  const handler = handlers[job.name];
  if (!handler) return { lease, unknown: { unknown_ms: job.unknown_ms } }; // others may know it
  try {
    if (job.codec !== "json") throw new TypeError(`the codec ${job.codec} is not known`);
    const [args, kwargs] = JSON.parse(job.payload);
    const value = await handler(args, kwargs, { job, signal });
    return { lease, completed: { result: Buffer.from(JSON.stringify(value ?? null)) } };
  } catch (error) {
    const reason = error?.name === "TimeoutError" ? "timeout" : "error";
    const { name = "Error", message = String(error), stack = "" } = error ?? {};
    return { lease, failed: { type: name, message, traceback: stack, reason } };
  }
}

// Results that arrive while a call is under way go with the next one.
async function report() {
  if (reporting) return;
  reporting = true;
  while (unreported.length) {
    const results = unreported.splice(0, MAX_REPORTS);
    try {
      // The name of the call makes it safe to repeat.
      const call = `r${process.pid}-${++calls}`;
      const { stale } = await askUntilAnswered("Report", { worker, results, call });
      for (const { id } of stale) log(`job ${id}: the lease was lost, the result was not stored`);
    } catch (error) {
      log(`${results.length} results were refused: ${error.message}`);
    }
    forget(results.map(({ lease }) => lease));
  }
  reporting = false;
}

// Removes ended jobs, and gives their credit back.
function forget(leases) {
  const credit = leases.filter(({ token }) => running.delete(token)).length;
  if (credit && stream) stream.write({ credit });
  if (!running.size) wake();
}

// ── heartbeats and the end ──────────────────────────────────────────────────────────────────────

async function beat() {
  try {
    const reply = await ask("Heartbeat", { worker, session, running: refs() });
    for (const { lease, state } of reply.changed) {
      running.get(lease.token)?.abort.abort(new Error(state));
      if (state === "lost") forget([lease]);
    }
    obey(reply.request);
  } catch (error) {
    log(`heartbeat: ${error.message}`);
    if (error.code === grpc.status.FAILED_PRECONDITION) stop(true); // another worker has the name
  }
}

// Does what an operator asks. The server itself sends no jobs to a worker that drains.
function obey(request) {
  if (request === "shutdown") stop(false);
  if (request === "shutdown-now") stop(true);
}

let stop;
const stopped = new Promise((resolve) => {
  let asked = 0;
  stop = (now) => {
    asked += 1;
    stopping = true;
    if (now || asked > 1) wake();
    resolve(now);
  };
});
process.on("SIGTERM", () => stop(false));
process.on("SIGINT", () => stop(false));

const registered = await askUntilAnswered("Register", {
  worker,
  queues: options.queues.split(","),
  concurrency,
  host: os.hostname(),
  pid: process.pid,
});
({ worker, session } = registered);
log(`worker ${worker} takes jobs from ${options.queues}`);
const beats = setInterval(beat, registered.heartbeat_ms);
await streamUntilStopped();

// Jobs that outlast the grace time are released. That costs them no retry.
if (running.size && !(await stopped)) {
  const idle = new Promise((resolve) => (wake = resolve));
  await Promise.race([idle, pause(Number(options.grace) * 1000)]);
}
const unfinished = [...running.values()].filter((run) => !run.ended);
if (unfinished.length) {
  const leases = unfinished.map((run) => run.ref);
  log(`releasing ${leases.length} jobs that have not ended`);
  for (const { abort } of unfinished) abort.abort(new Error("the worker stops"));
  forget(leases);
  await ask("Release", { worker, leases }).catch((error) => log(`release: ${error.message}`));
}
if (running.size) {
  const reported = new Promise((resolve) => (wake = resolve));
  await Promise.race([reported, pause(CALL_MS)]);
}
clearInterval(beats);
await ask("Deregister", { worker, session }).catch((error) => log(error.message));
log(`worker ${worker} has stopped`);
process.exit(0);
