"""The Spark pipeline: lifecycle events into a lake, an audit over it, and reports. `jq-pipeline` is its command.

sources   Kafka, files or a store's event log, all as one column of JSON lines
tables    what the lake holds: names, schemas, partitions
lake      where it holds it: idempotent publishing, replacing of partitions, the record of batches
transforms/   pure DataFrame → DataFrame; each ends with the select of its table
jobs/     read → transform → write, and no logic
datasource/   format("jobq"): DataFrames into jobs, jobs and events into DataFrames
"""
