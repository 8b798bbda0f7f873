"""Pure functions from DataFrames to DataFrames, in Spark's own functions; each ends with the select of its table."""
