"""The pair matrix: every two features of a job, on every kind of queue, with the same story on every store."""
