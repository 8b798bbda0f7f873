"""Bugs of the rules in core, of workers and executors, and of what applications call."""

from __future__ import annotations

from tests.bugs.bug import CONFORMANCE, Edit, bug

CORE, ENGINE_FOLDER = "src/jobq/core", "src/jobq/engine"
EXECUTORS, API = "src/jobq/executors", "src/jobq/api"

CORE_RULES = (
    bug(
        "half of the delays at the cap of a retry are the same",
        "e18739e0",
        f"{CORE}/rules/backoff.py",
        "    return round(low + (high - low) * random())",
        "    return min(round(ms * (1 + jitter * (2 * random() - 1))), high)",
        found_by="tests/core/test_backoff.py",
    ),
    bug(
        "a run whose result cannot be encoded is retried",
        "f0f055bb",
        f"{CORE}/rules/decide.py",
        "case UndecodableArguments() | UnstorableResult():",
        "case UndecodableArguments():",
        found_by="tests/core/test_decide.py",
    ),
    bug(
        "a job whose cost exceeds a lowered bucket never starts",
        "changelog: A job whose cost exceeds a lowered bucket takes a full bucket",
        f"{CORE}/rules/limits.py",
        "min(cost, rate.capacity)",
        "cost",
        found_by="tests/core/test_limits.py",
    ),
    bug(
        "a bucket with a slow refill lets a job wait a millisecond too little",
        "changelog: A token bucket with a slow refill",
        f"{CORE}/rules/limits.py",
        "max(1, math.ceil((price - level - EPSILON / 2) * 1000 / rate.refill))",
        "max(1, math.ceil((price - level - EPSILON) * 1000 / rate.refill))",
        found_by="tests/core/test_limits.py",
    ),
    bug(
        "a caller that waits does not get a result with a retention of 0",
        "changelog: Retention(completed=0) with a caller waiting",
        f"{CORE}/rules/ended.py",
        "return max(ms, WATCHED_MS) if watched and ms is not None else ms",
        "return ms",
        found_by=(f"{CONFORMANCE}/test_watched_records.py", "--store", "sqlite"),
    ),
    bug(
        "a clock that is set back delays every lease by that time",
        "decision 9",
        f"{CORE}/rules/clock.py",
        "    if seen_ms - clock_ms < JITTER_MS:\n        return Reading(seen_ms, anchor)\n"
        "    return Reading(seen_ms, Anchor(seen_ms, clock_ms))",
        "    return Reading(seen_ms, None)",
        found_by="tests/core/test_clock.py",
    ),
    bug(
        "a lone surrogate in a log line fails the notes of all running jobs",
        "b5afc7f4",
        f"{ENGINE_FOLDER}/notes.py",
        "storable(line) for each",
        "line for each",
        found_by=("tests/engine/test_current.py", "-k", "escaped", "--store", "memory"),
    ),
)

WORKERS = (
    bug(
        "a run whose outcome cannot be decided keeps its slot for ever",
        "6d1ead0e",
        f"{ENGINE_FOLDER}/runner.py",
        "        with suppress(Exception):  # also the log may be what raised\n",
        "        return\n        with suppress(Exception):  # also the log may be what raised\n",
        Edit(
            f"{ENGINE_FOLDER}/runner.py",
            "            self.close(run, None)  # unless it is closed\n",
            "            pass\n",
        ),
        found_by=("tests/engine/test_slots_come_back.py", "-k", "policy", "--store", "memory"),
    ),
    bug(
        "a token that is replaced late costs outcomes and times of schedules",
        "d0218fb8, 5b248150",
        f"{ENGINE_FOLDER}/service.py",
        "NOT_NOW = (StoreUnavailable, TimeoutError, AccessDenied)",
        "NOT_NOW = (StoreUnavailable, TimeoutError)",
        found_by=("tests/engine/test_scheduler.py", "-k", "replaced_late", "--store", "memory"),
    ),
    bug(
        "stop(drain=0) hangs for longer than 5 s if its store is gone",
        "032e8b96",
        f"{ENGINE_FOLDER}/identity.py",
        "close_timeout_ms: int = 3_500",
        "close_timeout_ms: int = 10_000",
        found_by=("tests/engine/test_stopping.py", "-k", "adds_up"),
    ),
    bug(
        "a worker starts jobs that it had claimed before it was frozen",
        "changelog: A worker that was frozen for longer than its lease",
        f"{ENGINE_FOLDER}/runner.py",
        "if monotonic() - run.since > self.lease_s:",
        "if False:",
        found_by=("tests/engine/test_late.py", "-k", "before_a_freeze", "--store", "memory"),
    ),
    bug(
        "code that goes on after its run starts a step that nobody records",
        "3935a47f",
        f"{ENGINE_FOLDER}/run.py",
        "if step is not None and self.concluded:",
        "if False:",
        found_by=("tests/api/test_recorded_steps.py", "-k", "goes_on", "--store", "memory"),
    ),
    bug(
        "the slot of a thread that ends while it is cancelled is lost",
        "f2e19a5d",
        f"{EXECUTORS}/thread.py",
        "if not work.ended:",
        "if work.done.cancelled():",
        found_by="tests/executors/test_thread.py",
    ),
    bug(
        "a child that says Ready twice gets another job",
        "79e3558e",
        f"{EXECUTORS}/pool/messages.py",
        "State.BUSY: {**dict.fromkeys(_REQUESTS, State.BUSY), Done",
        "State.BUSY: {**dict.fromkeys(_REQUESTS, State.BUSY), Ready: State.IDLE, Done",
        found_by=("tests/executors/test_hostile_children.py", "-k", "says_ready"),
    ),
    bug(
        "a process that prints without a pause keeps its worker reading",
        "04ff0a0e",
        f"{EXECUTORS}/pool/output.py",
        "while left > 0 and (size := read()):",
        "while size := read():",
        found_by=("tests/executors/test_current_job.py", "-k", "what_is_in_a_pipe"),
    ),
    bug(
        "a job fails although its child died before it began it",
        "11a42223",
        f"{EXECUTORS}/process.py",
        "if not isinstance(ended, Died) or ended.begun:",
        "if True:",
        found_by=("tests/executors/test_process.py", "-k", "did_not_begin"),
    ),
    bug(
        "a thread that outlives its job reads the next job of its child",
        "fd1282c8",
        f"{EXECUTORS}/pool/inside/worker_connection.py",
        "        if n != self._running:\n            raise JobOver",
        "        if False:\n            raise JobOver",
        found_by=("tests/executors/test_current_job.py", "-k", "outlives_its_job"),
    ),
    bug(
        "a job that replaces a named path by a link leads the next one anywhere",
        "609af253",
        f"{EXECUTORS}/sandbox/granted_files.py",
        "        if permissions not in self._tables:\n",
        "        if True:\n",
        found_by=("tests/executors/sandbox/test_lives.py", "-k", "looked_up_once"),
        tier="test-all",
    ),
    bug(
        "a stop while a lifespan hangs at the start is an error",
        "034a1927",
        f"{EXECUTORS}/lifespan.py",
        "if task.cancelled() and self._stop.is_set():",
        "if False:",
        found_by=("tests/api/test_lifespan.py", "-k", "hangs_at_the_start", "--store", "memory"),
    ),
)

CALLERS = (
    bug(
        "enqueue hangs if the store raises an error that cannot be copied",
        "f7eb23b4",
        "src/jobq/client/sender.py",
        "        return error\n    copied.__cause__",
        "        raise\n    copied.__cause__",
        found_by=("tests/engine/test_sender.py", "-k", "cannot_be_copied", "--store", "memory"),
    ),
    bug(
        "a wait whose queue is closed listens to the closed store again",
        "fbe8ebe2",
        "src/jobq/client/waiting.py",
        "        if deadline.closed:  # a closed store must not be listened to again\n"
        "            raise over(job, deadline)\n",
        "",
        found_by=("tests/api/test_closing.py", "-k", "closed_store", "--store", "memory"),
    ),
    bug(
        "a wait takes a new job under a purged id for the first one",
        "f07d116f",
        "src/jobq/client/waiting.py",
        "if record is None or created_ms not in (None, record.created_ms):",
        "if record is None:",
        found_by=("tests/api/test_follow.py", "-k", "same_life", "--store", "memory"),
    ),
    bug(
        "a CancelledError of the handler itself is told as a timeout",
        "39a2f956",
        f"{API}/middleware.py",
        'isinstance(error, asyncio.CancelledError) and failure.reason == "timeout"',
        "isinstance(error, asyncio.CancelledError)",
        found_by=("tests/api/test_on_hooks.py", "--store", "memory"),
    ),
    bug(
        "a bulk rerun of several states runs a job again twice",
        "b05637ce",
        "src/jobq/operations/bulk.py",
        "if not self._is_new(record)]",
        "if True]",
        found_by=("tests/api/test_selection.py", "-k", "another_selected", "--store", "memory"),
    ),
    bug(
        "a slow bulk purge removes a job that was rerun meanwhile",
        "a4349a58",
        "src/jobq/operations/bulk.py",
        "life=each.life, ",
        "",
        found_by=("tests/api/test_selection.py", "-k", "purge_at_a_pace", "--store", "memory"),
    ),
)

ENGINE = (*CORE_RULES, *WORKERS, *CALLERS)
