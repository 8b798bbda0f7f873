"""The trace of a call goes on in the job that it submits."""

from __future__ import annotations

import pytest

from jobq.core.records.jobs import JobKey, QueueName
from jobq.rpc.v1 import common_pb2 as common
from jobq.rpc.v1 import jobs_pb2 as pb
from tests.server.serving import PATIENCE_S, RunningServer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def meta_of(server: RunningServer, new: common.NewJob, **metadata: str) -> dict[str, str]:
    server.jobs.Submit(
        pb.SubmitRequest(job=new), metadata=tuple(metadata.items()), timeout=PATIENCE_S
    )
    key = JobKey(QueueName("default", new.queue), new.id)
    (record,) = server.do(server.context.store.get([key]))
    assert record is not None
    return record.meta or {}


def test_a_job_keeps_the_context_of_the_call(running_server: RunningServer) -> None:
    new = common.NewJob(queue="traced", name="n", id="1", meta={"own": "x"})
    found = meta_of(running_server, new, traceparent=PARENT, tracestate="vendor=1")
    assert found == {"own": "x", "traceparent": PARENT, "tracestate": "vendor=1"}


def test_a_context_of_the_job_itself_is_left_as_it_is(running_server: RunningServer) -> None:
    own = PARENT.replace("b7", "c8")
    new = common.NewJob(queue="traced", name="n", id="2", meta={"traceparent": own})
    assert meta_of(running_server, new, traceparent=PARENT) == {"traceparent": own}


@pytest.mark.parametrize("parent", ["x", "", PARENT.upper(), PARENT + "-extra", "00-" + "0" * 52])
def test_a_context_that_is_none_is_ignored(running_server: RunningServer, parent: str) -> None:
    new = common.NewJob(queue="traced", name="n", id=f"bad-{len(parent)}")
    assert meta_of(running_server, new, traceparent=parent) == {}
