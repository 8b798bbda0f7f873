"""What does a jq-server cost? The same measurements with and without one, in the same run.

    python -m bench.server                              SQLite, plaintext
    python -m bench.server --store valkey --store postgres --tls

The server is a process of its own, between the contender's processes and the store. For the
embedded store (SQLite) there are bounds in jobs per second. For the others the bound is the ratio
to the same measurement without the server. Exit code 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.measures import MEASURES, Session
from bench.places import Place, place
from bench.roster import CONTENDERS, ROOT, Contender

STORES = ("sqlite", "valkey", "postgres")
NUMBERS = {"concurrent": 30_000, "bulk": 60_000, "drain100": 20_000, "request": 300}
"""Operations of each measurement: a second or two."""
BOUNDS = {"concurrent": 30_000.0, "bulk": 60_000.0, "drain100": 12_000.0, "request": 3.0}
"""On SQLite: operations per second. `request` is the median of a round trip in milliseconds."""
RATIO = 0.4
"""On other stores: the least part of what the store does without a server."""


# ── the server ────────────────────────────────────────────────────────────────────────────────────


async def serve(url: str, certificates: Path | None) -> None:
    """Serve a store until killed. Prints the port."""
    import grpc

    from jobq.server.config import ServerSettings
    from jobq.server.context import ServerContext
    from jobq.server.exchange import ExchangeService
    from jobq.stores import open_store

    async with open_store(url) as store:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        context = ServerContext(store, ServerSettings())
        ExchangeService(context).register(server)
        if certificates is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            pair = (
                (certificates / "key.pem").read_bytes(),
                (certificates / "cert.pem").read_bytes(),
            )
            port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        await server.start()
        print(port, flush=True)
        await server.wait_for_termination()


class Running(NamedTuple):
    """A server in a process of its own."""

    url: str
    pid: int


@contextmanager
def running_server(store: str, *, tls: bool = False) -> Iterator[Running]:
    """A server on the store at this URL, killed at the end."""
    with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
        command = [sys.executable, "-m", "bench.server", "--serve", store]
        if tls:
            make_certificate(Path(folder))
            command += ["--certificates", folder]
        path = f"{ROOT / 'src'}:{ROOT}"
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
        )
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            if not port:
                raise SystemExit(f"the server ended with exit code {process.wait()}")
            scheme, tail = ("grpcs", f"?ca={folder}/cert.pem") if tls else ("grpc", "")
            yield Running(f"{scheme}://localhost:{port}{tail}", process.pid)
        finally:
            process.kill()
            process.communicate()


@contextmanager
def served(where: Place, *, tls: bool) -> Iterator[Place]:
    """The place, behind a server."""
    with running_server(where.url, tls=tls) as server:
        found = Place(server.url)
        found.filled = where.filled  # type: ignore[method-assign]
        yield found


def make_certificate(folder: Path) -> None:
    """A key and a certificate for localhost, signed by itself."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


# ── measurements ──────────────────────────────────────────────────────────────────────────────────


def contender_on(store: str) -> Contender:
    """jobq of this checkout on a store."""
    found = CONTENDERS[f"jobq-{store}"]
    return Contender(name=found.name, module="jobq", place=found.place, url=found.url, source=ROOT)


def measure(store: str, key: str, *, tls: bool | None) -> float:
    """One value. `tls` None: without a server."""
    contender = contender_on(store)
    with place(contender.place, contender.url) as where, contextlib.ExitStack() as stack:
        session = Session(contender=contender, n=NUMBERS[key], loop="uvloop", versions={})
        if contender.place == "postgres":
            session.run(where, do="prepare")
        if tls is not None:
            where = stack.enter_context(served(where, tls=tls))
        return MEASURES[key].take(session, where)[0]


def main() -> None:
    """Measure, print a table per store, and exit with 1 if a bound is missed."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--store", action="append", choices=STORES, help="default: sqlite")
    options.add_argument("--measure", action="append", choices=list(NUMBERS), help="default: all")
    options.add_argument("--tls", action="store_true", help="also over TLS")
    options.add_argument(
        "--runs", type=int, default=3, help="the table shows medians (%(default)s)"
    )
    options.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    options.add_argument("--certificates", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.serve:
        with contextlib.suppress(ImportError):
            importlib.import_module("uvloop").install()
        asyncio.run(serve(given.serve, given.certificates))
        return
    missed = [
        report(store, given.measure or list(NUMBERS), tls=given.tls, runs=given.runs)
        for store in given.store or ["sqlite"]
    ]
    sys.exit(any(missed))


def report(store: str, keys: list[str], *, tls: bool, runs: int) -> bool:
    """Measure one store and print its table. Returns whether a bound was missed."""
    ways: list[tuple[str, bool | None]] = [("without a server", None), ("grpc://", False)]
    if tls:
        ways.append(("grpcs://", True))
    found: dict[tuple[str, str], list[float]] = {}
    for key, _, (name, way) in track(
        [(key, run, way) for key in keys for run in range(runs) for way in ways],
        description=store,
    ):
        found.setdefault((key, name), []).append(measure(store, key, tls=way))
    table = Table(title=f"jq-server on {store}, medians of {runs}")
    for column in ("", *(name for name, _ in ways), "ratio", "bound"):
        table.add_column(column, justify="right" if column else "left")
    missed = False
    for key in keys:
        title, unit = MEASURES[key].rows[0]
        values = [statistics.median(found[key, name]) for name, _ in ways]
        worst = max(values[1:]) if unit == "ms" else min(values[1:])
        ratio = values[0] / worst if unit == "ms" else worst / values[0]
        missed |= not within(store, key, worst, ratio)
        shown = [f"{value:,.2f} ms" if unit == "ms" else f"{value:,.0f}/s" for value in values]
        table.add_row(title, *shown, f"{ratio:.2f}", bound(store, key))
    Console().print(table)
    return missed


def within(store: str, key: str, worst: float, ratio: float) -> bool:
    """Whether the slowest way is good enough."""
    if key == "request":
        return worst <= BOUNDS[key]
    return worst >= BOUNDS[key] if store == "sqlite" else ratio >= RATIO


def bound(store: str, key: str) -> str:
    """The bound, in words."""
    if key == "request":
        return f"≤ {BOUNDS[key]:g} ms"
    return f"≥ {BOUNDS[key]:,.0f}/s" if store == "sqlite" else f"ratio ≥ {RATIO:g}"


if __name__ == "__main__":
    main()
