"""How calls reach a store: shared handles, batched puts and reads, waiting for jobs.

`portal` lets code without an event loop use all of it.
"""
