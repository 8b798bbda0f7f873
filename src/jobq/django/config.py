"""settings.JOBQ, checked.

JOBQ = {
    "URL": "valkey://localhost:6379",  # or "DATABASE": "default", which stores jobs in PostgreSQL
    "TENANT": "shop",
    "ENQUEUE": "after_commit",
    "WORKER": {"concurrency": 20},
}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast, get_args
from urllib.parse import quote, urlencode

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from jobq.core.values.checks import did_you_mean, shown
from jobq.errors import ConfigError

Enqueue = Literal["after_commit", "in_transaction", "at_once"]
"""When `.sync.enqueue` inside `atomic()` stores a job."""

_KEYS = ("URL", "DATABASE", "TENANT", "ENQUEUE", "WORKER")
_WORKER_OPTIONS = ("concurrency", "lease", "drain", "grace", "pool", "processes")
_OWN_PARAMETERS = ("dbname", "user", "password", "host", "port")
_NOT_FOR_THE_STORE = (
    "client_encoding",
    "connect_timeout",
    "application_name",
    "options",
    "prepare_threshold",
    "autocommit",
)
"""Parameters that Django's connection may have and that the store sets itself. The others are
options of libpq, such as sslmode."""


class Config(NamedTuple):
    """What settings.JOBQ says."""

    url: str | None
    database: str | None
    tenant: str | None
    enqueue: Enqueue | None
    worker: Mapping[str, Any]

    @property
    def alias(self) -> str:
        """The database whose transactions `enqueue` looks at."""
        return self.database or DEFAULT_DB_ALIAS

    def mode(self) -> Enqueue:
        """When jobs are stored that are enqueued inside `atomic()`."""
        if self.enqueue is not None:
            return self.enqueue
        return "in_transaction" if self.url is None and self.database else "after_commit"


def config() -> Config:
    """Read settings.JOBQ. ConfigError names what is wrong in it."""
    given = getattr(settings, "JOBQ", None)
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"settings.JOBQ={shown(given)} is not a dictionary")
    for key in given:
        if key not in _KEYS:
            raise ConfigError(
                f"settings.JOBQ has the unknown key {shown(key)}{did_you_mean(str(key), _KEYS)}; "
                f"its keys are {', '.join(_KEYS)}"
            )
    enqueue = given.get("ENQUEUE")
    return Config(
        url=_text(given, "URL"),
        database=_database(given),
        tenant=_text(given, "TENANT"),
        enqueue=None if enqueue is None else check_enqueue(enqueue, 'settings.JOBQ["ENQUEUE"]'),
        worker=_worker(given.get("WORKER", {})),
    )


def check_enqueue(value: object, where: str) -> Enqueue:
    """The value, if it is one of the three. ConfigError names `where` it was given."""
    if value not in get_args(Enqueue):
        raise ConfigError(f"{where}={shown(value)}: use one of {', '.join(get_args(Enqueue))}")
    return cast("Enqueue", value)


def database_url(alias: str) -> str:
    """The URL of the store in a database of settings.DATABASES, as it is now.

    In a test run, that is the test database."""
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise ConfigError(
            f'settings.JOBQ["DATABASE"] is {alias!r}, and that is a {connection.display_name} '
            'database: jobs can be stored in PostgreSQL only; set JOBQ["URL"] instead, for '
            'example to "sqlite:///jobs.db"'
        )
    given = {
        name: str(value)
        for name, value in connection.get_connection_params().items()
        if value is not None and isinstance(value, (str, int)) and not isinstance(value, bool)
    }
    user = quote(given.get("user", ""), safe="")
    if password := given.get("password"):
        user += f":{quote(password, safe='')}"
    options = {
        name: value
        for name, value in given.items()
        if name not in (*_OWN_PARAMETERS, *_NOT_FOR_THE_STORE)
    }
    host, port = given.get("host", ""), given.get("port")
    if "," in host or ":" in host:  # several servers with one port, or an address of IPv6
        options |= {"host": host} | ({"port": port} if port else {})
        host, port = "", None
    place = quote(host, safe="")
    return "".join(
        (
            "postgresql://",
            f"{user}@" if user else "",
            f"{place}:{port}" if port else place,
            f"/{quote(given.get('dbname', ''), safe='')}",
            f"?{urlencode(options)}" if options else "",
        )
    )


def _text(given: Mapping[str, Any], key: str) -> str | None:
    value = given.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"settings.JOBQ[{key!r}]={shown(value)} is not a text")
    return value


def _database(given: Mapping[str, Any]) -> str | None:
    alias = _text(given, "DATABASE")
    if alias is not None and alias not in settings.DATABASES:
        raise ConfigError(
            f'settings.JOBQ["DATABASE"]={alias!r} is not in settings.DATABASES'
            f"{did_you_mean(alias, settings.DATABASES)}"
        )
    return alias


def _worker(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f'settings.JOBQ["WORKER"]={shown(value)} is not a dictionary')
    for name in value:
        if name not in _WORKER_OPTIONS:
            raise ConfigError(
                f'settings.JOBQ["WORKER"] has the unknown option {shown(name)}'
                f"{did_you_mean(str(name), _WORKER_OPTIONS)}; "
                f"its options are {', '.join(_WORKER_OPTIONS)}"
            )
    return value
