"""The contract suite: what `jobq.stores.base` promises, held against every store there is.

A store takes part by a module in `places/`. `pytest tests/contract --store NAME` runs it on one store.
"""
