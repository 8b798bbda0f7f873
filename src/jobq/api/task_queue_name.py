"""`Task.queue`: the name of a task's queue, which until 0.2 was the Queue itself."""

from __future__ import annotations

from typing import Any

from jobq.core.deprecated import warn_renamed


class QueueNameOfTask(str):
    """`Task.queue`: the name of the task's queue.

    Until 0.2 it was the Queue itself, so its attributes are still found here, with a warning."""

    __slots__ = ("_queue",)
    _queue: Any

    @classmethod
    def of(cls, name: str, queue: Any) -> QueueNameOfTask:
        """The name of this queue."""
        made = cls(name)
        made._queue = queue
        return made

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "_queue":  # not set: made without `of`
            raise AttributeError(attribute)
        value = getattr(self._queue, attribute)
        if attribute.startswith("_"):
            warn_renamed("task.queue as a Queue", "the Queue object")
        else:
            warn_renamed(f"task.queue.{attribute}", f"the Queue object: queue.{attribute}")
        return value

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Make copies plain text, also those of pickle: a Queue with tasks cannot be pickled."""
        return str, (str(self),)

    def __aenter__(self) -> Any:
        warn_renamed("async with task.queue", "async with queue")
        return self._queue.__aenter__()

    def __aexit__(self, *error: Any) -> Any:
        return self._queue.__aexit__(*error)

    def find(self, *args: Any, **kwargs: Any) -> Any:
        """`str.find`, or, with keyword arguments or none, `Queue.find`."""
        if args:
            return super().find(*args)
        warn_renamed("task.queue.find", "the Queue object: queue.find")
        return self._queue.find(**kwargs)
