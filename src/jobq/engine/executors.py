"""The executors of a worker."""

from __future__ import annotations

from jobq.executors import ApartExecutor, Executor, open_executor
from jobq.executors.settings import ExecutorSettings


class Executors(dict[str, Executor | ApartExecutor]):
    """The executors of a worker, opened on first use."""

    def __init__(self, settings: ExecutorSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or ExecutorSettings()

    def __missing__(self, name: str) -> Executor | ApartExecutor:
        self[name] = executor = open_executor(name, self.settings)
        return executor

    async def aclose(self) -> None:
        """End the child processes, and release what the executors hold."""
        for executor in tuple(self.values()):  # a worker that is still starting may add one
            await executor.aclose()
        self.settings.sandboxes.close()
