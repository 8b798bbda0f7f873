"""What each permission needs of the kernel, and whether this machine has it."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

from jobq.core.policies import Permissions
from jobq.executors.sandbox.kernel import Kernel, missing_features, this_kernel


@dataclass(frozen=True)
class Feature:
    """One permission: what it needs, and why this machine cannot enforce it (empty: it can)."""

    permission: str
    needs: str
    missing: str


# Permission, what it needs, and a sample for which this machine is asked.
_NEEDS = (
    ("read, write, run", "Linux 5.13 (Landlock) and seccomp", Permissions()),
    ("network=False, network=True", "seccomp", Permissions()),
    ("network=[ports]", "Linux 6.7 (Landlock 4) and seccomp", Permissions(network=[443])),
    ("env", "nothing", Permissions()),
    ("memory, cpu, files", "resource limits", Permissions()),
    ("processes=0", "seccomp", Permissions()),
    (
        "processes=N",
        "user namespaces (Linux 5.14); for root: a control group with pids",
        Permissions(processes=1),
    ),
)


def features(kernel: Kernel | None = None) -> list[Feature]:
    """All permissions, for this machine or for a kernel that is given."""
    kernel = kernel or this_kernel()
    return [
        Feature(permission, needs, "; ".join(missing_features(sample, kernel)))
        for permission, needs, sample in _NEEDS
    ]


def machine() -> str:
    """The kernel in one line."""
    if sys.platform != "linux":
        return f"{platform.system()} {platform.release()}: permissions need Linux"
    kernel = this_kernel()
    return (
        f"Linux {platform.release()} {platform.machine()}, "
        f"{f'Landlock {kernel.landlock}' if kernel.landlock else 'no Landlock'}, "
        f"{'seccomp' if kernel.seccomp else 'no seccomp'}, "
        f"as {'root' if kernel.root else 'an ordinary user'}"
    )
