"""`.sync` inside a transaction that jobs cannot be part of: they are stored after its commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from jobq import ConfigError, Queue, QueueFull, State, sync
from jobq.client.transaction import AfterCommit


class Transaction:
    """A caller's transaction. Until `commit` or `roll_back`, it collects what follows a commit."""

    def __init__(self, queue: Queue) -> None:
        self._waiting: list[Callable[[], None]] | None = []
        queue._context.surrounding = self._surrounding

    def _surrounding(self) -> AfterCommit | None:
        return None if self._waiting is None else AfterCommit(self._waiting.append)

    def commit(self) -> None:
        waiting, self._waiting = self._waiting or [], None
        for call in waiting:
            call()

    def roll_back(self) -> None:
        self._waiting = None


@pytest.fixture
def mail(url: str) -> Iterator[Queue]:
    queue = Queue("mail", url, max_waiting=5)

    @queue.task
    def send(to: str) -> str:
        return to

    with queue.sync:
        yield queue


def waiting(queue: Queue) -> int:
    return queue.sync.counts()[State.WAITING] + queue.sync.counts()[State.BLOCKED]


def test_a_job_is_stored_when_the_transaction_commits_under_the_id_that_its_handle_has(
    mail: Queue,
) -> None:
    transaction = Transaction(mail)
    job = mail.sync.task_by_name("send").enqueue("ada")
    assert waiting(mail) == 0
    transaction.commit()
    assert job.state() is State.WAITING
    assert job.info().args == ("ada",)


def test_a_rollback_leaves_no_job(mail: Queue) -> None:
    transaction = Transaction(mail)
    send = mail.sync.task_by_name("send")
    send.enqueue("ada")
    send.enqueue_many([("grace",), ("alan",)])
    sync.group(mail.task_by_name("send"), [("edsger",)])
    send.broadcast([mail], "barbara")
    transaction.roll_back()
    assert waiting(mail) == 0


def test_every_way_to_enqueue_waits_for_the_commit(mail: Queue) -> None:
    transaction = Transaction(mail)
    send = mail.sync.task_by_name("send")
    many = send.enqueue_many([("ada",)])
    with mail.sync.flow() as flow:
        member = flow.add(mail.task_by_name("send"), "grace")
    chained = sync.chain(mail.task_by_name("send"), first=("alan",))
    copies = send.broadcast([mail], "barbara")
    assert waiting(mail) == 0
    transaction.commit()
    for job in (*many, member, chained, *copies):
        assert job.state() is State.WAITING


def test_the_handle_of_a_duplicate_names_the_job_that_was_found_after_the_commit(
    mail: Queue,
) -> None:
    first = mail.sync.task_by_name("send", unique=True).enqueue("ada")
    transaction = Transaction(mail)
    second = mail.sync.task_by_name("send", unique=True).enqueue("ada")
    assert second.id != first.id
    transaction.commit()
    assert (second.id, second.duplicate) == (first.id, True)


def test_a_full_queue_is_reported_to_the_code_that_commits(mail: Queue) -> None:
    transaction = Transaction(mail)
    mail.sync.task_by_name("send").enqueue_many([(str(n),) for n in range(7)])
    with pytest.raises(QueueFull) as caught:
        transaction.commit()
    assert (len(caught.value.accepted), waiting(mail)) == (5, 5)


def test_a_call_that_waits_for_the_result_is_refused_inside_the_transaction(mail: Queue) -> None:
    Transaction(mail)
    with pytest.raises(ConfigError, match="it would wait in vain"):
        mail.sync.task_by_name("send").call("ada")


def test_a_flow_cannot_grow_after_it_was_submitted_inside_the_transaction(mail: Queue) -> None:
    Transaction(mail)
    with mail.sync.flow() as flow:
        flow.add(mail.task_by_name("send"), "ada")
    with pytest.raises(Exception, match="was already submitted"):
        flow.add(mail.task_by_name("send"), "grace")
