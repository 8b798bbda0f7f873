"""Fixtures of the sandbox's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from jobq.core.policies import Permissions
from jobq.executors.sandbox.kernel import missing_features, this_kernel
from tests.executors.sandbox.channel import Channel, open_channel


@pytest.fixture(scope="session")
def enforced() -> None:
    """Skip the test where permissions cannot be enforced at all."""
    if lacking := missing_features(Permissions(network=[1]), this_kernel()):
        pytest.skip(f"this machine cannot enforce permissions: {'; '.join(lacking)}")


@pytest.fixture(scope="module", params=("root", "ordinary"))
def channel(request: pytest.FixtureRequest, enforced: None) -> Iterator[Channel]:
    """A worker's process, as root and as an ordinary user."""
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("runs as root only if the tests do")
    with open_channel(request.param) as channel:
        yield channel
