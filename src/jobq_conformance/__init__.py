"""The conformance suite: the tests that define a correct store.

Each test runs against every store that is registered as a place (see `places.py`). `stores/base`
states the contract in words; this package holds a store to it.
"""
