"""Bugs that jobq once had, each with the test that finds it: `python -m tests.bugs`."""
