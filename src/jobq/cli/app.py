"""Import the queues that `--app module:queue` names. Errors say which part of the spec is wrong."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from jobq.api.queue import Queue
from jobq.core.checks import did_you_mean
from jobq.core.redact import redacted_url
from jobq.errors import ConfigError


def load(specs: Iterable[str]) -> list[Queue]:
    """Import the queues of all specs, without repeats.

    A spec is `module:queue`, `module:queue,queue2`, or `module` for every queue in the module."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does: the app is usually in the current directory
    found: list[Queue] = []
    for spec in specs:
        found += [queue for queue in _load(spec) if queue not in found]
    return found


def chosen(queues: list[Queue], names: Iterable[str]) -> list[Queue]:
    """Return the queues with these names, in this order. Without names, return all."""
    by_name = {queue.name: queue for queue in queues}
    picked = []
    for name in names:
        if name not in by_name:
            raise ConfigError(
                f"--queues {name}: the app has no queue {name!r}{did_you_mean(name, by_name)}; "
                f"its queues are {', '.join(by_name)}"
            )
        picked.append(by_name[name])
    return picked or queues


def _load(spec: str) -> list[Queue]:
    if "://" in spec:
        raise ConfigError(
            f"{redacted_url(spec)!r} is the URL of a store: pass it as --url. "
            "The app is given as module:queue"
        )
    module_name, colon, attributes = spec.partition(":")
    if not module_name or (colon and not attributes):
        raise ConfigError(
            f"--app {spec!r} must look like module:queue, e.g. --app shop.jobs:billing"
        )
    module = _import(module_name, spec)
    if not colon:
        queues = [value for value in vars(module).values() if isinstance(value, Queue)]
        if not queues:
            raise ConfigError(f"--app {spec}: found no Queue in {_where(module)}")
        return list(dict.fromkeys(queues))
    return [_attribute(module, name.strip(), spec) for name in attributes.split(",")]


def _import(name: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name is not None and (name == e.name or name.startswith(e.name + ".")):
            raise ConfigError(
                f"--app {spec}: no module {e.name!r} in {os.getcwd()} or in the installed packages"
            ) from e
        raise ConfigError(
            f"--app {spec}: {name} imports {e.name}, which is not installed{_line_of(e)}"
        ) from e
    except Exception as e:
        raise ConfigError(
            f"--app {spec}: importing {name} failed: {type(e).__name__}: {e}{_line_of(e)}"
        ) from e


def _attribute(module: ModuleType, path: str, spec: str) -> Queue:
    value: Any = module
    for part in path.split("."):
        if not hasattr(value, part):
            queues = [name for name, v in vars(module).items() if isinstance(v, Queue)]
            have = f"; its queues are {', '.join(queues)}" if queues else "; it has no queues"
            raise ConfigError(
                f"--app {spec}: {_where(module)} has no {path!r}{have}{did_you_mean(path, queues)}"
            )
        value = getattr(value, part)
    if not isinstance(value, Queue):
        raise ConfigError(
            f"--app {spec}: {path!r} in {_where(module)} is a {type(value).__name__}, "
            "not a jobq Queue"
        )
    return value


def _where(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or module.__name__)


def _line_of(error: BaseException) -> str:
    """The file and line in the app that raised: the innermost frame outside Python's importer."""
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if "importlib" not in f.filename and f.filename != __file__
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
