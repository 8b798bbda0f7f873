"""Arguments that are other jobs' results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from jobq.core.records.jobs import Failure, Input, JobKey, QueueName
from jobq.core.rules.calls import ArgumentDecoder
from jobq.core.rules.flows import Ref, extract_refs, fill
from jobq.core.values.codec import JSON, MSGPACK, Codec
from jobq.errors import InvalidJob

QUEUE = QueueName("t", "q")
FAILURE = Failure(reason="error", type="ValueError", message="x")
BOTH = pytest.mark.parametrize("codec", [JSON, MSGPACK], ids=lambda codec: codec.name)


@dataclass
class Receipt:
    cents: int


def given(id: str, **how: Any) -> Input:
    return Input(job=JobKey(QUEUE, id), **how)


@BOTH
def test_results_arrive_in_the_place_of_references_and_by_annotation(codec: Codec) -> None:
    def handler(receipts: list[Receipt], by_name: dict[str, Receipt], plain: int) -> None: ...

    args, kwargs, refs = extract_refs(
        ([Ref("q", "1"), Ref("q", "2")], {"a": Ref("q", "1")}), {"plain": Ref("q", "3")}
    )
    assert [ref.id for ref in refs] == ["1", "2", "1", "3"]
    inputs = [
        given("1", result=codec.encode(Receipt(10)), codec=codec.name),
        given("2", result=JSON.encode(Receipt(20))),  # a child may use another codec
        given("3", result=b"7"),
    ]
    decoded = ArgumentDecoder(handler).decode(codec.encode_call(args, kwargs), codec, inputs)
    assert decoded == ([[Receipt(10), Receipt(20)], {"a": Receipt(10)}], {"plain": 7})


def test_a_failed_job_delivers_none_or_its_failure_by_policy() -> None:
    args, kwargs, _ = extract_refs((Ref("q", "1"), Ref("q", "2")), {})
    assert fill(args, kwargs, [given("1"), given("2", failure=FAILURE)]) == ([None, FAILURE], {})


def test_a_reference_without_an_input_stays_and_so_does_a_lookalike() -> None:
    args: list[Any] = [{"$jobq.ref": ["q", "9"]}, {"$jobq.ref": ["q", "1"], "more": 1}]
    assert fill(args, {}, [given("1", result=b"1")]) == (args, {})


def test_a_reference_outside_a_flow_is_refused() -> None:
    with pytest.raises(
        InvalidJob, match=r"args\[0\]: a value of type jobq\.core\.rules\.flows\.Ref"
    ):
        JSON.encode_call((Ref("q", "1"),), {})
