"""Every action by its button, on a live store with workers: the page shows it without a reload."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from jobq import Event, Job, Queue, Rate, State, current_job
from tests.waiting import wait_until
from tests.web.browser.conftest import Opens
from tests.web.browser.live import GATES, add_tasks
from tests.web.browser.shop import Shop
from tests.web.browser.tab import Tab


@pytest.fixture
def queue(shop: Shop, request: pytest.FixtureRequest) -> Queue:
    """A queue of the test's own, which shop-1 does not serve."""
    made = shop.live.queue(f"own {request.node.name}"[:100])
    add_tasks(made)
    return made


def where(queue: Queue) -> dict[str, str]:
    return {"tenant": queue.qname.tenant, "queue": queue.name}


def events(shop: Shop, queue: Queue) -> list[Event]:
    async def read() -> list[Event]:
        return [event async for event in queue.events(after="0", follow=False)]

    return shop.live.run(read())


def actors(shop: Shop, queue: Queue) -> dict[str, str | None]:
    """Who did what last, by the kind of event."""
    return {event.kind: event.actor for event in events(shop, queue)}


def shows_state(opened: Tab, state: str) -> None:
    """Wait until the head of the page shows a state."""
    opened.find(f".head .state.{state}").first.wait_for()


# ── queues ────────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_is_paused_and_resumed(tab: Opens, shop: Shop, queue: Queue) -> None:
    shop.enqueue(queue, "charge", "bob")
    opened = tab("/queue", **where(queue))
    opened.click("Pause")
    opened.agree("Pause")
    shows_state(opened, "paused")
    assert shop.live.run(queue.stats()).paused
    opened.click("Resume")
    wait_until(lambda: not shop.live.run(queue.stats()).paused, "the queue to go on")
    kinds = actors(shop, queue)
    assert "dashboard" in (kinds["paused"] or "")
    assert "dashboard" in (kinds["resumed"] or "")


def test_a_queue_is_held_and_released(tab: Opens, shop: Shop, queue: Queue) -> None:
    shop.enqueue(queue, "charge", "bob")
    opened = tab("/queue", **where(queue))
    opened.click("Hold")
    opened.find("#hold [name=seconds]").fill("600")
    opened.agree("Hold")
    opened.said("for 600 s.")
    notice = opened.find(".notice", has_text="No job of this queue starts before")
    notice.wait_for()
    until = shop.live.run(queue.stats()).held_until
    assert until is not None
    assert 500 < (until - datetime.now(UTC)).total_seconds() <= 600
    opened.click("Release the hold")
    notice.wait_for(state="detached")
    assert shop.live.run(queue.stats()).held_until is None
    kinds = actors(shop, queue)
    assert "dashboard" in (kinds["held"] or "")
    assert "dashboard" in (kinds["released_hold"] or "")


def test_the_limits_of_a_queue_are_changed_and_restored(
    tab: Opens, shop: Shop, queue: Queue
) -> None:
    shop.enqueue(queue, "charge", "bob")
    opened = tab("/queue", **where(queue))
    opened.click("Limits")
    for name, value in {"limit": "7", "rate": "100/1m", "max_waiting": "1000"}.items():
        opened.find(f"#limits [name={name}]").fill(value)
    opened.agree("Set the limits")
    opened.find("#queue .facts", has_text="100/60s").wait_for()
    found = shop.live.run(queue.limits())
    assert (found.limit, found.rate, found.max_waiting) == (7, Rate(100, per=60), 1000)
    opened.click("Restore")
    opened.agree("Restore")
    opened.find("#queue .facts", has_text="100/60s").wait_for(state="detached")
    assert shop.live.run(queue.limits()).limit is None
    assert "dashboard" in (actors(shop, queue)["limits"] or "")


# ── single jobs ───────────────────────────────────────────────────────────────────────────────────


def open_job(tab: Opens, queue: Queue, job: Job[Any]) -> Tab:
    return tab("/job", **where(queue), id=job.id)


def test_a_delayed_job_is_edited_and_promoted_and_runs(
    tab: Opens, shop: Shop, queue: Queue
) -> None:
    job = shop.enqueue(queue, "charge", "bob", delay=3600)
    opened = open_job(tab, queue, job)
    opened.click("Edit")
    opened.find("#update textarea").fill("[carol]")
    opened.agree("Save")
    assert opened.find("#update[open] :invalid").count() > 0, "what is no JSON was sent"
    opened.find("#update textarea").fill('["carol"]')
    opened.agree("Save")
    opened.find("pre", has_text="carol").first.wait_for()
    opened.click("Promote")
    shows_state(opened, "waiting")
    shop.live.work(queue, name=f"for {job.id}")
    shows_state(opened, "completed")
    assert shop.live.run(job.info()).result == {"customer": "carol", "cents": 100}
    assert "charging carol" in opened.text()


def test_a_job_gets_another_time_and_another_priority(tab: Opens, shop: Shop, queue: Queue) -> None:
    job = shop.enqueue(queue, "charge", "bob", delay=3600)
    opened = open_job(tab, queue, job)
    opened.click("Reschedule")
    opened.find("#reschedule [name=delay_s]").fill("7200.5")
    opened.agree("Reschedule")
    opened.said("Rescheduled job")
    due = shop.live.run(job.info()).due_at
    assert due is not None
    assert 7000 < (due - datetime.now(UTC)).total_seconds() <= 7200.5
    opened.click("Priority")
    opened.find("#reprioritise [name=priority]").fill("9")
    opened.agree("Change")
    opened.said("Changed the priority")
    assert shop.live.run(job.info()).priority == 9


def test_a_signal_reaches_a_job_whose_page_was_opened_before_it_could_get_one(
    tab: Opens, shop: Shop, queue: Queue
) -> None:
    @queue.task(name="approve", retry=0)
    async def approve() -> object:
        return await current_job().wait_for_signal("decision")

    job = shop.enqueue(queue, "approve")
    shop.live.run(job.cancel())
    opened = open_job(tab, queue, job)
    shows_state(opened, "cancelled")
    opened.click("Run again")
    opened.agree("Run again")
    shop.live.work(queue, name="for signal")
    shows_state(opened, "blocked")
    opened.click("Signal")
    opened.find("#signal [name=name]").fill("decision")
    opened.find("#signal [name=value]").fill('{"by": "ann"}')
    opened.agree("Send")
    shows_state(opened, "completed")
    assert shop.live.run(queue.job(job.id).info()).result == {"by": "ann"}


def test_a_running_job_is_cancelled(tab: Opens, shop: Shop, queue: Queue) -> None:
    shop.live.work(queue, name="for cancel")
    job = shop.enqueue(queue, "wait")
    opened = open_job(tab, queue, job)
    shows_state(opened, "active")
    opened.find("pre", has_text="waiting at the gate").wait_for()
    opened.click("Cancel")
    opened.agree("Cancel")
    shows_state(opened, "cancelled")
    assert "dashboard" in (actors(shop, queue)["cancelled"] or "")


def test_a_failed_job_is_run_again_and_removed(tab: Opens, shop: Shop, queue: Queue) -> None:
    shop.live.work(queue, name="for rerun")
    job = shop.enqueue(queue, "decline", "dave")
    shop.end(job)
    opened = open_job(tab, queue, job)
    assert "Traceback" in opened.text()
    opened.click("Run again")
    opened.agree("Run again")
    again = queue.job(job.id)
    wait_until(lambda: shop.live.run(again.info()).life == 1, "the second life of the job")
    shop.end(again)
    opened.find("dt", has_text="Run again").wait_for()
    shows_state(opened, "failed")
    opened.click("Remove")
    opened.agree("Remove")
    opened.page.wait_for_url("**/jobs?*")
    assert opened.row(job.id).count() == 0


# ── many jobs ─────────────────────────────────────────────────────────────────────────────────────


def test_all_jobs_that_match_are_cancelled_after_a_preview(
    tab: Opens, shop: Shop, queue: Queue
) -> None:
    for n in range(7):
        shop.enqueue(queue, "charge" if n < 5 else "add", f"customer {n}")
    opened = tab("/jobs", **where(queue), state="waiting", name="charge")
    opened.click("Cancel…")
    dialog = opened.find("dialog[open]")
    dialog.get_by_text("5 jobs").first.wait_for()
    assert shop.live.run(queue.counts())[State.WAITING] == 7
    opened.agree("Cancel")
    opened.said("Cancelled: 5.")
    assert shop.live.run(queue.counts())[State.WAITING] == 2
    opened.find("text=No job matches").wait_for()


def test_the_jobs_of_one_cause_are_rerun_or_purged(tab: Opens, shop: Shop, queue: Queue) -> None:
    worker = shop.live.work(queue, name="for dead")
    jobs = [shop.enqueue(queue, "decline", f"customer {n}") for n in range(4)]
    jobs += [shop.enqueue(queue, "refuse", f"customer {n}") for n in range(3)]
    shop.end(*jobs)
    shop.live.run(worker.stop())
    opened = tab("/dead", **where(queue))
    assert "7 failed jobs" in opened.text()
    cause = opened.row("decline")
    assert cause.locator("td").first.inner_text() == "4"
    opened.click("Rerun", cause)
    assert "4 failed jobs of decline" in opened.find("dialog[open]").inner_text()
    opened.agree("Rerun")
    opened.said("Rerun: 4.")
    opened.row("decline").wait_for(state="detached")
    counts = shop.live.run(queue.counts())
    assert (counts[State.WAITING], counts[State.FAILED]) == (4, 3)
    opened.click("Purge", opened.row("refuse"))
    opened.agree("Purge")
    opened.said("Purged: 3.")
    opened.find("text=No failed jobs").wait_for()
    assert shop.live.run(queue.counts())[State.FAILED] == 0


def test_closing_the_question_changes_nothing(tab: Opens, shop: Shop) -> None:
    before = shop.live.run(shop.billing.counts())[State.FAILED]
    opened = tab("/dead", **where(shop.billing))
    opened.click("Purge all")
    opened.agree("Leave them")
    assert opened.find("dialog[open]").count() == 0
    assert shop.live.run(shop.billing.counts())[State.FAILED] == before


# ── schedules ─────────────────────────────────────────────────────────────────────────────────────


def test_a_schedule_is_run_paused_resumed_and_removed(tab: Opens, shop: Shop, queue: Queue) -> None:
    from jobq import Every

    shop.live.run(queue.schedule("tea time", Every(3600), queue.task_by_name("charge"), "tea"))
    opened = tab("/schedules", **where(queue))
    opened.click("Run now", opened.row("tea time"))
    opened.find(".toast").first.wait_for()
    assert shop.live.run(queue.counts())[State.WAITING] == 1
    opened.click("Pause", opened.row("tea time"))
    opened.row("tea time").locator(".state.paused").wait_for()
    opened.click("Resume", opened.row("tea time"))
    opened.row("tea time").locator(".state.paused").wait_for(state="detached")
    opened.click("Remove", opened.row("tea time"))
    opened.agree("Remove")
    opened.find("text=No schedules").wait_for()
    assert shop.live.run(queue.schedules()) == []


# ── flows ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_flow_changes_its_colours_while_it_runs(tab: Opens, shop: Shop, queue: Queue) -> None:
    shop.live.work(queue, name="for flow")

    async def submit() -> Job[int]:
        async with queue.flow() as flow:
            gate = flow.add(queue.task_by_name("wait"))
            bad = flow.add(queue.task_by_name("decline"), "erin")
            last = flow.add(
                queue.task_by_name("add", after=[gate, bad], on_child_failure="continue"), 1, 2
            )
        return last

    GATES.clear()
    last = shop.live.run(submit())
    opened = tab("/flow", **where(queue), id=last.id)
    opened.find("figure a.failed").wait_for()
    opened.find("figure a.active").wait_for()
    assert opened.find("figure a.blocked").count() == 1
    opened.find("figure a.active").focus()
    shop.live.loop.call_soon_threadsafe(GATES[0].set)
    opened.find("figure a.completed").nth(1).wait_for()
    assert opened.page.evaluate("document.activeElement.matches('figure a')"), "focus was lost"
    assert opened.find("figure path.line").count() == 2
    opened.click("Rerun failed")
    opened.agree("Rerun failed")
    opened.said("1 jobs of the flow run again")


def test_a_flow_is_cancelled_whole(tab: Opens, shop: Shop, queue: Queue) -> None:
    async def submit() -> Job[int]:
        async with queue.flow(id="doomed") as flow:
            parts = [flow.add(queue.task_by_name("add"), n) for n in range(3)]
            last = flow.add(queue.task_by_name("add"), *(part.ref for part in parts))
        return last

    last = shop.live.run(submit())
    opened = tab("/flows", **where(queue))
    opened.row(last.id).get_by_role("link").first.click()
    opened.page.wait_for_url("**/flow?*")
    opened.click("Cancel")
    opened.agree("Cancel")
    opened.find("figure a.cancelled").nth(3).wait_for()
    assert shop.live.run(queue.counts())[State.CANCELLED] == 4


# ── workers ───────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_is_drained_resumed_and_stopped(tab: Opens, shop: Shop, queue: Queue) -> None:
    worker = shop.live.work(queue, name="to be stopped", concurrency=3)
    GATES.clear()
    job = shop.enqueue(queue, "wait")
    opened = tab("/worker", name="to be stopped")
    opened.row(job.id).wait_for()
    shop.live.loop.call_soon_threadsafe(GATES[0].set)
    opened.open("/workers", **where(queue))
    opened.click("Drain")
    opened.agree("Drain")
    opened.find(".state.draining").wait_for()
    opened.click("Resume")
    opened.find(".state.running").wait_for()
    opened.click("Stop")
    opened.agree("Stop")
    opened.find("text=No workers").wait_for()
    wait_until(lambda: not worker.running, "the worker to stop")
