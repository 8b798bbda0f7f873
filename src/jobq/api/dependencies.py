"""Dependencies of tasks: parameters that a worker fills in for each run.

def get_db() -> Iterator[Session]:
    with Session(engine) as session:
        yield session

@queue.task
def charge(invoice: int, db: Session = Depends(get_db)) -> None: ...

await charge.enqueue(7)

The resolver is our own: FastDepends 3 takes over 100 µs per call, which is more than a whole job
takes, and this one takes about 1 µs per dependency (bench/hooks.py).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import update_wrapper
from typing import Any, Literal, NamedTuple, TypeVar, overload

from jobq.api.task_handler import runs_async
from jobq.client import portal
from jobq.core.values.checks import shown
from jobq.errors import ConfigError
from jobq.executors.running import running

T = TypeVar("T")

Kind = Literal["plain", "async", "generator", "async generator"]
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Dependency:
    """The default of a parameter that a worker fills in. `Depends` makes it."""

    __slots__ = ("provider",)

    def __init__(self, provider: Callable[..., Any]) -> None:
        self.provider = provider

    def __repr__(self) -> str:
        return f"Depends({getattr(self.provider, '__name__', self.provider)})"


@overload
def Depends(provider: Callable[..., AsyncIterator[T]], /) -> T: ...
@overload
def Depends(provider: Callable[..., Iterator[T]], /) -> T: ...
@overload
def Depends(provider: Callable[..., Awaitable[T]], /) -> T: ...
@overload
def Depends(provider: Callable[..., T], /) -> T: ...
def Depends(provider: Callable[..., Any], /) -> Any:
    """The default of a task's parameter: each run calls `provider` and passes what it returns.

    The provider is a plain or async function, or a generator function that yields the value once
    and cleans up after the run. Its own parameters may be dependencies. In one run, a provider is
    called once. An exception of the handler is raised at the provider's `yield`.
    """
    if not callable(provider):
        raise ConfigError(f"Depends({shown(provider)}): give it a function, without calling it")
    return Dependency(provider)


# ── overrides, for tests ──────────────────────────────────────────────────────────────────────────

_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
_changes = 0  # of `_overrides`; a plan that was made before is made again


@contextmanager
def override(provider: Callable[..., Any], replacement: Callable[..., Any], /) -> Iterator[None]:
    """Call `replacement` instead of `provider` in this block, in all tasks of this process."""
    global _changes
    if not callable(provider) or not callable(replacement):
        raise ConfigError(
            f"override({shown(provider)}, {shown(replacement)}): give two functions; for a value, "
            "give `lambda: value`"
        )
    before = _overrides.get(provider)
    _overrides[provider] = replacement
    _changes += 1
    try:
        yield
    finally:
        if before is None:
            del _overrides[provider]
        else:
            _overrides[provider] = before
        _changes += 1


# ── what to call, and in which order ──────────────────────────────────────────────────────────────


class Step(NamedTuple):
    """One provider: how to call it, and which earlier values are its arguments."""

    call: Callable[..., Any]
    kind: Kind
    arguments: tuple[tuple[str, int], ...]


class Plan:
    """The providers of a function in the order in which they are called."""

    def __init__(self, task: str, dependencies: Mapping[str, Dependency]) -> None:
        self.changes = _changes
        self.steps: list[Step] = []
        self._task = task
        self._indexes: dict[Callable[..., Any], int] = {}
        self.values = tuple(
            (name, self._index_of(dependency.provider, ()))
            for name, dependency in dependencies.items()
        )
        self.cleans_up = any("generator" in step.kind for step in self.steps)
        self.is_async = any("async" in step.kind for step in self.steps)

    def _index_of(self, provider: Callable[..., Any], path: tuple[Callable[..., Any], ...]) -> int:
        """The index of a provider's value. Adds the provider after those that it depends on."""
        if provider in path:
            names = " → ".join(_name(each) for each in (*path, provider))
            raise ConfigError(f"task {self._task}: a dependency needs itself: {names}")
        if provider in self._indexes:
            return self._indexes[provider]
        called = _overrides.get(provider, provider)
        arguments = tuple(
            (name, self._index_of(nested.provider, (*path, provider)))
            for name, nested in self._nested(called).items()
        )
        call, kind = _how(called)
        self.steps.append(Step(call, kind, arguments))
        index = self._indexes[provider] = len(self.steps) - 1
        return index

    def _nested(self, provider: Callable[..., Any]) -> dict[str, Dependency]:
        try:
            parameters = inspect.signature(provider).parameters.values()
        except (TypeError, ValueError):  # a class or function in C
            return {}
        for parameter in parameters:
            if parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
            ):
                raise ConfigError(
                    f"task {self._task}: {_name(provider)}, which it depends on, has the parameter "
                    f"{parameter.name} without a default: make it a dependency, "
                    f"{parameter.name}=Depends(…), or use current_job()"
                )
        return {p.name: p.default for p in parameters if isinstance(p.default, Dependency)}


def _how(provider: Callable[..., Any]) -> tuple[Callable[..., Any], Kind]:
    """How to call a provider. A generator function becomes a context manager."""
    if inspect.isasyncgenfunction(provider):
        return asynccontextmanager(provider), "async generator"
    if inspect.isgeneratorfunction(provider):
        return contextmanager(provider), "generator"
    inner = inspect.unwrap(provider)  # of a function that is a context manager already
    if inner is not provider and inspect.isasyncgenfunction(inner):
        return provider, "async generator"
    if inner is not provider and inspect.isgeneratorfunction(inner):
        return provider, "generator"
    return provider, "async" if runs_async(provider) else "plain"


def _name(provider: Callable[..., Any]) -> str:
    return getattr(provider, "__qualname__", None) or shown(provider)


# ── functions with dependencies ───────────────────────────────────────────────────────────────────


def injected(fn: Callable[..., Any], task: str) -> Callable[..., Any]:
    """The function without its dependencies: it resolves them at each call.

    Returns the function itself if it has none. ConfigError if they cannot be filled in.
    """
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return fn
    parameters = list(signature.parameters.values())
    for parameter in parameters:
        _check_is_ours(parameter, task)
    dependencies = {p.name: p.default for p in parameters if isinstance(p.default, Dependency)}
    if not dependencies:
        return fn
    _check_order(parameters, task)
    call = (_call_async if runs_async(fn) else _call_plain)(fn, task, dependencies)
    update_wrapper(call, fn)
    wrapper: Any = call
    wrapper.__signature__ = signature.replace(
        parameters=[p for p in parameters if p.name not in dependencies]
    )
    wrapper.dependencies = frozenset(dependencies)
    return call


def _check_is_ours(parameter: inspect.Parameter, task: str) -> None:
    """ConfigError if a dependency is written as FastAPI has it, which would be an argument here."""
    name, note = parameter.name, parameter.annotation
    in_annotation = isinstance(note, str) and note.startswith("Annotated[") and "Depends(" in note
    for found in getattr(note, "__metadata__", ()):
        in_annotation |= isinstance(found, Dependency) or type(found).__name__ == "Depends"
    if in_annotation and not isinstance(parameter.default, Dependency):
        raise ConfigError(
            f"task {task}: the dependency of {name} is in its annotation: make it the default, "
            f"{name}: … = Depends(…)"
        )
    if type(parameter.default).__name__ == "Depends":
        raise ConfigError(
            f"task {task}: the default of {name} is the Depends of another library: use "
            "jobq.Depends"
        )


def _check_order(parameters: list[inspect.Parameter], task: str) -> None:
    """ConfigError if an argument that is given by its position could become a dependency."""
    earlier: str | None = None
    for parameter in parameters:
        is_dependency = isinstance(parameter.default, Dependency)
        if is_dependency and parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"task {task}: the dependency {parameter.name} is positional-only: move it behind "
                "the `/`"
            )
        if is_dependency and parameter.kind in _POSITIONAL:
            earlier = parameter.name
        elif earlier is not None and parameter.kind in (*_POSITIONAL, parameter.VAR_POSITIONAL):
            raise ConfigError(
                f"task {task}: parameter {parameter.name} follows the dependency {earlier}: move "
                "dependencies to the end, or behind a `*`"
            )


def _call_async(
    fn: Callable[..., Any], task: str, dependencies: Mapping[str, Dependency]
) -> Callable[..., Any]:
    plan = Plan(task, dependencies)

    async def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal plan
        if plan.changes != _changes:
            plan = Plan(task, dependencies)
        used = _without(plan, task, dependencies, kwargs)
        if not used.cleans_up:
            values: list[Any] = []
            for provider, kind, arguments in used.steps:
                value = provider(**{name: values[index] for name, index in arguments})
                values.append(await value if kind == "async" else value)
            return await fn(*args, **kwargs, **{name: values[n] for name, n in used.values})
        raised: BaseException | None = None
        async with AsyncExitStack() as stack:
            values = []
            for step in used.steps:
                values.append(await _entered(stack, step, values))
            try:
                return await fn(*args, **kwargs, **{name: values[n] for name, n in used.values})
            except BaseException as error:
                raised = error
                raise
        assert raised is not None
        raise raised  # a provider has swallowed it, but the handler has no result

    return call


async def _entered(stack: AsyncExitStack, step: Step, values: list[Any]) -> Any:
    value = step.call(**{name: values[index] for name, index in step.arguments})
    match step.kind:
        case "async generator":
            return await stack.enter_async_context(value)
        case "generator":
            return stack.enter_context(value)
        case "async":
            return await value
    return value


def _call_plain(
    fn: Callable[..., Any], task: str, dependencies: Mapping[str, Dependency]
) -> Callable[..., Any]:
    plan = Plan(task, dependencies)

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal plan
        if plan.changes != _changes:
            plan = Plan(task, dependencies)
        used = _without(plan, task, dependencies, kwargs)
        raised: BaseException | None = None
        with ExitStack() as stack:
            values: list[Any] = []
            for step in used.steps:
                values.append(_entered_here(stack, step, values))
            try:
                return fn(*args, **kwargs, **{name: values[n] for name, n in used.values})
            except BaseException as error:
                raised = error
                raise
        assert raised is not None
        raise raised  # a provider has swallowed it, but the handler has no result

    return call


def _entered_here(stack: ExitStack, step: Step, values: list[Any]) -> Any:
    """The value of a provider for a plain function. Async ones run in the event loop."""
    value = step.call(**{name: values[index] for name, index in step.arguments})
    match step.kind:
        case "async generator":
            manager = value
            entered = _in_loop(manager.__aenter__())
            stack.push(lambda *error: _in_loop(manager.__aexit__(*error)))
            return entered
        case "generator":
            return stack.enter_context(value)
        case "async":
            return _in_loop(value)
    return value


def _in_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, in the worker's event loop, else in the one for blocking calls."""
    run = running.get(None)
    loop = None if run is None else run.loop
    if loop is None:
        return portal.run(coroutine)
    if loop is asyncio._get_running_loop():
        coroutine.close()
        raise RuntimeError(
            "an async dependency of a plain function would block the event loop that runs in this "
            "thread: call the function with asyncio.to_thread, or in a test use "
            "jobs.sync.drain(inline=True)"
        )
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


def _without(
    plan: Plan, task: str, dependencies: Mapping[str, Dependency], kwargs: Mapping[str, Any]
) -> Plan:
    """The plan without dependencies that a direct call gives itself, as tests do."""
    if not kwargs or dependencies.keys().isdisjoint(kwargs):
        return plan
    return Plan(task, {name: each for name, each in dependencies.items() if name not in kwargs})
