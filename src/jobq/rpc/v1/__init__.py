"""The messages and services of proto/jobq/v1. All other files here are generated."""
