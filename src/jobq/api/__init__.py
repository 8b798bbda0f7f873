"""What users touch: queues, tasks, jobs, flows, workers and their records. `jobq` re-exports it."""
