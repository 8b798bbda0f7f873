"""An application that imports none of its tasks."""

from jobq import Queue

first, second = Queue("first"), Queue("second")
