"""What every child with permissions may use, because Python and jobq need it."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Mapping

from jobq.core.policies import Permissions
from jobq.core.values.printable import redacted_url
from jobq.executors.sandbox.resolved_paths import is_under

_SYSTEM = (
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/mime.types",
    "/etc/ssl/openssl.cnf",
    "/usr/share/locale",
    "/usr/share/zoneinfo",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
)
_WITH_NETWORK = (
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ca-certificates",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/usr/share/ca-certificates",
)
NULL = "/dev/null"
_LOADERS = (
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-musl-aarch64.so.1",
    "/lib/ld-musl-x86_64.so.1",
    "/lib64/ld-linux-x86-64.so.2",
)

_VARIABLES = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "PATH", "TZ", "TZDIR", "VIRTUAL_ENV"}
)
_PREFIXES = ("LC_", "PYTHON")

# Folders that hold the data of other programs. An application's code must not be in one directly,
# because what is beside it is readable.
_TOO_WIDE = frozenset(
    {"/", "/dev", "/etc", "/home", "/mnt", "/opt", "/proc", "/root", "/run", "/srv", "/sys"}
    | {"/tmp", "/usr", "/var", "/var/lib", "/var/run", "/var/tmp"}
)

_PACKAGES = frozenset({"site-packages", "dist-packages"})
_PATHS = sysconfig.get_paths()  # now: a process that has given up its rights may not read it
"""Folders of installed packages have one of these names."""

DNS = 53
"""TCP port of name servers."""


def system(*, network: bool) -> list[str]:
    """Files and folders of the system that a child may read besides those that are named."""
    return [*_SYSTEM, *(_WITH_NETWORK if network else ())]


def installed() -> list[str]:
    """The folders of Python and of the installed packages."""
    folders = [_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix)]
    folders.append(os.path.join(sys.prefix, "pyvenv.cfg"))
    folders += [entry for entry in _import_path() if os.path.basename(entry) in _PACKAGES]
    found = dict.fromkeys(os.path.realpath(folder) for folder in folders)
    return [folder for folder in found if folder not in _too_wide()]


def application() -> list[str]:
    """The other folders that Python imports from: the application's code, and what is beside it."""
    packages = [*installed(), *map(os.path.realpath, _SYSTEM)]
    return [
        entry
        for entry in _import_path()
        if entry not in _too_wide()
        and not any(entry == folder or is_under(entry, folder) for folder in packages)
    ]


def code_in_wide_folders() -> list[str]:
    """Entries of sys.path that hold more than code, so that children cannot read them."""
    return [entry for entry in _import_path() if entry in _too_wide()]


def _import_path() -> list[str]:
    return list(dict.fromkeys(os.path.realpath(entry or os.getcwd()) for entry in sys.path))


def _too_wide() -> frozenset[str]:
    return _TOO_WIDE | {
        os.path.realpath(path) for path in (os.path.expanduser("~"), tempfile.gettempdir())
    }


def loaders() -> tuple[str, ...]:
    """Programs that the kernel needs to start a program with shared libraries."""
    return _LOADERS


def environment(permissions: Permissions, present: Mapping[str, str]) -> dict[str, str]:
    """The variables that a child starts with: those that are named, and what Python needs.

    A child has to be started with these. Variables that it deletes later can still be found in its
    memory.
    """
    kept = {
        name: value
        for name, value in present.items()
        if name in permissions.env or name in _VARIABLES or name.startswith(_PREFIXES)
    }
    if permissions.memory is not None:
        # Each arena of the C library takes 64 MB of address space, and there are 8 per core.
        kept.setdefault("MALLOC_ARENA_MAX", "2")
    if isinstance(permissions.network, tuple) and DNS in permissions.network:
        kept.setdefault("RES_OPTIONS", "use-vc")  # resolve names over TCP
    return kept


def visible_urls(permissions: Permissions, urls: Mapping[str, str]) -> dict[str, str]:
    """The URLs of stores as a child may know them, by queue.

    They come without passwords unless the child may know `JQ_URL`. It can add jobs nevertheless:
    the worker does that for it.
    """
    if "JQ_URL" in permissions.env:
        return dict(urls)
    return {queue: redacted_url(url) for queue, url in urls.items()}
