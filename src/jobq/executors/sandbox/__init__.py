"""Permissions of a task, enforced by the kernel in the process that runs its handler.

The worker asks `check` what its machine cannot enforce, and opens the files of all its tasks
(`Sandboxes`). For each child it makes a `Workspace`, starts the child with the variables of
`environment`, and watches its processes. The child calls `apply` before it imports the application.
It cannot undo that, so it serves one set of permissions until it ends. Several parts of the kernel
work together:

| | restricts |
|---|---|
| Landlock (`landlock`) | paths, programs, TCP ports, signals, and inspecting other processes |
| seccomp (`calls`, `bpf`) | sockets, new processes, metadata of files, and ways around Landlock |
| namespaces (`privileges`) | the network as a second line, and counting a user's processes |
| limits (`limits`, `watch`) | memory, processor time, open files, number of processes |
| privileges (`privileges`) | capabilities, and setuid programs |
| descriptors (`descriptors`) | open files that the worker or the job before has left |

The escape suite (tests/executors/sandbox) tries to get out, with and without each part.
"""

from jobq.executors.sandbox.apply import Sandbox, apply
from jobq.executors.sandbox.defaults import environment, visible_urls
from jobq.executors.sandbox.explain import explain, explain_signal
from jobq.executors.sandbox.granted_files import Confined
from jobq.executors.sandbox.kernel import Feature, check, features, machine
from jobq.executors.sandbox.watch import Sandboxes, Watch
from jobq.executors.sandbox.workspace import Workspace

__all__ = [
    "Confined",
    "Feature",
    "Sandbox",
    "Sandboxes",
    "Watch",
    "Workspace",
    "apply",
    "check",
    "environment",
    "explain",
    "explain_signal",
    "features",
    "machine",
    "visible_urls",
]
