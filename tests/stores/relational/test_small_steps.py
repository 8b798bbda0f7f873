"""Flows of a few jobs that are submitted in steps of two: every step is between two others.

`make test-store STORE=memory-steps` runs the whole suite like this.
"""

from __future__ import annotations

from tests.stores.suite import contract_suite_passes


def test_the_contract_suite_passes_with_small_steps() -> None:
    contract_suite_passes("memory-steps", "flows", "flow_failures", "unique_in_flows")
