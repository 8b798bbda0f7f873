"""Measures the costs that the capacity model uses, and checks the model against measurements."""
