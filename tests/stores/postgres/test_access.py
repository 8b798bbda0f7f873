"""The rights that the guide gives are enough, and connections are encrypted as sslmode says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from jobq.core.records.jobs import Claim, JobSpec, QueueName
from jobq.core.records.states import State
from jobq.errors import ConfigError, StoreUnavailable
from jobq.stores import open_store
from scripts import postgres
from tests.stores.postgres import servers
from tests.stores.postgres.servers import FAST, Server, ask
from tests.stores.postgres.suite import contract_suite_passes

ROOT = Path(__file__).parents[3]
RIGHTS = re.compile(r"```sql\n(CREATE ROLE.*?)```", re.DOTALL)
QUEUE = QueueName("t", "q")


def rights() -> str:
    """The SQL of the guide that creates the roles."""
    found = RIGHTS.search((ROOT / "docs/guide/postgresql.md").read_text())
    assert found is not None
    return found[1]


@pytest.fixture
def server() -> Iterator[Server]:
    """A server with the roles of the guide."""
    servers.postgres_or_skip()
    with servers.running(FAST) as running:
        ask(running.url, rights())
        yield running


def as_role(server: Server, role: str) -> str:
    return server.url.replace("postgres@", f"{role}@", 1)


async def test_the_app_of_the_guide_uses_tables_that_the_owner_has_migrated(
    server: Server,
) -> None:
    app = as_role(server, "jobq_app")
    with pytest.raises(ConfigError, match=r"lacks a right|run `jq-ctl store migrate"):
        async with open_store(app):
            pass
    async with open_store(as_role(server, "jobq_owner")):
        pass
    async with open_store(f"{app}?migrate=no") as store:
        await store.put([JobSpec(id="a", queue=QUEUE, name="add", payload=b"1")])
        then = Claim(queues=(QUEUE,), limit=5, lease_ms=15_000)
        settled = await store.settle([], worker="w", call="1", then=then)
        assert [lease.id for lease in settled.leases] == ["a"]
        await store.tick()
        assert (await store.count(QUEUE))[State.ACTIVE] == 1
    with pytest.raises(Exception, match="permission denied"):
        ask(app, "create table jobq.more (n int)")


def test_the_contract_suite_passes_with_the_rights_of_the_guide() -> None:
    contract_suite_passes("postgres-app", "basics", "events", "retention")


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """A server with a certificate that it has signed itself."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl: apt install openssl")
    with servers.running(FAST, version=_version_with_tls()) as running:
        for name in ("server", "other"):
            subprocess.run(
                [
                    "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
                    "-keyout", f"{tmp_path}/{name}.key", "-out", f"{tmp_path}/{name}.crt",
                ],
                check=True, capture_output=True, timeout=60,
            )  # fmt: skip
        for kind in ("key", "crt"):
            placed = running.data / f"server.{kind}"
            shutil.copy(tmp_path / f"server.{kind}", placed)
            owner = running.data.stat()
            os.chown(placed, owner.st_uid, owner.st_gid)
            placed.chmod(0o600)
        ask(running.url, "alter system set ssl = on")
        ask(running.url, "select pg_reload_conf()")
        yield running, tmp_path


def _version_with_tls() -> str:
    """A version whose build supports TLS. That of the wheel does not."""
    for version in ("15", "17", "14", "13"):
        with suppress(servers.Missing):
            postgres.binaries(version)
            return version
    pytest.skip("no PostgreSQL with TLS: apt install postgresql")


async def test_sslmode_encrypts_and_checks_the_server(secure: tuple[Server, Path]) -> None:
    server, folder = secure
    checked = f"{server.url}?sslmode=verify-full&sslrootcert={folder}"
    async with open_store(f"{checked}/server.crt") as store:
        await store.put([JobSpec(id="a", queue=QUEUE, name="add", payload=b"x" * 100_000)])
        then = Claim(queues=(QUEUE,), limit=5, lease_ms=15_000)
        (lease,) = (await store.settle([], worker="w", call="1", then=then)).leases
        assert len(lease.payload) == 100_000
        encrypted = (
            "select ssl from pg_stat_ssl join pg_stat_activity using (pid)"
            " where application_name = 'jobq'"
        )
        assert set(ask(server.url, encrypted)) == {(True,)}
    with pytest.raises(StoreUnavailable, match=r"certificate verify failed"):
        async with open_store(f"{checked}/other.crt"):
            pass


async def test_a_server_without_tls_is_refused_if_it_is_required() -> None:
    servers.postgres_or_skip()
    refused = pytest.raises(StoreUnavailable, match=r"does not support SSL")
    with servers.running(FAST) as server, refused:
        async with open_store(f"{server.url}?sslmode=require"):
            pass
