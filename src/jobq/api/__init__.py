"""The public API: queues, tasks, jobs, flows, workers and their records. `jobq` re-exports it."""
