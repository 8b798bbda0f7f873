"""The code that runs in a child process of a worker."""
