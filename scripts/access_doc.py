"""Write docs/guide/access.md from access/table.py, and check that the .proto files say the same.

python scripts/access_doc.py           write the page
python scripts/access_doc.py --check   exit 1 if the page is not up to date, or if the comment of
                                       an RPC does not end with the scope that it needs
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from jobq.access.principal import Principal
from jobq.access.table import CALLS, DOORS, PARTS, ROUTES, RPCS, Door

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guide" / "access.md"
PROTOS = ("jobs", "admin", "workers")

_RPC = re.compile(r"((?:^  //[^\n]*\n)*)^  rpc (\w+)\(", re.MULTILINE)


def page() -> str:
    """The whole page."""
    parts = (_head(), _scopes(), _rpcs(), _routes(), _calls())
    return "\n".join(line for part in parts for line in (*part, ""))


def _head() -> Iterator[str]:
    yield "# Scopes of every call"
    yield ""
    yield "<!-- scripts/access_doc.py writes this page from access/table.py. -->"
    yield ""
    yield "This page lists the scope that each call of a jq-server and each route of its dashboard"
    yield "needs. [Security](security.md) explains scopes. `admin` is always enough. *any* means"
    yield "that every accepted token or certificate is enough, *none* that neither is needed."


def _scopes() -> Iterator[str]:
    yield "## What a scope allows"
    yield ""
    yield "| scope | RPCs that it is enough for |"
    yield "|---|---|"
    for scope in ("produce", "work", "read"):
        alone = Principal(subject="", tenant=None, scopes=frozenset({scope}))
        names = [name for name, door in RPCS.items() if door.needs and door.admits(alone)]
        yield f"| `{scope}` | {', '.join(names)} |"
    yield "| `admin` | all |"


def _rpcs() -> Iterator[str]:
    yield "## RPCs"
    yield ""
    yield "The standard services for health and reflection need no token."
    yield ""
    yield "| service | RPC | scope |"
    yield "|---|---|---|"
    for name in PROTOS:
        text = _proto(name).read_text(encoding="utf-8")
        service = re.search(r"^service (\w+)", text, re.MULTILINE)
        assert service is not None
        for _, rpc in _RPC.findall(text):
            yield f"| {service[1]} | {rpc} | {_cell(RPCS[rpc])} |"


def _routes() -> Iterator[str]:
    yield "## The dashboard"
    yield ""
    yield "The paths are below the place where the dashboard is mounted, such as `/ui`. A read-only"
    yield "dashboard refuses all actions."
    yield ""
    yield "| request | scope |"
    yield "|---|---|"
    for name, door in ROUTES.items():
        yield f"| `{name}` | {_cell(door)} |"


def _calls() -> Iterator[str]:
    yield "## The Store contract"
    yield ""
    yield "Programs that use `grpc://` send these calls over the RPC `Exchange`."
    yield ""
    yield "| call | scope |"
    yield "|---|---|"
    for name in (*CALLS, *PARTS):
        call, _, part = name.partition(" ")
        yield f"| {' '.join(filter(None, (f'`{call}`', part)))} | {_cell(DOORS[name])} |"


def _cell(door: Door) -> str:
    return re.sub(r"\b(produce|work|read|admin)\b", r"`\1`", door.in_words())


def wrong_comments(name: str, text: str) -> Iterator[str]:
    """The RPCs of a .proto file whose comments do not say what they need."""
    for comment, rpc in _RPC.findall(text):
        words = " ".join(line.strip(" /") for line in comment.splitlines())
        expected = f"Scope: {RPCS[rpc].in_words()}."
        if not words.endswith(expected) or words.count("Scope") != 1:
            yield f"{name}.proto: the comment of {rpc} must end with `{expected}`"


def _proto(name: str) -> Path:
    return ROOT / "proto" / "jobq" / "v1" / f"{name}.proto"


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    text = page()
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    problems = [
        problem
        for name in PROTOS
        for problem in wrong_comments(name, _proto(name).read_text(encoding="utf-8"))
    ]
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        problems.append(
            "docs/guide/access.md does not match access/table.py: run python scripts/access_doc.py"
        )
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
