"""The question a worker asks before it starts."""

from __future__ import annotations

from functools import cache

from jobq.core.policies import Permissions
from jobq.executors.sandbox.kernel import Kernel, missing, this_kernel


@cache
def _kernel() -> Kernel:
    return this_kernel()


def check(permissions: Permissions) -> list[str]:
    """What this machine cannot enforce of the permissions, one sentence each. Empty: everything.

    A worker refuses to start a task with anything missing. With `enforce="best-effort"` it logs
    what is missing.
    """
    return missing(permissions, _kernel())
