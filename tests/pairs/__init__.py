"""The pair matrix: every two features of a job, on every kind of queue and on every store."""
