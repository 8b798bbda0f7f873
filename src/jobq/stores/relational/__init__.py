"""The logic of stores on SQL databases: what a call reads, decides by core, and writes.

A dialect (`stores.sqlite`, `stores.postgres`) gives the statements and the transactions."""
