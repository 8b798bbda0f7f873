"""Two calls are the same when their chosen arguments are."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.core.policies import Unique
from jobq.core.rules.calls import CallShape
from jobq.core.rules.locks import debounce_ms, unique_lock, unique_spec
from jobq.core.values.codec import JSON, MSGPACK, Codec
from jobq.errors import InvalidJob


def charge(tenant: str, invoice: int, retries: int = 3) -> None: ...


SHAPE = CallShape(charge)


def lock_of(unique: Unique, *args: Any, **kwargs: Any) -> str:
    return unique_spec(unique, "charge", SHAPE.bound(args, kwargs)).lock


def test_however_arguments_are_given_the_same_call_is_the_same() -> None:
    same = {
        lock_of(Unique(), "acme", 7),
        lock_of(Unique(), "acme", invoice=7),
        lock_of(Unique(), invoice=7, tenant="acme"),
        lock_of(Unique(), "acme", 7, 3),
        lock_of(Unique(), "acme", 7, retries=3),
    }
    assert len(same) == 1


def test_only_the_chosen_fields_count() -> None:
    assert lock_of(Unique("invoice"), "acme", 7) == lock_of(Unique("invoice"), "globex", 7)
    assert lock_of(Unique("invoice"), "acme", 7) != lock_of(Unique("invoice"), "acme", 8)
    assert lock_of(Unique("invoice", "tenant"), "acme", 7) == lock_of(
        Unique("tenant", "invoice"), "acme", 7
    )


def test_values_of_different_kinds_are_different() -> None:
    locks = {
        unique_lock((), "t", {"x": value}) for value in (1, "1", 1.5, True, None, [1], {"1": 1})
    }
    assert len(locks) == 7


def test_another_task_has_other_locks() -> None:
    assert unique_lock((), "a", {"x": 1}) != unique_lock((), "b", {"x": 1})


def test_a_field_that_is_no_argument_is_refused() -> None:
    with pytest.raises(
        InvalidJob,
        match=r"Unique field 'invoce' is not an argument of charge \(did you mean 'invoice'\?\)",
    ):
        lock_of(Unique("invoce"), "acme", 7)


def test_the_spec_carries_mode_and_ttl() -> None:
    spec = unique_spec(Unique("x", period=5, mode="throttle"), "t", {"x": 1})
    assert (spec.mode, spec.ttl_ms, len(spec.lock)) == ("throttle", 5000, 32)


def test_the_ttl_of_a_debounce_is_the_wait_of_its_job_and_no_end_of_its_lock() -> None:
    unique = Unique("x", period=5, mode="debounce")
    assert (unique_spec(unique, "t", {"x": 1}).ttl_ms, debounce_ms(unique)) == (None, 5000)
    assert debounce_ms(Unique("x", period=5, mode="throttle")) == 0


@given(st.dictionaries(st.text(), st.integers(-(2**63), 2**63) | st.text() | st.none(), max_size=6))
def test_the_order_of_keys_does_not_matter(value: dict[str, Any]) -> None:
    backwards = dict(reversed(value.items()))
    for codec in (JSON, MSGPACK):
        assert unique_lock((), "t", {"x": value}, codec) == unique_lock(
            (), "t", {"x": backwards}, codec
        )
    assert unique_lock((), "t", value) == unique_lock((), "t", backwards)


def test_a_set_has_the_same_lock_in_every_process() -> None:
    code = (
        "from jobq.core.rules.locks import unique_lock; "
        "print(unique_lock((), 't', {'tags': {f'w{n}' for n in range(50)}}))"
    )
    locks = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(locks) == 1


class Upper(Codec):
    name = "upper"

    def encode(self, value: Any) -> bytes:
        return repr(value).encode()


def test_a_users_codec_makes_its_own_locks() -> None:
    assert unique_lock((), "t", {"x": 1j}, Upper()) != unique_lock((), "t", {"x": 2j}, Upper())
