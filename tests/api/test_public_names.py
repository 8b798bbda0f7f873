"""What users can reach is decided, not an accident: public_names.txt lists every public name.

After a decision to add or remove one: `python tests/api/test_public_names.py` writes the list.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import jobq
import jobq.django
import jobq.encryption
import jobq.http
import jobq.logs
import jobq.otel
import jobq.prometheus
import jobq.sentry
import jobq.sync
import jobq.testing
import jobq.web

MODULES = (
    jobq,
    jobq.http,
    jobq.django,
    jobq.encryption,
    jobq.logs,
    jobq.otel,
    jobq.prometheus,
    jobq.sentry,
    jobq.sync,
    jobq.testing,
    jobq.web,
)
"""The modules that users import by name, one per line."""
LISTED = Path(__file__).with_name("public_names.txt")


def public_names() -> list[str]:
    """Every public name of the modules that users import, and every public attribute of a class."""
    names: set[str] = set()
    for module in MODULES:
        for name in module.__all__:
            whole = f"{module.__name__}.{name}"
            names.add(whole)
            value = getattr(module, name)
            if inspect.isclass(value):
                names.update(f"{whole}.{attribute}" for attribute in attributes(value))
    return sorted(names)


def attributes(cls: type) -> Iterator[str]:
    """The public attributes that jobq gives a class: those of the class and those of instances."""
    for base in cls.__mro__:
        if not base.__module__.startswith("jobq."):
            continue
        slots = base.__dict__.get("__slots__", ())
        declared = {*base.__dict__, *inspect.get_annotations(base), *slots}
        yield from (name for name in declared | _assigned(base) if not name.startswith("_"))


def _assigned(cls: type) -> set[str]:
    """The attributes that the methods of a class assign to `self`."""
    return {
        node.attr
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(cls))))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }


def test_the_public_names_are_those_that_were_decided() -> None:
    listed = LISTED.read_text().split()
    added, removed = set(public_names()) - set(listed), set(listed) - set(public_names())
    assert not added, f"make these private, or decide that they are public: {sorted(added)}"
    assert not removed, f"users may rely on these: {sorted(removed)}"


def test_an_attribute_that_is_assigned_to_self_is_found() -> None:
    assert {"jobq.Queue.name", "jobq.Queue.url", "jobq.Worker.name", "jobq.Job.id"} <= set(
        public_names()
    )


def test_a_name_is_imported_from_where_type_checkers_see_it() -> None:
    """jobq imports its names when they are used: by a table, which type checkers do not see."""
    (seen,) = (node for node in ast.parse(inspect.getsource(jobq)).body if isinstance(node, ast.If))
    imports = [node for node in seen.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names}
    assert vars(jobq)["_HOMES"] == homes
    assert sorted(homes) == sorted(jobq.__all__)


def test_import_jobq_imports_no_queue_and_knows_all_names() -> None:
    code = """
        import sys, jobq
        assert not {"asyncio", "msgspec", "jobq.api", "jobq.errors"} & set(sys.modules)
        jobq.Queue
        costly = {"cronsim", "ctypes", "difflib", "ipaddress", "pathlib", "shutil", "urllib.parse"}
        assert not costly & set(sys.modules), costly & set(sys.modules)
        assert set(jobq.__all__) <= set(dir(jobq))
        names = {}
        exec("from jobq import *", names)
        assert set(jobq.__all__) <= set(names)
        assert jobq.Queue is names["Queue"]
        assert not hasattr(jobq, "queue")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


if __name__ == "__main__":
    LISTED.write_text("".join(f"{name}\n" for name in public_names()))
