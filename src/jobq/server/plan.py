"""From a configuration to what a server does: pure, except that it reads files of secrets."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from jobq.access.quotas import TenantRules
from jobq.access.usage import NO_LIMITS, TenantLimits
from jobq.console.logs import FORMATS, LEVELS
from jobq.core.values.checks import check_tenant
from jobq.core.values.hosts import is_loopback
from jobq.core.values.printable import (
    redacted_url,
)
from jobq.core.values.units import parse_duration
from jobq.errors import ConfigError
from jobq.server.config import MAX_LEASE_MS, MIN_LEASE_MS, AuthConfig, Config, Loaded
from jobq.server.files import secret_of
from jobq.server.tls import Clients, TlsFiles
from jobq.server.tokens import ALGORITHMS, JwksSource, KeySet, TokenRules, public_key, secret_key

# From the `auth` section of a configuration to how tokens are verified.

_MAX_LEEWAY_S = 3_600.0
"""Seconds. Clocks differ by less; a larger number would undo the expiry of tokens."""


class AuthPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are verified."""

    rules: TokenRules
    keys: KeySet
    source: JwksSource | None = None


def plan_auth(auth: AuthConfig, environment: Mapping[str, str]) -> AuthPlan | None:
    """How tokens are verified. None if no key is configured. ConfigError names what is wrong."""
    secret = secret_of(auth.secret or environment.get("JQ_JWT_SECRET"), auth.secret_path)
    ways = {
        "auth.jwks_url": auth.jwks_url,
        "auth.jwks_path": auth.jwks_path,
        "auth.public_key_path": auth.public_key_path,
        "a shared secret": secret,
    }
    given = [name for name, value in ways.items() if value]
    if not given:
        if auth != AuthConfig():
            raise ConfigError(
                "auth has no key: set auth.jwks_url, jwks_path or public_key_path, or "
                "JQ_AUTH_SECRET for tokens with a shared secret"
            )
        return None
    if len(given) > 1:
        raise ConfigError(f"auth has several keys ({', '.join(given)}): set one of them")
    allowed = _algorithms(auth)
    if not 0 <= auth.leeway_s <= _MAX_LEEWAY_S:
        raise ConfigError(
            f"auth.leeway_s is {auth.leeway_s:g}: use 0 to {_MAX_LEEWAY_S:g} seconds, because "
            "tokens are valid for so much longer"
        )
    if auth.default_tenant is not None:
        check_tenant(auth.default_tenant, error=ConfigError)
    rules = TokenRules(
        issuer=auth.issuer,
        audience=auth.audience,
        leeway_s=auth.leeway_s,
        tenant_claim=auth.tenant_claim,
        scopes_claim=auth.scopes_claim,
        default_tenant=auth.default_tenant,
    )
    if secret:
        return AuthPlan(rules=rules, keys=KeySet([secret_key(secret.encode(), allowed)]))
    if auth.public_key_path:
        return AuthPlan(rules=rules, keys=KeySet([public_key(Path(auth.public_key_path), allowed)]))
    source = JwksSource(Path(auth.jwks_path) if auth.jwks_path else _jwks_url(auth), allowed)
    return AuthPlan(rules=rules, keys=source.keys, source=source)


def _jwks_url(auth: AuthConfig) -> str:
    url = auth.jwks_url or ""
    parts = urlsplit(url)
    safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    if not safe:
        raise ConfigError(
            f"auth.jwks_url is {redacted_url(url)}: keys must come over https, or anybody on the "
            "network could replace them"
        )
    if not auth.issuer or not auth.audience:
        raise ConfigError(
            "auth.jwks_url needs auth.issuer and auth.audience: without them, the server would "
            "accept tokens that this issuer made for other services"
        )
    return url


def _algorithms(auth: AuthConfig) -> frozenset[str]:
    for name in auth.algorithms:
        if name not in ALGORITHMS:
            raise ConfigError(
                f"auth.algorithms has {name!r}; use some of {', '.join(sorted(ALGORITHMS))}"
            )
    return frozenset(auth.algorithms)


DEFAULT_URL = "sqlite:///jobq.db"
"""The store of a server that is told of none: a file in the current directory."""
EVERYWHERE = "0.0.0.0"
LOOPBACK = "127.0.0.1"

_LEVELS = {**{level: level for level in LEVELS}, "warn": "warning"}


class WebPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the dashboard is served."""

    read_only: bool = False
    hide_payloads: bool = False
    secret: str | None = None


class HintsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The Valkey or Redis beside PostgreSQL (hints.py)."""

    url: str
    channel: str
    alone: bool
    """Whether PostgreSQL wakes no workers of other servers by itself (listen=no)."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a server does."""

    store_url: str
    store_from: str
    """Who named the store: JQ_URL, store.url, db or the default."""
    host: str
    port: int
    max_message: int
    max_streams: int
    lease_ms: int
    grace_s: float
    tls: TlsFiles | None
    auth: AuthPlan | None
    clients: Clients | None
    tenants: TenantRules
    kafka_url: str | None
    hints: HintsPlan | None
    metrics: tuple[str, int] | None
    health: tuple[str, int] | None
    log_level: str
    log_format: str
    web: WebPlan | None = None
    warnings: tuple[str, ...] = ()


def plan(loaded: Loaded, environment: Mapping[str, str], *, url: str | None = None) -> Plan:
    """What a server with this configuration does. ConfigError names what is wrong.

    `url` is the store that the command line names.
    """
    config, warnings = loaded.config, list(loaded.warnings)
    store_url, store_from = _store(config, environment, url)
    if store_from in ("--url", "JQ_URL", "store.url") and config.db.host:
        warnings.append(f"db does nothing here, because {store_from} names the store")
    hints = _hints(config, store_url, warnings)
    tls, auth = _tls(config), plan_auth(config.auth, environment)
    clients = _clients(config, tls, auth, warnings)
    host = _host(config, tls, auth, warnings)
    probes = host if is_loopback(host) else EVERYWHERE
    for tenant, limits in config.tenants.items():
        _check_limits(tenant, limits)
    default = config.tenants.get("default", NO_LIMITS)
    return Plan(
        store_url=store_url,
        store_from=store_from,
        host=host,
        port=_port(config.grpc.port, "grpc.port"),
        max_message=_positive(config.grpc.max_message_bytes, "grpc.max_message_bytes"),
        max_streams=_positive(config.grpc.max_streams, "grpc.max_streams"),
        lease_ms=_lease_ms(config),
        grace_s=_grace_s(config),
        tls=tls,
        auth=auth,
        clients=clients,
        tenants=TenantRules(default, config.tenants),
        kafka_url=_kafka(config),
        hints=hints,
        metrics=_probe(config.metrics.host or probes, config.metrics.port, "metrics.port"),
        health=_probe(config.health.host or probes, config.health.port, "health.port"),
        log_level=_log_level(config.logging.level),
        log_format=_log_format(config.logging.format),
        web=_web(config, probes, auth, warnings),
        warnings=tuple(warnings),
    )


# ── the store ─────────────────────────────────────────────────────────────────────────────────────


def _store(config: Config, environment: Mapping[str, str], url: str | None) -> tuple[str, str]:
    if url:
        return url, "--url"
    if environment.get("JQ_URL"):
        return environment["JQ_URL"], "JQ_URL"
    if config.store.url:
        password = secret_of(None, config.store.password_path)
        return _with_password(config.store.url, password), "store.url"
    if config.db.host:
        return _database(config), "db"
    return DEFAULT_URL, "the default"


def _with_password(url: str, password: str | None) -> str:
    if password is None:
        return url
    scheme, _, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    if not at:
        place = rest
    return f"{scheme}://{user}:{quote(password, safe='')}@{place}"


def _database(config: Config) -> str:
    db = config.db
    password = secret_of(db.password, db.password_path)
    login = quote(db.user or "", safe="")
    if password:
        login += f":{quote(password, safe='')}"
    host = f"[{db.host}]" if ":" in (db.host or "") else db.host
    options = f"?{urlencode({'sslmode': db.sslmode})}" if db.sslmode else ""
    at = "@" if login else ""
    return f"postgresql://{login}{at}{host}:{db.port}/{quote(db.name, safe='')}{options}"


def _web(config: Config, host: str, auth: AuthPlan | None, warnings: list[str]) -> WebPlan | None:
    web = config.web
    if not web.enabled:
        return None
    if config.health.port is None:
        raise ConfigError("web.enabled needs health.port: the dashboard is under /ui of that port")
    if not is_loopback(config.health.host or host):
        if auth is None:
            warnings.append("the dashboard serves only this machine, because no tokens are checked")
        else:
            warnings.append(
                "tokens of people who sign in to the dashboard cross the network unencrypted: let "
                "a proxy do TLS"
            )
    return WebPlan(
        read_only=web.read_only,
        hide_payloads=web.hide_payloads,
        secret=secret_of(web.secret, web.secret_path),
    )


# ── who may call ──────────────────────────────────────────────────────────────────────────────────


def _host(config: Config, tls: TlsFiles | None, auth: AuthPlan | None, warnings: list[str]) -> str:
    """Where to listen. A server that lets everybody do everything listens on loopback only."""
    checked = auth is not None or (tls is not None and tls.client_ca is not None)
    host = config.grpc.host or (EVERYWHERE if checked or config.insecure else LOOPBACK)
    if host.startswith("unix:"):
        raise ConfigError(f"grpc.host is {host}: the server listens on TCP, e.g. on 127.0.0.1")
    if is_loopback(host):
        return host
    if not checked and not config.insecure:
        raise ConfigError(
            f"grpc.host is {host}, and the server would let everybody who reaches it do "
            "everything: configure tokens (auth) or client certificates (grpc.tls.client_ca_path "
            "and clients), or say --insecure"
        )
    if not checked:
        warnings.append(f"everybody who reaches {host} may do everything (--insecure)")
    if tls is None:
        warnings.append(
            "tokens and jobs cross the network unencrypted: set grpc.tls, or let a proxy on the "
            "same machine do TLS"
        )
    return host


def _tls(config: Config) -> TlsFiles | None:
    tls = config.grpc.tls
    if tls.enabled is False or not (tls.enabled or tls.cert_path or tls.key_path):
        if tls.client_ca_path and tls.enabled is not False:
            raise ConfigError("grpc.tls.client_ca_path needs grpc.tls.cert_path and key_path")
        return None
    for name, path in (("cert_path", tls.cert_path), ("key_path", tls.key_path)):
        if not path:
            raise ConfigError(f"grpc.tls needs {name}, the path of a PEM file")
    return TlsFiles(
        Path(tls.cert_path or ""),
        Path(tls.key_path or ""),
        None if tls.client_ca_path is None else Path(tls.client_ca_path),
    )


def _clients(
    config: Config, tls: TlsFiles | None, auth: AuthPlan | None, warnings: list[str]
) -> Clients | None:
    """What clients may do by their certificates. None: certificates alone allow nothing, unless
    the operator insists on it."""
    given = config.grpc.tls.clients
    mutual = tls is not None and tls.client_ca is not None
    if given:
        if not mutual:
            raise ConfigError(
                "grpc.tls.clients needs grpc.tls.client_ca_path, cert_path and key_path: without "
                "them, clients show no certificate"
            )
        if config.web.enabled and auth is None:
            raise ConfigError(
                "web.enabled needs tokens (auth) on a server with grpc.tls.clients: the dashboard "
                "knows no client certificates, and would let everybody on this machine in"
            )
        return Clients(given)
    if mutual and auth is None:
        if not config.insecure:
            raise ConfigError(
                "grpc.tls.client_ca_path without tokens needs grpc.tls.clients, which says what "
                "each client may do, e.g. billing: {tenant: acme, scopes: [produce, read]}. Or "
                "configure tokens (auth), or say --insecure to let each client do everything"
            )
        warnings.append("each client with a certificate may do everything (--insecure)")
    return None


# ── the rest ──────────────────────────────────────────────────────────────────────────────────────


def _kafka(config: Config) -> str | None:
    kafka = config.kafka
    if not kafka.brokers:
        return None
    compression = kafka.producer.compression
    options = f"?{urlencode({'compression.type': compression})}" if compression else ""
    return f"kafka://{','.join(kafka.brokers)}/{kafka.topic}{options}"


def _hints(config: Config, store_url: str, warnings: list[str]) -> HintsPlan | None:
    redis = config.redis
    if not redis.addr:
        return None
    store = urlsplit(store_url)
    if store.scheme not in ("postgresql", "postgres"):
        warnings.append(
            "redis does nothing here: it carries hints between servers on one PostgreSQL, and "
            "other stores need none. To keep jobs in Valkey or Redis, set store.url"
        )
        return None
    if find_spec("hiredis") is None:
        raise ConfigError("redis needs the package hiredis: pip install 'jobq[valkey]'")
    parts = urlsplit(redis.addr if "://" in redis.addr else f"valkey://{redis.addr}")
    path = parts.path.strip("/") or redis.db
    options = [parts.query] if parts.query else []
    if redis.connect_timeout_ms is not None:
        options.append(f"timeout={redis.connect_timeout_ms / 1000}")
    url = f"{parts.scheme}://{parts.netloc}/{path}{'?' if options else ''}{'&'.join(options)}"
    url = _with_password(url, secret_of(redis.password, redis.password_path))
    _check_redis(url)
    return HintsPlan(
        url=url,
        channel=f"jobq:hints:{store.path.strip('/')}",
        alone="listen=no" in store.query.split("&"),
    )


def _check_redis(url: str) -> None:
    from jobq.stores.valkey.address import parse  # needs a driver that is not always installed

    if urlsplit(url).scheme not in ("valkey", "redis", "valkeys", "rediss"):
        raise ConfigError("redis.addr names one server: write host:6379, or valkeys://host for TLS")
    parse(url)


def _lease_ms(config: Config) -> int:
    seconds = config.scheduler.worker_heartbeat_timeout_s
    if not MIN_LEASE_MS <= seconds * 1000 <= MAX_LEASE_MS:
        raise ConfigError(
            f"scheduler.worker_heartbeat_timeout_s is {seconds:g}: use {MIN_LEASE_MS // 1000} to "
            f"{MAX_LEASE_MS // 1000} seconds"
        )
    return int(seconds * 1000)


def _grace_s(config: Config) -> float:
    try:
        return parse_duration(str(config.shutdown_grace_period))
    except ValueError as e:
        raise ConfigError(f"shutdown_grace_period: {e}") from None


def _probe(host: str, port: int | None, key: str) -> tuple[str, int] | None:
    return None if port is None else (host, _port(port, key))


def _port(port: int, key: str) -> int:
    if not 0 <= port <= 65_535:
        raise ConfigError(f"{key} is {port}: use a port from 0 (any free one) to 65535")
    return port


def _positive(number: int, key: str) -> int:
    if number < 1:
        raise ConfigError(f"{key} is {number}: use a number from 1")
    return number


def _check_limits(tenant: str, limits: TenantLimits) -> None:
    check_tenant(tenant, error=ConfigError)
    for name, limit in msgspec.structs.asdict(limits).items():
        if limit is not None and not 0 <= limit < float("inf"):
            raise ConfigError(f"tenants.{tenant}.{name} is {limit}: use a number from 0")
    if limits.submit_rate == 0:
        raise ConfigError(
            f"tenants.{tenant}.submit_rate is 0: use a number above 0, or max_waiting: 0 for a "
            "tenant that may submit nothing"
        )


def _log_level(level: str) -> str:
    if level not in _LEVELS:
        raise ConfigError(f"logging.level is {level!r}: use trace, debug, info, warn or error")
    return _LEVELS[level]


def _log_format(format: str) -> str:
    if format not in FORMATS:
        raise ConfigError(f"logging.format is {format!r}: use json or text")
    return format
