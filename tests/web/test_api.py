"""The JSON API: what it reads, what it does, and the document that describes it."""

from __future__ import annotations

from typing import Any

import msgspec

from jobq.core.records.jobs import JobKey, JobSpec, QueueName
from jobq.core.records.states import State
from jobq.stores.base import Store
from jobq.web import api
from jobq.web.data.actions import ACTIONS
from jobq.web.data.reads import READS
from tests.web.conftest import Make
from tests.web.kit import actors, fill

MAIL = {"tenant": "acme", "queue": "mail"}


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


async def test_the_overview_has_queues_workers_and_the_newest_failures(
    store: Store, browse: Make
) -> None:
    await fill(store)
    found = await browse(store).read("overview")
    (mail,) = [row for row in found["queues"] if row["queue"] == "mail"]
    assert mail["counts"] == {
        "delayed": 2,
        "blocked": 1,
        "waiting": 2,
        "active": 1,
        "completed": 1,
        "failed": 1,
        "cancelled": 0,
    }
    assert mail["depth"] == 5
    assert mail["workers"] == 1
    assert mail["run"]["of"] == mail["wait"]["of"] == 3
    assert mail["rates"]["completed"] == 0.2
    assert len(mail["completed_per_minute"]) == 60
    assert sum(mail["completed_per_minute"]) == 1
    assert (found["workers"], found["active"], found["concurrency"]) == (1, 1, 5)
    assert [row["id"] for row in found["failures"]] == ["failed"]


async def test_the_page_of_a_queue_has_its_settings_and_newest_events(
    store: Store, browse: Make
) -> None:
    queue = await fill(store)
    await store.hold(queue, 60_000, actor="ann")
    found = await browse(store).read("queue", **MAIL)
    assert found["row"]["held_until_ms"]
    assert found["dead_letters"] == "dead"
    assert len(found["minutes"]) == 60
    assert found["recent"][0]["kind"] == "held"
    assert found["recent"][0]["actor"] == "ann"
    kinds = {event["kind"] for event in found["recent"]}
    assert {"accepted", "started", "completed", "failed", "retried"} <= kinds


async def test_the_page_of_a_job_tells_what_happened_to_it(store: Store, browse: Make) -> None:
    await fill(store)
    browser = browse(store)
    done = await browser.read("job", **MAIL, id="done")
    assert [entry["kind"] for entry in done["timeline"]] == ["accepted", "started", "completed"]
    assert done["lines"][1] == "second"
    assert done["percent"] == 75
    assert [step["name"] for step in done["steps"]] == ["first"]
    assert "what only" in done["result"]["text"]
    again = await browser.read("job", **MAIL, id="again")
    assert [entry["kind"] for entry in again["timeline"]] == ["accepted", "started", "retried"]
    assert again["attempts"][0]["traceback"].startswith("Traceback")
    assert "promote" in again["applies"]


async def test_jobs_are_found_by_state_task_id_and_error_page_by_page(
    store: Store, browse: Make
) -> None:
    await fill(store)
    browser = browse(store)

    async def ids(**query: Any) -> list[str]:
        found: list[str] = []
        cursor = None
        while True:
            page = await browser.read("jobs", **MAIL, cursor=cursor, limit=1, **query)
            found += [job["id"] for job in page["jobs"]]
            if (cursor := page["cursor"]) is None:
                return sorted(found)

    assert await ids(state="waiting") == ["part", "waiting"]
    assert await ids(state="failed,completed") == ["done", "failed"]
    assert await ids(error="feed1234beef", state="failed") == ["failed"]
    assert await ids(name="se*", state="active") == ["running"]
    assert await ids(name="other") == []
    assert await ids(id="later") == ["later"]
    assert await ids(created_after_ms=4_000_000_000_000) == []


async def test_failed_jobs_are_grouped_by_error(store: Store, browse: Make) -> None:
    await fill(store)
    found = await browse(store).read("dead", **MAIL)
    (group,) = found["groups"]
    assert group["fingerprint"] == "feed1234beef"
    assert group["type"] == "ValueError"
    assert (group["jobs"], found["failed"], found["complete"]) == (1, 1, True)


async def test_flows_schedules_workers_and_tenants_are_listed(store: Store, browse: Make) -> None:
    await fill(store, "acme")
    await fill(store, "other")
    browser = browse(store)
    assert [f["job"]["id"] for f in (await browser.read("flows", **MAIL))["flows"]] == ["whole"]
    graph = await browser.read("flow", **MAIL, id="part")
    assert [(n["id"], n["layer"]) for n in graph["nodes"]] == [("whole", 0), ("part", 1)]
    assert graph["edges"] == [{"waiter": 0, "waited_for": 1}]
    (nightly,) = (await browser.read("schedules", **MAIL))["schedules"]
    assert nightly["when"] == "every 1 h"
    assert len(nightly["upcoming_ms"]) == 5
    listed = (await browser.read("workers"))["workers"]
    assert [worker["name"] for worker in listed] == ["acme:w", "other:w"]
    shown = await browser.read("worker", name="acme:w")
    assert [job["id"] for job in shown["jobs"]] == ["running"]
    tenants = (await browser.read("tenants"))["tenants"]
    assert [(t["tenant"], t["workers"]) for t in tenants] == [("acme", 1), ("other", 1)]


async def test_a_wrong_question_says_what_is_wrong(memory: Store, browse: Make) -> None:
    browser = browse(memory)
    for path, query, status, words in (
        ("jobs", {**MAIL, "colour": "red"}, 400, "unknown field 'colour'"),
        ("jobs", {**MAIL, "state": "sleeping"}, 400, "sleeping"),
        ("jobs", {**MAIL, "cursor": "x"}, 400, "cursor"),
        ("jobs", {"tenant": "acme"}, 400, "queue"),
        ("queue", {**MAIL, "minutes": "many"}, 400, "minutes"),
        ("job", {**MAIL, "id": "nobody"}, 404, "nobody"),
        ("queue", {"tenant": "acme", "queue": "none"}, 404, "none"),
        ("worker", {"name": "none"}, 404, "none"),
        ("nothing", {}, 404, "no such page"),
    ):
        reply = await browser.get(f"/api/v1/{path}", **query)
        assert reply.status_code == status, (path, reply.text)
        assert words in reply.json()["detail"], path
        assert reply.headers["content-type"] == "application/problem+json"


async def test_a_large_argument_is_cut_on_the_server(store: Store, browse: Make) -> None:
    queue = QueueName("acme", "mail")
    payload = b'[[],{"text":"' + b"x" * 3_000_000 + b'"}]'
    await store.put([JobSpec(queue=queue, id="large", name="send", payload=payload)])
    browser = browse(store)
    for path, query in (("job", {"id": "large"}), ("jobs", {}), ("queue", {})):
        reply = await browser.get(f"/api/v1/{path}", **MAIL, **query)
        assert len(reply.content) < 20_000, path
    shown = (await browser.read("job", **MAIL, id="large"))["arguments"]
    assert (shown["size"], shown["cut"], len(shown["text"])) == (len(payload), True, 4_096)
    whole = await browser.get("/payload", **MAIL, id="large", part="arguments")
    assert whole.content == payload
    assert whole.headers["content-disposition"].startswith("attachment")


# ── actions ───────────────────────────────────────────────────────────────────────────────────────


async def test_actions_on_a_queue_are_carried_out_and_name_who_did_them(
    store: Store, browse: Make
) -> None:
    queue = await fill(store)
    browser = browse(store)
    await browser.act("queue.pause", **MAIL)
    assert (await store.stats(queue)).paused
    await browser.act("queue.resume", **MAIL)
    assert not (await store.stats(queue)).paused
    await browser.act("queue.hold", **MAIL, seconds=60)
    assert (await browser.act("queue.release-hold", **MAIL))["changed"] == 1
    await browser.act("queue.limits", **MAIL, limit=7, rate="100/1m")
    (record,) = [each for each in await store.queues("acme") if each.queue == queue]
    assert record.limits.effective.limit == 7
    assert (await browser.read("queue", **MAIL))["limits"]["rate"] == "100/60s"
    await browser.act("queue.limits", **MAIL, reset=True)
    assert (await browser.act("queue.release-lock", **MAIL, lock="lock"))["changed"] == 0
    assert (await browser.act("queue.clear", **MAIL))["changed"] == 2
    assert (await browser.act("queue.purge", **MAIL, state="completed"))["changed"] == 1
    found = await actors(store, queue)
    for kind in ("paused", "resumed", "held", "released_hold", "limits", "cleared", "purged"):
        assert found[kind] == "dashboard", kind


async def test_actions_on_a_job_are_carried_out_and_name_who_did_them(
    store: Store, browse: Make
) -> None:
    queue = await fill(store)
    browser = browse(store)

    async def state(id: str) -> State | None:
        (record,) = await store.get([JobKey(queue, id)])
        return None if record is None else record.state

    await browser.act("job.promote", **MAIL, id="later")
    assert await state("later") is State.WAITING
    await browser.act("job.reschedule", **MAIL, id="later", delay_s=3600)
    assert await state("later") is State.DELAYED
    await browser.act("job.reprioritise", **MAIL, id="later", priority=5)
    await browser.act("job.update", **MAIL, id="later", arguments='{"to": "bob"}')
    (record,) = await store.get([JobKey(queue, "later")])
    assert record is not None
    assert (record.priority, msgspec.json.decode(record.payload)[-1]) == (5, {"to": "bob"})
    await browser.act("job.signal", **MAIL, id="later", name="go", value="1")
    await browser.act("job.cancel", **MAIL, id="later")
    assert await state("later") is State.CANCELLED
    await browser.act("job.revive", **MAIL, id="failed")
    assert await state("failed") is State.WAITING
    await browser.act("job.rerun", **MAIL, id="done")
    assert await state("done") is State.WAITING
    await browser.act("job.remove", **MAIL, id="later")
    assert await state("later") is None
    late = await browser.act("job.promote", **MAIL, id="running")
    assert late == {"changed": 0, "message": "Nothing changed: the job is active."}
    found = await actors(store, queue)
    for kind in ("promoted", "changed", "cancelled", "rerun"):
        assert found[kind] == "dashboard", kind


async def test_a_schedule_is_run_paused_resumed_and_removed(store: Store, browse: Make) -> None:
    queue = await fill(store)
    browser = browse(store)
    nightly = {**MAIL, "id": "nightly"}
    message = (await browser.act("schedule.run", **nightly))["message"]
    job = await browser.read("job", **MAIL, id=message.removeprefix("Enqueued job ").rstrip("."))
    assert job["row"]["state"] == "waiting"
    assert [e["actor"] for e in job["timeline"] if e["kind"] == "promoted"] == ["dashboard"]
    await browser.act("schedule.pause", **nightly)
    assert (await browser.read("schedules", **MAIL))["schedules"][0]["paused"]
    assert (await browser.act("schedule.pause", **nightly))["changed"] == 0
    await browser.act("schedule.resume", **nightly)
    await browser.act("schedule.remove", **nightly)
    assert (await browser.read("schedules", **MAIL))["schedules"] == []
    assert (await actors(store, queue))["schedule"] == "dashboard"
    assert (await browser.post("schedule/run", **nightly)).status_code == 404


async def test_a_worker_receives_what_it_is_asked(store: Store, browse: Make) -> None:
    await fill(store)
    browser = browse(store)
    (worker,) = await store.workers()
    for action, request in (
        ("drain", "drain"),
        ("resume", "resume"),
        ("stop", "shutdown"),
        ("stop-now", "shutdown-now"),
    ):
        await browser.act(f"worker.{action}", name=worker.name)
        assert (await store.beat(worker, ttl_ms=60_000)).request == request
    await browser.act("worker.concurrency", name=worker.name, concurrency=9)
    assert (await store.beat(worker, ttl_ms=60_000)).request == "concurrency=9"
    assert (await browser.post("worker/drain", name="none")).status_code == 404


async def test_a_flow_is_run_again_without_its_finished_jobs(store: Store, browse: Make) -> None:
    queue = await fill(store)
    browser = browse(store)
    await browser.act("job.cancel", **MAIL, id="whole", cascade=True)
    assert (await browser.act("flow.rerun", **MAIL, id="whole"))["changed"] == 2
    states = [
        r.state for r in await store.get([JobKey(queue, "whole"), JobKey(queue, "part")]) if r
    ]
    assert states == [State.BLOCKED, State.WAITING]


async def test_a_bulk_action_changes_all_jobs_that_match_in_bounded_steps(
    store: Store, browse: Make
) -> None:
    queue = QueueName("acme", "mail")
    specs = [
        JobSpec(queue=queue, id=f"{n}", name="odd" if n % 2 else "even", payload=b"[[],{}]")
        for n in range(1_200)
    ]
    await store.put(specs)
    browser = browse(store)
    body = {**MAIL, "state": "waiting", "name": "even"}
    preview = await browser.read("jobs/preview", **body)
    assert preview["matched"] == 600
    exact = await browser.read("jobs/preview", **MAIL, state="waiting")
    assert (exact["matched"], exact["complete"], len(exact["samples"])) == (1_200, True, 5)
    changed, steps, cursor, began = 0, 0, None, None
    while True:
        done = await browser.act("jobs.cancel", **body, cursor=cursor, began_ms=began)
        changed, steps = changed + done["changed"], steps + 1
        cursor, began = done["cursor"], done["began_ms"]
        if cursor is None:
            break
    assert changed == 600
    assert steps > 1
    assert (await store.count(queue))[State.WAITING] == 600


async def test_a_job_that_was_rerun_from_one_state_is_not_rerun_from_another(
    store: Store, browse: Make
) -> None:
    await fill(store)
    browser = browse(store)
    body = {**MAIL, "state": "completed,failed"}
    began = (await browser.read("overview"))["now_ms"] - 3_600_000
    done = await browser.act("jobs.rerun", **body, began_ms=began)
    assert done["changed"] == 0  # both jobs have ended since
    assert (await browser.act("jobs.rerun", **body, began_ms=began + 7_200_000))["changed"] == 2


async def test_a_bulk_action_refuses_states_that_it_does_not_apply_to(
    memory: Store, browse: Make
) -> None:
    browser = browse(memory)
    reply = await browser.post("jobs/rerun", **MAIL, state="waiting")
    assert reply.status_code == 400
    assert "rerun does not apply to waiting jobs" in reply.json()["detail"]
    assert (await browser.post("jobs/cancel", **MAIL, state="")).status_code == 400


WRONG: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("queue/pause", {"tenant": "acme", "queue": "typo"}, "no queue 'typo'"),
    ("queue/pause", {"tenant": "acme"}, "queue"),
    ("queue/pause", {**MAIL, "colour": 1}, "unknown field 'colour'"),
    ("queue/hold", {**MAIL, "seconds": -1}, "seconds"),
    ("queue/hold", {**MAIL, "seconds": "60"}, "seconds"),
    ("queue/limits", {**MAIL, "limit": 0}, "limit"),
    ("queue/limits", {**MAIL, "rate": "often"}, "not a rate"),
    ("queue/purge", {**MAIL, "state": "waiting"}, "purge completed"),
    ("job/update", {**MAIL, "id": "later", "arguments": "{"}, "not valid JSON"),
    ("job/update", {**MAIL, "id": "later", "arguments": "1"}, "list or object"),
    ("job/reprioritise", {**MAIL, "id": "later", "priority": -1}, "priority"),
    ("job/signal", {**MAIL, "id": "later", "name": "$jobq.x"}, "reserved"),
    ("worker/concurrency", {"name": "acme:w", "concurrency": 0}, "concurrency"),
)


async def test_a_wrong_action_changes_nothing_and_says_what_is_wrong(
    memory: Store, browse: Make
) -> None:
    queue = QueueName("acme", "mail")
    before = (await memory.queues(), await memory.read_events(queue, after="0"))
    browser = browse(memory)
    for path, body, words in WRONG:
        reply = await browser.post(path, **body)
        assert reply.status_code in (400, 404), (path, reply.text)
        assert words in reply.json()["detail"], path
    assert (await memory.queues(), await memory.read_events(queue, after="0")) == before


# ── the document ──────────────────────────────────────────────────────────────────────────────────


async def test_the_openapi_document_describes_exactly_the_routes(
    memory: Store, browse: Make
) -> None:
    document = await browse(memory).read("openapi.json")
    described = {
        (method.upper(), f"{api.PREFIX}{path}")
        for path, methods in document["paths"].items()
        for method in methods
    }
    served = {
        (method, route.path)
        for route in api.routes()
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert described == served
    assert len(served) == len(READS) + len(ACTIONS) + 2


async def test_every_reply_is_as_the_document_says(memory: Store, browse: Make) -> None:
    browser = browse(memory)
    queries: dict[str, dict[str, str]] = {
        "/queue": MAIL,
        "/queue/minutes": MAIL,
        "/queue/events": MAIL,
        "/jobs": MAIL,
        "/jobs/preview": MAIL,
        "/job": {**MAIL, "id": "done"},
        "/flow": {**MAIL, "id": "whole"},
        "/worker": {"name": "acme:w"},
    }
    for read in READS:
        reply = await browser.get(f"/api/v1{read.path}", **queries.get(read.path, {}))
        assert reply.status_code == 200, reply.text
        decoded = msgspec.json.decode(reply.content, type=read.reply)
        assert msgspec.json.encode(decoded) == reply.content, read.path


def test_every_route_has_a_sentence_that_describes_it() -> None:
    document = api.document("/api/v1")
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["summary"].endswith("."), path
