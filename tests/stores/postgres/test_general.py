"""Calls about plain jobs also work the general way, as they must whenever fast.py declines.

`make test-store STORE=postgres-general` runs the whole suite like this.
"""

from __future__ import annotations

import pytest

from jobq.stores import open_store
from jobq.stores.postgres import store as module
from tests.places.postgres import without_fast_calls
from tests.stores.postgres.suite import contract_suite_passes


@pytest.mark.rest("the contract suite in other ways")
def test_the_contract_suite_passes_without_the_fast_path() -> None:
    contract_suite_passes("postgres-general", "put", "settle", "order", "lost_replies", "wakeups")


def test_the_place_without_the_fast_path_opens_handles_without_it() -> None:
    with without_fast_calls():
        handle = open_store("postgresql://nobody@127.0.0.1/none")
    assert isinstance(handle, module.PostgresStore)
    assert not handle._fast
    assert module.FAST
