"""How calls reach a store: shared handles, batched puts and reads, waiting for jobs, the blocking portal."""
