"""The stores of this repository, registered with the conformance suite by the conftest.py at the root."""
