"""The configuration of a server: file, environment, flags, and what they come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobq.errors import ConfigError
from jobq.server.config import Loaded, keys, load, variable
from jobq.server.plan import Plan, plan

# The example of the design notes that jq-server is built from, without its certificates.
EXAMPLE = """
grpc:
  port: 50051
db:
  host: localhost
  port: 5432
  name: jobqueue
  user: jq_user
  password: ""
  pool_size: 10
  connect_timeout_ms: 3000
redis:
  addr: localhost:6379
  password: ""
  db: 0
  connect_timeout_ms: 1000
kafka:
  brokers:
    - localhost:9092
  producer:
    acks: all
    compression: snappy
  consumer:
    group_id: jq-server
    auto_offset_reset: earliest
scheduler:
  interval_ms: 500
  batch_size: 100
  assignment_timeout_s: 60
  worker_heartbeat_timeout_s: 30
metrics:
  port: 9090
health:
  port: 8080
logging:
  level: info
  format: json
shutdown_grace_period: 45s
"""


def loaded(folder: Path, text: str = "", **environment: str) -> Loaded:
    path = folder / "server.yaml"
    path.write_text(text)
    return load(path, environment)


def planned(folder: Path, text: str = "", **environment: str) -> Plan:
    return plan(loaded(folder, text, **environment), environment)


def test_the_example_of_the_design_notes_is_understood(tmp_path: Path) -> None:
    found = planned(tmp_path, EXAMPLE, JQ_DB_PASSWORD="p@ss")
    assert found.store_url == "postgresql://jq_user:p%40ss@localhost:5432/jobqueue"
    assert found.kafka_url == "kafka://localhost:9092/jobq-events?compression.type=snappy"
    assert (found.port, found.metrics, found.health) == (
        50051,
        ("127.0.0.1", 9090),
        ("127.0.0.1", 8080),
    )
    assert (found.lease_ms, found.grace_s) == (30_000, 45.0)
    assert (found.log_level, found.log_format) == ("info", "json")


def test_keys_without_a_meaning_here_warn_with_the_reason(tmp_path: Path) -> None:
    warnings = " ".join(planned(tmp_path, EXAMPLE).warnings)
    for key in ("scheduler.interval_ms", "scheduler.batch_size", "kafka.consumer.group_id"):
        assert f"{key} does nothing here: " in warnings
    assert "acks" not in warnings, "acks: all is what is done anyway"
    assert "kafka.producer.acks" in " ".join(
        loaded(tmp_path, "kafka: {producer: {acks: 1}}").warnings
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grcp: {port: 1}", "unknown key grcp: did you mean grpc?"),
        ("grpc: {prot: 1}", "unknown key grpc.prot: did you mean grpc.port?"),
        ("tenants: {acme: {max_wating: 1}}", "did you mean tenants.acme.max_waiting?"),
        ("tenants: {acme: {submit_rate: 0}}", "tenants.acme.submit_rate is 0: use a number above"),
        ("tenants: {acme: {submit_rate: .nan}}", "tenants.acme.submit_rate is nan"),
        ("tenants: {acme: {max_waiting: -1}}", "tenants.acme.max_waiting is -1: use a number from"),
        ("tenants: {acme: {max_active: -1}}", "tenants.acme.max_active is -1: use a number from"),
        ("tenants: {acme: {min_interval: -1}}", "tenants.acme.min_interval is -1"),
        ("tenants: {acme: {min_interval: .inf}}", "tenants.acme.min_interval is inf"),
        ("tenants: {acme: {min_intervall: 2}}", "did you mean tenants.acme.min_interval?"),
        ("tenants: {'a:b': {max_waiting: 1}}", "tenant='a:b' contains a colon"),
        ("tenants: {a: {}}\ngrpc: {}\ntenants: {b: {}}", "the key tenants is there twice"),
        ("grpc: {port: many}", "grpc.port: Expected `int`, got `str`"),
        ("grpc: 7", "grpc must be a section"),
        ("grpc: {port: 70000}", "grpc.port is 70000"),
        ("logging: {level: loud}", "logging.level is 'loud'"),
        ("logging: {format: xml}", "logging.format is 'xml'"),
        ("shutdown_grace_period: soon", "shutdown_grace_period: 'soon' is not a duration"),
        ("- a\n- b", "must have sections"),
        ("grpc: {", "is not valid YAML"),
    ],
)
def test_a_mistake_is_refused_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        planned(tmp_path, text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("db: {password: s3cret}", "JQ_DB_PASSWORD"),
        ("redis: {password: s3cret}", "JQ_REDIS_PASSWORD"),
        ("auth: {secret: s3cret}", "JQ_AUTH_SECRET"),
        ("store: {url: 'valkey://u:s3cret@host'}", "JQ_URL"),
    ],
)
def test_a_password_in_the_file_is_refused_and_not_shown(
    tmp_path: Path, text: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text)
    assert hint in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_flag_then_environment_then_store_then_db_then_a_file_name_the_store(
    tmp_path: Path,
) -> None:
    text = "store: {url: 'memory://from-store'}\ndb: {host: db.example}"
    found = loaded(tmp_path, text)
    environment = {"JQ_URL": "memory://from-environment"}
    assert plan(found, environment, url="memory://flag").store_url == "memory://flag"
    assert plan(found, environment).store_url == "memory://from-environment"
    assert plan(found, {}).store_url == "memory://from-store"
    assert planned(tmp_path, "db: {host: db.example}").store_url.startswith("postgresql://db")
    assert planned(tmp_path).store_url == "sqlite:///jobq.db"


def test_a_password_may_come_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("pass word\n")
    text = f"db: {{host: db, user: jq, password_path: {secret}}}"
    assert planned(tmp_path, text).store_url == "postgresql://jq:pass%20word@db:5432/jobqueue"
    text = f"store: {{url: 'valkey://cache:6379/1', password_path: {secret}}}"
    assert planned(tmp_path, text).store_url == "valkey://:pass%20word@cache:6379/1"


def test_every_key_has_an_environment_variable() -> None:
    assert variable("grpc.tls.cert_path") == "JQ_GRPC_TLS_CERT_PATH"
    assert len({variable(key) for key in keys()}) == len(keys())


def test_the_environment_overrides_the_file_and_a_flag_both(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text("grpc: {port: 1}\nlogging: {level: debug}")
    environment = {"JQ_GRPC_PORT": "2", "JQ_LOG_LEVEL": "warn", "JQ_KAFKA_BROKERS": "a:1,b:2"}
    found = load(path, environment).config
    assert (found.grpc.port, found.logging.level) == (2, "warn")
    assert found.kafka.brokers == ["a:1", "b:2"]
    assert load(path, environment, {"grpc.port": 3, "logging.level": None}).config.grpc.port == 3


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("", "127.0.0.1"),
        ("insecure: true", "0.0.0.0"),
        ("grpc: {host: '::1'}", "::1"),
        ("grpc: {host: localhost}", "localhost"),
    ],
)
def test_a_server_that_checks_nobody_listens_on_loopback(
    tmp_path: Path, text: str, host: str
) -> None:
    assert planned(tmp_path, text).host == host


def test_a_socket_file_is_refused_because_the_server_listens_on_tcp(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="listens on TCP"):
        planned(tmp_path, "grpc: {host: 'unix:/run/jobq.sock'}")


def test_an_open_address_needs_tokens_or_client_certificates_or_insecure(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        planned(tmp_path, "grpc: {host: 0.0.0.0}")
    with pytest.raises(ConfigError, match="--insecure"):
        planned(tmp_path, "grpc: {host: jobs.example, tls: {cert_path: a, key_path: b}}")
    found = planned(tmp_path, "", JQ_AUTH_SECRET="x" * 32)
    assert found.host == "0.0.0.0"
    assert any("unencrypted" in warning for warning in found.warnings)
    assert planned(tmp_path, CLIENTS % "ops: {scopes: [admin]}").host == "0.0.0.0"


CLIENTS = "grpc: {tls: {cert_path: a, key_path: b, client_ca_path: c, clients: {%s}}}"


def test_certificates_alone_allow_nothing_unless_the_operator_insists(tmp_path: Path) -> None:
    for host in ("", "host: 127.0.0.1, "):
        text = (CLIENTS % "").replace("{tls", f"{{{host}tls")
        with pytest.raises(ConfigError, match=r"without tokens needs grpc\.tls\.clients"):
            planned(tmp_path, text)
        assert planned(tmp_path, text, JQ_AUTH_SECRET="x" * 32).clients is None
        insecure = planned(tmp_path, text + "\ninsecure: true")
        assert insecure.clients is None
        assert any("each client with a certificate" in each for each in insecure.warnings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CLIENTS % "ops: {scopes: [root]}", "grpc.tls.clients.ops has the scope 'root': use some"),
        (CLIENTS % "ops: {tenant: acme}", "grpc.tls.clients.ops has no scopes"),
        (CLIENTS % "ops: {scopes: [work]}", "grpc.tls.clients.ops has no tenant"),
        (CLIENTS % "ops: {tenant: 'a:b', scopes: [work]}", "tenant='a:b' contains a colon"),
        (CLIENTS % "ops: {scope: [work]}", "did you mean grpc.tls.clients.ops.scopes?"),
        (CLIENTS % "ops: admin", "grpc.tls.clients.ops must be a section, e.g. billing"),
        ("grpc: {tls: {clients: [ops]}}", "grpc.tls.clients must map names to sections"),
        (
            CLIENTS % "ops: {scopes: [admin]}" + "\nweb: {enabled: true}",
            "web.enabled needs tokens (auth) on a server with grpc.tls.clients",
        ),
        ("grpc: {tls: {clients: {o: {scopes: [admin]}}}}", "needs grpc.tls.client_ca_path"),
    ],
)
def test_a_mistake_in_what_clients_may_do_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        planned(tmp_path, text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("auth: {issuer: x}", "auth has no key"),
        ("auth: {jwks_path: a, public_key_path: b}", "several keys"),
        ("auth: {jwks_url: 'http://issuer.example/keys'}", "over https"),
        ("auth: {jwks_url: 'file:///etc/passwd'}", "over https"),
        ("auth: {jwks_url: 'https://issuer.example/keys'}", "needs auth.issuer and auth.audience"),
        ("auth: {jwks_path: a, algorithms: [none]}", "auth.algorithms has 'none'"),
    ],
)
def test_tokens_that_could_not_be_trusted_are_refused_at_the_start(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(tmp_path, text)


def test_a_short_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs at least 32"):
        planned(tmp_path, "", JQ_AUTH_SECRET="short")


def test_a_secret_cannot_verify_an_asymmetric_algorithm(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none of them fits the key"):
        planned(tmp_path, "auth: {algorithms: [RS256]}", JQ_AUTH_SECRET="x" * 32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("leeway_s: .inf", "auth.leeway_s is inf: use 0 to 3600 seconds"),
        ("leeway_s: -60", "auth.leeway_s is -60"),
        ("default_tenant: 'a:b'", "tenant='a:b' contains a colon"),
    ],
)
def test_rules_that_no_token_could_follow_are_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        planned(tmp_path, f"auth: {{{text}}}", JQ_AUTH_SECRET="s" * 40)
    assert message in str(refused.value)


def test_a_password_among_the_options_of_the_url_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"store.url contains a password") as refused:
        loaded(tmp_path, "store: {url: 'postgresql://h/db?sslmode=require&password=hunter2'}")
    assert "hunter2" not in str(refused.value)
