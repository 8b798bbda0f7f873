"""Check which module imports which. Prints one line per broken rule and exits with 1.

    cli → server, web → access → jobq (the public names) → api → engine, operations → client
    → stores.base → core

- A store imports no other store; `stores` opens them by name, so a driver is loaded when it is
  needed. The stores on SQL databases share `stores.relational`, which imports no driver.
- A driver is imported only in the package it belongs to, so that `import jobq` needs none.
- core is pure: no I/O, no asyncio, no clock.
- Nothing imports pipeline, server or cli (cli may import server, django.management cli). server and
  web do not import each other: what both know of callers is in access.
- Nothing imports the telemetry modules (cli and server may import prometheus, server also otel).
- No module imports itself through others: modules can be read, tested and imported one by one.
- Packages do not need each other in a circle, not even for types.
- A folder has at most 28 entries and lies at most three levels below jobq, so that `ls` shows what
  there is.

Only the rule on circles of packages counts imports under `if TYPE_CHECKING`: modules of one package
may name each other's types. Those of `jobq` itself always count, because its names are imported
when they are used. Imports inside functions count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

PACKAGE = "jobq"

STORES = frozenset({"stores.sqlite", "stores.valkey", "stores.postgres", "stores.remote"})
CORE = frozenset({"core", "core.policies", "core.records", "core.rules", "core.values", "errors"})
TELEMETRY = frozenset({"otel", "prometheus", "sentry"})
BELOW_API = CORE | {"engine", "executors", "operations", "client", "stores", "stores.base"}
PUBLIC = BELOW_API | {"api", "public"}
GRPC = frozenset({"rpc", "server", "stores.remote", "testing.fake_worker"})

# Unit → the units it may import, besides itself. A unit is the longest of these names that begins a
# module's name; what has no entry (`jobq` itself, and submodules that users import by name, such as
# `jobq.testing`) is "public".
MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    # Inside of core: users' values, what crosses the contract, what users write, what is decided.
    "core.values": frozenset({"errors"}),
    "core.records": frozenset({"core.values", "errors"}),
    "core": frozenset({"core.records", "core.values", "errors"}),
    "core.policies": frozenset({"core", "core.records", "core.values", "errors"}),
    "core.rules": CORE,
    "stores.base": CORE,
    "stores": CORE | {"stores.base"},
    **{store: CORE | {"stores.base"} for store in STORES},
    # The logic that the stores on SQL databases share. It knows none of them.
    "stores.relational": CORE | {"stores.base"},
    "stores.sqlite": CORE | {"stores.relational", "stores.base"},
    "stores.postgres": CORE | {"stores.relational", "stores.base"},
    "stores.remote": CORE | {"rpc", "stores.base"},
    "rpc": CORE | {"stores.base"},
    # `client` is how calls reach a store; `executors` is where handlers run, and what they see of
    # their job.
    "client": CORE | {"stores", "stores.base"},
    # `operations` is what operators do, once for api, cli, server, web and django.
    "operations": CORE | {"client", "stores.base"},
    "executors": CORE | {"stores.base"},
    "engine": CORE | {"executors", "stores", "stores.base"},
    "api": BELOW_API,
    "public": BELOW_API | {"api", "testing.fake_worker"},
    # Integrations that users import by name. Their command lines are those of jobq.
    "django": CORE | {"public", "api", "operations", "client"},
    "django.management": PUBLIC | {"django", "cli"},
    # Telemetry is middleware. Engine, stores and api know none of it, and `import jobq` needs none.
    **{telemetry: BELOW_API | {"api"} for telemetry in TELEMETRY},
    # A codec with a driver of its own.
    "encryption": CORE,
    # `console` is what the command lines share: logging, and errors that show no password.
    "console": CORE,
    # `operations.capacity` is a model: it opens no store.
    "operations.capacity": CORE,
    # `supervisor` starts worker processes again by their command line: it knows no worker.
    "supervisor": CORE,
    "relay": PUBLIC | {"console"},
    "pipeline": CORE | {"public", "api", "client", "console"},
    # A worker for tests of a server, in a few calls of WorkerService.
    "testing.fake_worker": PUBLIC | {"rpc"},
    # Who may do what: the rules that server and web share.
    "access": CORE | {"client", "stores.base"},
    "web": PUBLIC | {"access", "console"},
    # It uses the connection of stores.valkey for hints between servers.
    "server": PUBLIC | {"access", "rpc", "relay", "console", "prometheus", "otel", "stores.valkey"},
    "cli": PUBLIC
    | {
        "access",
        "operations.capacity",
        "rpc",
        "relay",
        "server",
        "web",
        "console",
        "supervisor",
        "prometheus",
    },
}

# Third-party (or costly) module → where it may be imported, and what it is.
DRIVERS: dict[str, tuple[frozenset[str], str]] = {
    "apsw": (frozenset({"stores.sqlite"}), "the SQLite driver"),
    "sqlite3": (frozenset({"stores.sqlite"}), "the SQLite driver"),
    "redis": (frozenset({"stores.valkey"}), "the Valkey driver"),
    "hiredis": (frozenset({"stores.valkey"}), "the Valkey driver"),
    "valkey": (frozenset({"stores.valkey"}), "the Valkey driver"),
    "psycopg": (frozenset({"stores.postgres"}), "the PostgreSQL driver"),
    "grpc": (GRPC, "the gRPC runtime"),
    "grpc_health": (frozenset({"server"}), "a part of the gRPC server"),
    "grpc_reflection": (frozenset({"server"}), "a part of the gRPC server"),
    "google": (GRPC, "the protobuf runtime"),
    "jwt": (frozenset({"server"}), "what tokens are checked with"),
    "confluent_kafka": (frozenset({"relay"}), "the Kafka client"),
    "prometheus_client": (
        frozenset({"prometheus", "cli", "server", "pipeline"}),
        "the Prometheus client",
    ),
    "opentelemetry": (frozenset({"otel"}), "OpenTelemetry"),
    "sentry_sdk": (frozenset({"sentry"}), "the Sentry SDK"),
    "structlog": (frozenset(), "a logging library, the application's choice"),
    "cryptography": (
        frozenset({"encryption", "server"}),
        "what payloads are encrypted with, and certificates read",
    ),
    "watchfiles": (frozenset({"supervisor"}), "what --reload watches files with"),
    "pyspark": (frozenset({"pipeline"}), "Spark"),
    "pyarrow": (frozenset({"pipeline"}), "Arrow"),
    "pandas": (frozenset({"pipeline"}), "pandas"),
    "django": (frozenset({"django", "django.management"}), "a web framework"),
    "asgiref": (frozenset({"django", "django.management"}), "a part of Django"),
    "click": (
        frozenset({"cli", "console", "server", "relay", "pipeline", "django.management"}),
        "a command-line library",
    ),
    "rich": (frozenset({"cli", "server", "relay", "pipeline"}), "a command-line library"),
    "yaml": (frozenset({"cli", "console"}), "a command-line library"),
    "starlette": (frozenset({"web"}), "the dashboard's web framework"),
    "jinja2": (frozenset({"web"}), "the dashboard's templates"),
    "uvicorn": (frozenset({"web"}), "the dashboard's web server"),
    "uvloop": (frozenset({"cli", "server"}), "an event loop, the process's choice"),
}

IMPURE = frozenset(
    {
        "asyncio",
        "concurrent",
        "http",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
    }
)
MAX_ENTRIES = 28
MAX_DEPTH = 3
CLOCK_READS = frozenset({"now", "utcnow", "today"})


class Import(NamedTuple):
    """One imported module name, whole, and where."""

    module: str
    line: int


def unit_of(module: str) -> str:
    """The unit that a module belongs to, e.g. `jobq.stores.valkey.keys` → `stores.valkey`."""
    parts = module.split(".")[1:]
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in MAY_IMPORT:
            return name
    return "public"


def imports(
    module: str, tree: ast.AST, names: frozenset[str], *, for_types: bool = False
) -> Iterator[Import]:
    """What a module imports at run time, or also for types. `names`: the package's modules, to tell
    `from a import module` from a name."""
    for node in ast.walk(tree) if for_types or module == PACKAGE else _at_run_time(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield Import(whole if whole in names else node.module, node.lineno)


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, except those under `if TYPE_CHECKING`."""
    yield node
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        children: Iterator[ast.AST] = iter(node.orelse)
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from _at_run_time(child)


def broken(module: str, source: str, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """The rules that a module breaks: (line, what and why)."""
    tree = ast.parse(source)
    unit = unit_of(module)
    for found in imports(module, tree, names):
        top = found.module.split(".")[0]
        if top == PACKAGE:
            problem = _wrong_way(unit, found.module)
        elif unit.split(".")[0] == "core" and top in IMPURE:
            problem = f"core is pure and may not import {top}: take what it needs as an argument"
        else:
            problem = _foreign_driver(unit, top)
        if problem:
            yield found.line, problem
    if unit.split(".")[0] == "core":
        yield from _clock_reads(tree)


def _wrong_way(unit: str, module: str) -> str | None:
    target = unit_of(module)
    if target == unit or target in MAY_IMPORT[unit]:
        return None
    if unit in STORES and target in STORES:
        return f"a store imports no other store: {unit} imports {module}"
    allowed = ", ".join(sorted(MAY_IMPORT[unit])) or "nothing of jobq"
    return f"{unit} may not import {module} ({target}); it may import {allowed}"


def _foreign_driver(unit: str, top: str) -> str | None:
    if top not in DRIVERS:
        return None
    homes, what = DRIVERS[top]
    if unit in homes:
        return None
    return f"{top} is {what} and belongs in {', '.join(sorted(homes))}, not in {unit}"


def _clock_reads(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in CLOCK_READS
            and ast.unparse(node.func.value)
            in {"datetime", "date", "datetime.datetime", "datetime.date"}
        ):
            yield (
                node.lineno,
                f"core reads no clock ({ast.unparse(node.func)}): take the time as an argument",
            )


def cycles(graph: Mapping[str, AbstractSet[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others.

    Tarjan's algorithm: each group is a strongly connected component of more than one module."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        path.append(module)
        for target in sorted(graph.get(module, ())):
            if target not in index:
                visit(target)
            if target in path:
                low[module] = min(low[module], low[target])
        if low[module] == index[module]:
            group = path[path.index(module) :]
            del path[-len(group) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return found


def check(src: Path) -> list[str]:
    """Every broken rule under `src`, as `path:line: message`."""
    files = {_module_name(path, src): path for path in sorted((src / PACKAGE).rglob("*.py"))}
    names = frozenset(files)
    problems = [
        f"{path}:{line}: {message}"
        for module, path in files.items()
        for line, message in broken(module, path.read_text(), names)
    ]
    at_run_time = cycles(_graph(files, for_types=False))
    problems += [
        f"{files[group[0]]}:1: these modules import each other: {', '.join(group)}"
        for group in at_run_time
    ]
    problems += [
        f"{files[group[0]]}:1: modules of several packages import each other, if only for types: "
        + ", ".join(group)
        for group in cycles(_graph(files, for_types=True))
        if group not in at_run_time and len({files[module].parent for module in group}) > 1
    ]
    return problems + list(_crowded(src / PACKAGE))


def _crowded(root: Path) -> Iterator[str]:
    """Folders with too many modules and folders, or too deep. Lists of SQL, Lua or HTML may be
    long."""
    for folder in sorted({path.parent for path in root.rglob("*.py")}):
        entries = {path.name for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
        if len(entries - {"__init__.py", "__pycache__"}) > MAX_ENTRIES:
            yield f"{folder}: more than {MAX_ENTRIES} entries: group them by meaning"
        if len(folder.relative_to(root).parts) > MAX_DEPTH:
            yield f"{folder}: more than {MAX_DEPTH} levels below {PACKAGE}"


def _graph(files: Mapping[str, Path], *, for_types: bool) -> dict[str, set[str]]:
    names = frozenset(files)
    return {
        module: {
            found.module
            for found in imports(module, ast.parse(path.read_text()), names, for_types=for_types)
        }
        & names
        for module, path in files.items()
    }


def _module_name(path: Path, src: Path) -> str:
    parts = path.relative_to(src).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def main() -> int:
    problems = check(Path("src"))
    for problem in problems:
        print(problem)
    print(f"layers: {len(problems)} broken" if problems else "layers: ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
