"""A pool of warm child processes. `inside` is the code that runs in a child."""
