"""The queue that two modules share."""

from jobq import Queue

orders = Queue("orders")
