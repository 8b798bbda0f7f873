"""Import the queues that `--app module:queue` names; the event loop of jq-worker and jq-server.

Errors about an app say which part of the spec is wrong."""

from __future__ import annotations

import asyncio
import importlib
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import ModuleType
from typing import Any

from jobq.api.queue import Queue
from jobq.core.values.checks import did_you_mean
from jobq.core.values.printable import redacted_url
from jobq.errors import ConfigError

_NOT_IMPORTED = re.compile(r"__main__|tests?|test_.*|.*_test|conftest|migrations")
"""Modules of a package that define no tasks, and that are not meant to be imported by a worker."""


def load(specs: Iterable[str], modules: Sequence[str] = ()) -> list[Queue]:
    """Import the queues of all specs, without repeats.

    A spec is `module:queue`, `module:queue,queue2`, or `module` for every queue in the module. Of a
    package, all modules are imported, so that their tasks are found, or else only `modules`."""
    _look_here()
    for name in modules:
        _import(name, f"--modules {name}")
    found: list[Queue] = []
    for spec in specs:
        found += [queue for queue in _load(spec, whole=not modules) if queue not in found]
    return found


def load_function(spec: str, option: str) -> Any:
    """Import the function that `module:function` names, for an option of jq-worker."""
    _look_here()
    module_name, _, path = spec.partition(":")
    if not module_name or not path:
        raise ConfigError(
            f"{option} {spec!r} must look like module:function, e.g. {option} shop.app:main"
        )
    value: Any = _import(module_name, f"{option} {spec}")
    for part in path.split("."):
        if not hasattr(value, part):
            raise ConfigError(f"{option} {spec}: {module_name} has no {path!r}")
        value = getattr(value, part)
    return value


def _look_here() -> None:
    """Find modules in the current directory, as `python -m` does: the app is usually there."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)


def parse_weights(given: Iterable[str]) -> tuple[list[str], dict[str, int]]:
    """The names of `--queues a=3,b`, and the weights. ConfigError names a bad one."""
    names, weights = [], {}
    for part in (part.strip() for option in given for part in option.split(",")):
        name, equals, weight = part.partition("=")
        if equals:
            if not weight.isdecimal():
                raise ConfigError(f"--queues {part}: the weight {weight!r} is not a number")
            weights[name] = int(weight)
        if name:
            names.append(name)
    return names, weights


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


def _load(spec: str, *, whole: bool) -> list[Queue]:
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
    module = _import(module_name, f"--app {spec}")
    if not colon:
        modules = [module, *(_submodules(module, spec) if whole else ())]
        if not whole:  # those that --modules named, or that they import
            inside = f"{module_name}."
            modules += [m for name, m in sorted(sys.modules.items()) if name.startswith(inside)]
        queues = [
            value for each in modules for value in vars(each).values() if isinstance(value, Queue)
        ]
        if not queues:
            raise ConfigError(f"--app {spec}: found no Queue in {_where(module)}")
        return list(dict.fromkeys(queues))
    return [_attribute(module, name.strip(), spec) for name in attributes.split(",")]


def _submodules(package: ModuleType, spec: str) -> list[ModuleType]:
    """Import all modules of a package, also those of packages inside it."""
    found: list[ModuleType] = []
    for info in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{package.__name__}."):
        if not _NOT_IMPORTED.fullmatch(info.name.rpartition(".")[2]):
            module = _import(info.name, f"--app {spec}")
            found += [module, *_submodules(module, spec)]
    return found


def _import(name: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name is not None and (name == e.name or name.startswith(e.name + ".")):
            raise ConfigError(
                f"{spec}: no module {e.name!r} in {os.getcwd()} or in the installed packages"
            ) from e
        raise ConfigError(
            f"{spec}: {name} imports {e.name}, which is not installed{_line_of(e)}"
        ) from e
    except Exception as e:
        raise ConfigError(
            f"{spec}: importing {name} failed: {type(e).__name__}: {e}{_line_of(e)}"
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


# The event loop of jq-worker and jq-server.


def run_in_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine on uvloop if it is installed, otherwise on asyncio's event loop."""
    try:
        import uvloop
    except ImportError:
        run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run
    else:
        run = uvloop.run
    # Not inside the `except`: the ImportError would be the context of every error in a handler.
    run(work)
