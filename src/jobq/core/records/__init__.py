"""What crosses the Store contract: jobs, queues, workers, events, commands and criteria. Pure."""
