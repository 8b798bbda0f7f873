"""The configuration file of a server: its keys, how the environment overrides them, and the result.

Every key has an environment variable: `grpc.tls.cert_path` is `JQ_GRPC_TLS_CERT_PATH`. Passwords
and secrets come from the environment or from files that the configuration names.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from jobq.access.principal import ClientGrant
from jobq.access.quotas import TenantRules
from jobq.access.usage import TenantLimits
from jobq.console.yaml_file import read_yaml
from jobq.core.values.checks import check_int, shown
from jobq.errors import ConfigError
from jobq.server.tls import Certificates

# What a jq-server is started with, after flags, environment and file were merged.

MIN_LEASE_MS = 1_000
"""The shortest lease. A shorter one would end while its job is on its way."""
MAX_LEASE_MS = 86_400_000
"""The longest lease: a day. The jobs of a dead worker wait as long. workers.proto says both."""


def check_lease(ms: int, name: str) -> int:
    """A lease time that a call of WorkerService asks for, in milliseconds."""
    return check_int(ms, name, low=MIN_LEASE_MS, high=MAX_LEASE_MS)


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a jq-server is started with."""

    grpc_host: str = "127.0.0.1"
    grpc_port: int = 50051
    """0 chooses a free port."""
    max_message: int = 16 * 2**20
    """Bytes of one message. A batch of a thousand jobs of 10 kB fits, and memory stays bounded."""
    max_payload: int = 2**20
    """Bytes of the arguments of one job. Larger data belongs elsewhere, with a reference to it."""
    max_streams: int = 1_000
    """Calls that one connection may have open at a time."""
    lease_ms: int = 15_000
    """How long until another worker may take over a dead worker's jobs, unless a claim says so."""
    shutdown_grace_s: float = 30.0
    """How long calls may go on after the server was asked to stop."""
    certificates: Certificates | None = None
    """None: plaintext."""
    upkeep: bool = True
    """Whether the server does the store's upkeep and fires schedules."""
    tenants: TenantRules = msgspec.field(default_factory=TenantRules)


class _Section(msgspec.Struct, frozen=True, kw_only=True):
    """A section of the file. None means that the file does not say."""


class TlsConfig(_Section, frozen=True, kw_only=True):
    """`grpc.tls`."""

    enabled: bool | None = None
    """Default: true if `cert_path` is set."""
    cert_path: str | None = None
    key_path: str | None = None
    client_ca_path: str | None = None
    """Clients need a certificate of this authority."""
    clients: dict[str, ClientGrant] = {}
    """What clients without a token may do, by the common name or a URI of their certificate."""


class GrpcConfig(_Section, frozen=True, kw_only=True):
    """`grpc`: where the server listens."""

    host: str | None = None
    """Default: all addresses if callers are checked, else 127.0.0.1."""
    port: int = 50051
    tls: TlsConfig = TlsConfig()
    max_message_bytes: int = 16 * 2**20
    max_streams: int = 1_000


class StoreConfig(_Section, frozen=True, kw_only=True):
    """`store`: where jobs are kept, as a URL of any store."""

    url: str | None = None
    password_path: str | None = None
    """A file with the password for the URL."""


class DbConfig(_Section, frozen=True, kw_only=True):
    """`db`: a PostgreSQL store. `store.url` overrides it."""

    host: str | None = None
    port: int = 5432
    name: str = "jobqueue"
    user: str | None = None
    password: str | None = None
    password_path: str | None = None
    sslmode: str | None = None
    pool_size: int | None = None
    connect_timeout_ms: int | None = None


class RedisConfig(_Section, frozen=True, kw_only=True):
    """`redis`: a Valkey or Redis server beside PostgreSQL, for hints between servers."""

    addr: str | None = None
    """host:port, or a URL such as valkeys://host for TLS."""
    password: str | None = None
    password_path: str | None = None
    db: int = 0
    connect_timeout_ms: int | None = None


class KafkaProducerConfig(_Section, frozen=True, kw_only=True):
    """`kafka.producer`."""

    acks: str | int | None = None
    compression: str | None = None


class KafkaConsumerConfig(_Section, frozen=True, kw_only=True):
    """`kafka.consumer`."""

    group_id: str | None = None
    auto_offset_reset: str | None = None


class KafkaConfig(_Section, frozen=True, kw_only=True):
    """`kafka`: where the server ships the event log."""

    brokers: list[str] = []
    topic: str = "jobq-events"
    producer: KafkaProducerConfig = KafkaProducerConfig()
    consumer: KafkaConsumerConfig = KafkaConsumerConfig()


class SchedulerConfig(_Section, frozen=True, kw_only=True):
    """`scheduler`."""

    interval_ms: int | None = None
    batch_size: int | None = None
    assignment_timeout_s: float | None = None
    worker_heartbeat_timeout_s: float = 15.0


class PortConfig(_Section, frozen=True, kw_only=True):
    """`metrics` and `health`."""

    host: str | None = None
    """Default: the address of gRPC."""
    port: int | None = None


class LoggingConfig(_Section, frozen=True, kw_only=True):
    """`logging`."""

    level: str = "info"
    format: str = "text"


class WebConfig(_Section, frozen=True, kw_only=True):
    """`web`: the dashboard, under /ui on the port of `health`. People sign in with their tokens."""

    enabled: bool = False
    read_only: bool = False
    hide_payloads: bool = False
    secret: str | None = None
    """Signs the cookies. Give all servers behind one address the same one."""
    secret_path: str | None = None


class AuthConfig(_Section, frozen=True, kw_only=True):
    """`auth`: which tokens the server accepts. Without a key it checks none."""

    algorithms: list[str] = []
    """Default: all that fit a public key, and HS256 for a secret."""
    issuer: str | None = None
    audience: str | None = None
    jwks_path: str | None = None
    jwks_url: str | None = None
    public_key_path: str | None = None
    secret: str | None = None
    secret_path: str | None = None
    leeway_s: float = 30.0
    tenant_claim: str = "tenant"
    scopes_claim: str = "scope"
    default_tenant: str | None = None
    """The tenant of tokens without a tenant claim. Default: such tokens are refused."""


class Config(_Section, frozen=True, kw_only=True):
    """The whole file."""

    grpc: GrpcConfig = GrpcConfig()
    store: StoreConfig = StoreConfig()
    db: DbConfig = DbConfig()
    redis: RedisConfig = RedisConfig()
    kafka: KafkaConfig = KafkaConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    metrics: PortConfig = PortConfig(port=9090)
    health: PortConfig = PortConfig(port=8080)
    logging: LoggingConfig = LoggingConfig()
    auth: AuthConfig = AuthConfig()
    web: WebConfig = WebConfig()
    tenants: dict[str, TenantLimits] = {}
    """Limits by tenant. `default` is for all others."""
    shutdown_grace_period: float | str = 30.0
    insecure: bool = False


SECRETS = frozenset({"db.password", "redis.password", "auth.secret", "web.secret"})
"""Keys that may only be set by the environment. The file may have them, but empty."""

IGNORED = {
    "scheduler.interval_ms": "jobs start when they are due, because the store wakes workers",
    "scheduler.batch_size": "a worker claims as many jobs as it has free slots",
    "scheduler.assignment_timeout_s": "a job is never assigned without being claimed: "
    "scheduler.worker_heartbeat_timeout_s is the time of a claim",
    "db.pool_size": "the store opens as many connections as it has calls in flight, up to a few",
    "db.connect_timeout_ms": "the store's own timeout is 10 s; store.url has ?timeout=seconds",
    "kafka.producer.acks": "events are acknowledged by all in-sync replicas, always",
    "kafka.consumer.group_id": "a server reads nothing from Kafka",
    "kafka.consumer.auto_offset_reset": "a server reads nothing from Kafka",
}
"""Keys that are accepted and do nothing, and why. A value that asks for what is done anyway gives
no warning."""

_ALIASES = {"logging.level": "JQ_LOG_LEVEL", "logging.format": "JQ_LOG_FORMAT"}
"""Variables that are named like the flag, as those of jq-worker are."""
_AS_DONE = {"kafka.producer.acks": ("all", -1, "-1")}
_EXAMPLES = {
    "tenants": "acme: {max_queues: 5}",
    "grpc.tls.clients": "billing: {tenant: acme, scopes: [produce, read]}",
}
"""How sections look that the operator names."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration, and what an operator should know about it."""

    config: Config
    warnings: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()
    """The keys that the file or the environment sets, e.g. `grpc.port`."""


def load(
    path: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, Any] | None = None,
) -> Loaded:
    """Read the file. The environment overrides it, and flags override both.

    `flags` are values by key; None is not given. ConfigError names the key.
    """
    tree = {} if path is None else _read(path)
    where = "the configuration" if path is None else str(path)
    _check_names(tree, Config, "", where)
    _refuse_secrets(tree, where)
    for key, kind in _leaves(Config):
        value = environment.get(variable(key)) or environment.get(_ALIASES.get(key, ""))
        if value:
            _put(tree, key, value.split(",") if kind is list else value)
    for key, chosen in (flags or {}).items():
        if chosen is not None:
            _put(tree, key, chosen)
    given = frozenset(_given(tree))
    warnings = tuple(
        f"{key} does nothing here: {why}"
        for key, why in IGNORED.items()
        if key in given and _value(tree, key) not in _AS_DONE.get(key, ())
    )
    try:
        config = msgspec.convert(tree, Config, strict=False)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{where}: {_in_words(str(e))}") from None
    return Loaded(config=config, warnings=warnings, given=given)


def variable(key: str) -> str:
    """The environment variable of a key."""
    return "JQ_" + key.replace(".", "_").upper()


def keys() -> list[str]:
    """Every key of a configuration, e.g. `grpc.tls.cert_path`."""
    return [key for key, _ in _leaves(Config)]


def _read(path: Path) -> dict[str, Any]:
    tree = read_yaml(path)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} must have sections such as grpc: and store:")
    return tree


def _sections(kind: type) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, _Section)


def _leaves(kind: type, prefix: str = "") -> Iterator[tuple[str, type]]:
    for name, type_ in _sections(kind).items():
        if _is_section(type_):
            yield from _leaves(type_, f"{prefix}{name}.")
        elif get_origin(type_) is not dict:  # names are the operator's: they have no variables
            yield f"{prefix}{name}", list if get_origin(type_) is list else str


def _check_names(tree: dict[str, Any], kind: type, prefix: str, where: str) -> None:
    """Refuse unknown keys, with the known key that is most like each. Drop empty sections."""
    known = _sections(kind)
    for name in list(tree):
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {prefix}{close[0]}?" if close else f"known: {', '.join(known)}"
            raise ConfigError(f"{where}: unknown key {prefix}{name}: {hint}")
        value = tree[name]
        if value is None:
            del tree[name]
        elif _is_section(known[name]):
            if not isinstance(value, dict):
                raise ConfigError(f"{where}: {prefix}{name} must be a section, not {shown(value)}")
            _check_names(value, known[name], f"{prefix}{name}.", where)
        elif get_origin(known[name]) is dict:
            _check_named(value, get_args(known[name])[1], f"{prefix}{name}", where)


def _check_named(value: object, kind: type, key: str, where: str) -> None:
    """Check sections that the operator names: tenants and clients."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: {key} must map names to sections, e.g. {_EXAMPLES[key]}")
    for name, section in value.items():
        if not isinstance(section, dict):
            raise ConfigError(f"{where}: {key}.{name} must be a section, e.g. {_EXAMPLES[key]}")
        _check_names(section, kind, f"{key}.{name}.", where)


def _refuse_secrets(tree: dict[str, Any], where: str) -> None:
    for key in SECRETS:
        if _value(tree, key):
            raise ConfigError(
                f"{where} contains {key}, which belongs in the environment: remove it and set "
                f"{variable(key)}, or name a file with {key}_path"
            )
    if _has_password(_value(tree, "store.url")):
        raise ConfigError(
            f"{where}: store.url contains a password, which belongs in the environment: set JQ_URL "
            "to the whole URL, or name a file with store.password_path"
        )
    if _has_password(_value(tree, "redis.addr")):
        raise ConfigError(
            f"{where}: redis.addr contains a password, which belongs in the environment: set "
            "JQ_REDIS_PASSWORD, or name a file with redis.password_path"
        )


def _has_password(url: object) -> bool:
    if not isinstance(url, str):
        return False
    login = url.rpartition("://")[2].rpartition("@")[0]
    return ":" in login or "password=" in url.partition("?")[2]


def _value(tree: Mapping[str, Any], key: str) -> Any:
    found: Any = tree
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        tree = tree.setdefault(part, {})
    tree[last] = value


def _given(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _given(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _in_words(message: str) -> str:
    """msgspec's message, with our name of the key in front."""
    text, _, place = message.partition(" - at `$.")
    return f"{place.rstrip('`')}: {text}" if place else text
