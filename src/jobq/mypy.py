"""A plugin for mypy: dependencies are not arguments of a task.

    [tool.mypy]
    plugins = ["jobq.mypy"]

The parameters of a task are those of its function. mypy cannot leave out a parameter because of its
default, so without this plugin it accepts `charge.enqueue(7, db=session)`, which raises InvalidJob.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.nodes import CallExpr, FuncDef, RefExpr
from mypy.plugin import MethodContext, Plugin
from mypy.types import CallableType, Instance, Parameters, Type, get_proper_type

__all__ = ["plugin"]

_DEPENDS = frozenset({"jobq.Depends", "jobq.api.dependencies.Depends"})
_DECORATORS = frozenset(
    {
        "jobq.api.queue.Queue.task",
        "jobq.api.task.TaskDecorator.__call__",
        "jobq.api.tasks.Tasks.task",
        "jobq.api.tasks.DeclaringDecorator.__call__",
    }
)


class _Jobq(Plugin):
    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """Called for each call of a method, also by a decorator."""
        return _without_dependencies if fullname in _DECORATORS else None


def _without_dependencies(ctx: MethodContext) -> Type:
    """The type of the task, without the parameters whose default is `Depends(…)`."""
    task = get_proper_type(ctx.default_return_type)
    names = _dependencies(ctx)
    if not names or not isinstance(task, Instance) or not task.args:
        return ctx.default_return_type
    parameters = get_proper_type(task.args[0])
    if not isinstance(parameters, Parameters):
        return ctx.default_return_type
    kept = [n for n, name in enumerate(parameters.arg_names) if name not in names]
    left = parameters.copy_modified(
        arg_types=[parameters.arg_types[n] for n in kept],
        arg_kinds=[parameters.arg_kinds[n] for n in kept],
        arg_names=[parameters.arg_names[n] for n in kept],
    )
    return task.copy_modified(args=[left, *task.args[1:]])


def _dependencies(ctx: MethodContext) -> set[str]:
    if not ctx.arg_types or not ctx.arg_types[0]:
        return set()
    function = get_proper_type(ctx.arg_types[0][0])
    if not isinstance(function, CallableType) or not isinstance(function.definition, FuncDef):
        return set()
    return {
        argument.variable.name
        for argument in function.definition.arguments
        if isinstance(argument.initializer, CallExpr)
        and isinstance(argument.initializer.callee, RefExpr)
        and argument.initializer.callee.fullname in _DEPENDS
    }


def plugin(version: str) -> type[Plugin]:
    """Called by mypy."""
    return _Jobq
