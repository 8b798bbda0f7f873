"""The stores of this repository. The conftest.py at the root registers them with the suite."""
