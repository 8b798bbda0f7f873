"""Pure functions from DataFrames to DataFrames. Each ends with a select of its table's columns."""
