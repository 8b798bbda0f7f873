"""Runs the whole engine in one thread, in virtual time, with faults, from a seed.

A `World` has processes, and each process has event loops: a worker's own and its keeper's. The
scheduler draws which loop makes the next step. Within a loop, callbacks run in the order in which
asyncio promises to run them. All processes reach one real store through a simulated network
(network.py), which delays, loses and repeats what passes.

simloom, a library for this purpose, was looked at first (0.5.0). It needs Python 3.12, and jobq
supports 3.11. It has one event loop for all hosts and draws from all ready callbacks, also from
those of one host. asyncio promises their order and the engine relies on it, so that would report
bugs that cannot happen; and the keeper needs an event loop of its own. Its faults are those of
sockets, and jobq's promises are about calls of the Store contract.
"""
