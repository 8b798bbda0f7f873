"""The Spark pipeline: load job events into a lake, audit it, and write reports.

cli/          jq-pipeline
sources       where events come from: Kafka, files, or a store's event log
tables        the lake's tables: names, schemas, partitions
lake          the lake's files and state: idempotent publishing, replacing partitions
transforms/   pure functions from DataFrame to DataFrame; each ends with its table's columns
jobs/         read, transform, write
datasource/   format("jobq"): write DataFrames as jobs, read jobs and events as DataFrames
"""
