"""Encrypted payloads: nothing readable is stored, keys rotate, and changed data is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobq import (
    Codec,
    ConfigError,
    Every,
    InvalidJob,
    JobFailed,
    Queue,
    Snooze,
    State,
    Undecoded,
    Unique,
    Worker,
    current_job,
)
from jobq.core.values import codec as codecs
from jobq.core.values.codec import JSON
from jobq.encryption import Encrypted, new_key
from jobq.stores import open_store
from tests.api.deferrals import deferral
from tests.cli.kit import Ctl

SECRET = "s3cret-4711-marker"
OLD, NEW, LOCKS = new_key(), new_key(), new_key()


@dataclass
class Card:
    number: str
    cents: int


@pytest.fixture
def codec() -> Encrypted:
    return Encrypted({"k1": OLD}, lock_key=LOCKS, context="tests")


# ── the codec ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("inner", ["json", "msgpack"])
def test_values_and_calls_survive_the_way_there_and_back(inner: str) -> None:
    codec = Encrypted({"k1": OLD}, inner=inner)
    card = Card(SECRET, 7)
    for bound in (codec, codec.for_task("charge")):
        assert bound.decode(bound.encode(card), Card) == card
        assert bound.decode_call(bound.encode_call([1, SECRET], {"n": None})) == (
            [1, SECRET],
            {"n": None},
        )
    assert SECRET.encode() not in codec.encode(card)


def test_the_same_value_is_never_encrypted_to_the_same_bytes(codec: Encrypted) -> None:
    assert len({codec.encode(SECRET) for _ in range(100)}) == 100


def test_every_changed_byte_is_noticed(codec: Encrypted) -> None:
    bound = codec.for_task("charge")
    data = bound.encode_call([SECRET], {})
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(InvalidJob, match="encrypted: "):
            bound.decode_call(bytes(changed))
    for length in range(len(data)):
        with pytest.raises(InvalidJob, match="encrypted: "):
            bound.decode_call(data[:length])


def test_data_is_refused_where_it_does_not_belong(codec: Encrypted) -> None:
    call = codec.for_task("refund").encode_call([7], {})
    value = codec.encode([[7], {}])
    staging = Encrypted({"k1": OLD}, context="staging")
    misuses: list[Callable[[], Any]] = [
        lambda: codec.for_task("charge").decode_call(call),
        lambda: codec.decode_call(call),
        lambda: codec.for_task("refund").decode_call(value),
        lambda: codec.decode(call),
        lambda: staging.decode(value),
        lambda: staging.for_task("refund").decode_call(call),
        lambda: codec.decode(JSON.encode(7)),
    ]
    for misuse in misuses:
        with pytest.raises(InvalidJob, match="encrypted: "):
            misuse()


def test_keys_rotate_and_old_values_stay_readable() -> None:
    before = Encrypted({"k1": OLD})
    ready = Encrypted({"k1": OLD, "k2": NEW})  # deployed first: it reads both and writes the old
    after = Encrypted({"k1": OLD, "k2": NEW}, primary="k2")
    over = Encrypted({"k2": NEW})
    old, new = before.encode(SECRET), after.encode(SECRET)
    assert b"k1" in ready.encode(SECRET)
    assert b"k2" in new
    assert [ready.decode(old), after.decode(old), ready.decode(new), over.decode(new)] == [
        SECRET
    ] * 4
    with pytest.raises(InvalidJob, match="the key 'k1', which is not known here; known keys: k2"):
        over.decode(old)
    with pytest.raises(InvalidJob, match="changed"):
        Encrypted({"k1": NEW}).decode(old)


def test_a_lock_is_an_hmac_that_outlives_a_rotation(codec: Encrypted) -> None:
    rotated = Encrypted({"k2": NEW}, lock_key=LOCKS)
    other = Encrypted({"k1": OLD}, lock_key=new_key())
    value = ["charge", [["invoice", 7]]]
    assert codec.digestible(value) == rotated.digestible(value)
    assert codec.digestible(value) == codec.for_task("charge").digestible(value)
    assert len({c.digestible(value) for c in (codec, other, JSON)}) == 3
    with pytest.raises(InvalidJob, match="lock_key"):
        Encrypted({"k1": OLD}).digestible(value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Encrypted({}), "at least one key"),
        (lambda: Encrypted({"k": b"short"}), r"keys\['k'\] is not a key"),
        (lambda: Encrypted({"k": "not base64!"}), r"keys\['k'\] is not a key"),
        (lambda: Encrypted({"k": OLD}, primary="z"), "is not one of the keys: k"),
        (lambda: Encrypted({"": OLD}), "key id"),
        (lambda: Encrypted({"schlüssel": OLD}), "ASCII"),
        (lambda: Encrypted({"k": OLD}, lock_key=b""), "lock_key is not a key"),
        (lambda: Queue("q", codec=Encrypted({"k": OLD}, name="json")), "built-in"),
    ],
)
def test_a_bad_key_is_refused_and_never_shown(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        make()
    assert "short" not in str(refused.value)


def test_keys_are_not_shown(codec: Encrypted) -> None:
    assert repr(codec) == "<Encrypted 'encrypted', keys k1>"


# ── in a queue ────────────────────────────────────────────────────────────────────────────────────


class Shop:
    """Tasks that use every place in which a job keeps values."""

    def __init__(self, url: str, codec: Codec) -> None:
        self.queue = queue = Queue("secrets", url, codec=codec)

        @queue.task(unique=Unique("card"))
        async def charge(card: Card, note: str = "") -> Card:
            job = current_job()
            if job.saved is None:
                raise Snooze(0, saved={"card": card.number})
            await job.progress([1, card.number])
            again = await job.step("double", _double, card.number)
            paid = await job.wait_for_signal("paid")
            return Card(f"{again}|{paid}|{job.saved['card']}", card.cents)

        @queue.task(retry=0)
        async def part(text: str) -> str:
            return text

        @queue.task(retry=0)
        async def parent(texts: list[str]) -> str:
            job = current_job()
            for text in texts:
                await job.add(part, text)
            return "+".join((await job.wait_for_children()).values())

        @queue.batch_task(size=3)
        async def many(items: list[str]) -> list[str]:
            return [item * 2 for item in items]

        self.charge, self.part, self.parent, self.many = charge, part, parent, many


async def _double(text: str) -> str:
    return text * 2


async def test_nothing_that_a_job_carries_is_stored_as_it_is(
    url: str, codec: Encrypted, tmp_path: Path
) -> None:
    shop = Shop(url, codec)
    queue = shop.queue
    async with queue, Worker(queue, concurrency=3):
        charged = await shop.charge.enqueue(Card(SECRET, 7), note=SECRET)
        await charged.signal("paid", SECRET)
        parent = await shop.parent.enqueue([SECRET, "b"])
        async with queue.flow() as flow:
            linked = flow.add(shop.part, flow.add(shop.part, SECRET).ref)
        batch = await shop.many.enqueue_many([(SECRET,), ("x",)])
        assert (await charged.result(timeout=20)).number == f"{SECRET * 2}|{SECRET}|{SECRET}"
        assert await parent.result(timeout=20) == f"{SECRET}+b"
        assert await linked.result(timeout=20) == SECRET
        assert await batch[0].result(timeout=20) == SECRET * 2
        await queue.schedule("nightly", Every(3600), shop.part, SECRET)
        assert [each.args for each in await queue.schedules()] == [(SECRET,)]
        late = await shop.part.options(delay=60).enqueue("a")
        assert await late.update(SECRET)
        assert await queue.job(late.id).update(f"{SECRET}!")
        assert (await late.info()).args == (f"{SECRET}!",)
        found = [job async for job in queue.find(arguments={"note": SECRET})]
        assert [job.id for job in found] == [charged.id]
        assert found[0].progress == [1, SECRET]
        events = [event async for event in queue.events(after="0", follow=False)]
        assert SECRET not in repr(events)
        store = await queue._context.store()
        async for info in queue.find():
            (record,) = await store.get([queue.job(info.id).job_key])
            assert SECRET not in repr(record)
    for path in tmp_path.iterdir():  # the SQLite file and its log
        assert SECRET.encode() not in path.read_bytes(), path


async def test_results_can_be_encrypted_alone(url: str) -> None:
    codec = Encrypted({"k1": OLD}, name="results")
    queue = Queue("secrets", url, codec=codec, result_codec="json")
    other = Queue("open", url, result_codec=codec)

    @queue.task
    async def hide(text: str) -> str:
        return text

    @other.task
    async def show(text: str) -> str:
        return f"{text}{SECRET}"

    async with queue, other, Worker(queue, other):
        job, shown = await hide.enqueue(SECRET), await show.enqueue("a")
        assert await job.result(timeout=20) == SECRET
        assert await shown.result(timeout=20) == f"a{SECRET}"
        assert ((await job.info()).args, (await shown.info()).args) == ((SECRET,), ("a",))
        store = await queue._context.store()
        hidden, read = await store.get([job.job_key, shown.job_key])
        assert hidden
        assert read
        assert SECRET.encode() not in hidden.payload
        assert read.payload == b'[["a"],{}]'
        assert SECRET.encode() not in (read.result or b"")


async def test_unique_jobs_are_found_by_their_lock(url: str, codec: Encrypted) -> None:
    shop = Shop(url, codec)
    async with shop.queue as queue:
        first = await shop.charge.enqueue(Card(SECRET, 7))
        assert (await shop.charge.enqueue(Card(SECRET, 7), note="other")).duplicate
        assert not (await shop.charge.enqueue(Card(SECRET, 8))).duplicate
        rotated = Shop(url, Encrypted({"k2": NEW, "k1": OLD}, lock_key=LOCKS, context="tests"))
        async with rotated.queue:
            assert (await rotated.charge.enqueue(Card(SECRET, 7))).id == first.id
        held = await queue.lock(shop.charge, card=Card(SECRET, 7)).info()
        assert held
        assert held.job_id == first.id


async def test_a_worker_without_the_key_leaves_the_job_to_one_that_has_it(url: str) -> None:
    producer = Shop(url, Encrypted({"k2": NEW}))
    async with producer.queue as queue:
        job = await producer.part.enqueue(SECRET)
        behind = Shop(url, Encrypted({"k1": OLD}))
        async with behind.queue, Worker(behind.queue):
            there = behind.queue.job(job.id)
            assert "the key 'k2', which is not known here" in await deferral(there)
            info = await there.info()
            assert isinstance(info.args[0], Undecoded)
        ready = Shop(url, Encrypted({"k1": OLD, "k2": NEW}))
        async with ready.queue, Worker(ready.queue):
            assert await queue.job(job.id).result(timeout=20) == SECRET


async def test_arguments_that_were_moved_to_another_task_are_refused(
    url: str, codec: Encrypted
) -> None:
    """As someone would who can write to the store and has no key."""
    shop = Shop(url, codec)
    async with shop.queue as queue, open_store(url) as store:
        stolen = await shop.part.options(delay=60).enqueue(SECRET)
        (record,) = await store.get([stolen.job_key])
        assert record
        spec = shop.parent._spec((["x"],), {})
        await store.put([msgspec.structs.replace(spec, id="forged", payload=record.payload)])
        async with Worker(queue):
            with pytest.raises(JobFailed, match="belongs to another task"):
                await queue.job("forged").result(timeout=20)


async def test_jobs_that_cannot_be_read_are_counted_and_left_alone(
    url: str, codec: Encrypted
) -> None:
    shop = Shop(url, codec)
    blind = Queue("secrets", url, codec=Encrypted({"other": NEW}))
    async with shop.queue, blind:
        await shop.part.enqueue(SECRET)
        selection = blind.select("waiting", arguments={"0": SECRET})
        preview = await selection.preview()
        assert (preview.matched, preview.unreadable) == (0, 1)
        assert (await selection.cancel()).changed == 0
        assert (await blind.counts())[State.WAITING] == 1


def test_jq_ctl_shows_the_ciphertext_only(tmp_path: Path, codec: Encrypted) -> None:
    url = f"sqlite:///{tmp_path}/ctl.db"
    shop = Shop(url, Encrypted({"k1": OLD}, name="only here"))

    async def enqueue() -> str:
        async with shop.queue:
            return (await shop.part.enqueue(SECRET)).id

    id = asyncio.run(enqueue())
    codecs._known.pop("only here")  # jq-ctl is another process, which has no keys
    shown = Ctl(url)("job", "status", id, "-o", "json").stdout
    assert SECRET not in shown
    assert '"codec": "only here"' in shown
