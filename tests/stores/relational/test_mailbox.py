"""The mailbox of a handle."""

from __future__ import annotations

from jobq.stores.relational.mailbox import MOST, Mailbox, Notice


async def test_a_mailbox_forgets_the_worker_that_slept_the_longest_ago() -> None:
    box = Mailbox(("here",))
    first, second = box.wake("first"), box.wake("second")
    for n in range(MOST - 2):
        box.wake(f"w{n}")
    assert box.wake("first") is first
    box.wake("one more")
    for name in ("first", "second"):
        box.receive(Notice(("here",), "work", "default", "work", name))
    assert first.is_set()
    assert not second.is_set()
