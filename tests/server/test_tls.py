"""TLS, client certificates, and certificates that change while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jobq.errors import ConfigError
from jobq.server import tls
from jobq.server.config import ServerSettings
from jobq.server.context import ServerContext
from jobq.server.host import Host
from jobq.server.tls import Certificates, TlsFiles
from jobq.stores import open_store
from tests.server.kit import Authority
from tests.server.process import ServerProcess
from tests.server.serving import PATIENCE_S


@asynccontextmanager
async def server(files: TlsFiles, name: str) -> AsyncIterator[Host]:
    async with open_store(f"memory://tls-{name}") as store:
        settings = ServerSettings(grpc_port=0, certificates=Certificates(files))
        async with Host(ServerContext(store, settings), []) as host:
            yield host


async def says_that_it_serves(host: Host, ca: Path, pair: tuple[Path, Path] | None = None) -> bool:
    cert, key = (None, None) if pair is None else (pair[0].read_bytes(), pair[1].read_bytes())
    credentials = grpc.ssl_channel_credentials(ca.read_bytes(), key, cert)
    async with grpc.aio.secure_channel(f"127.0.0.1:{host.port}", credentials) as channel:
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=10
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:  # the handshake failed
                return False
            raise
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


async def test_a_client_that_knows_the_authority_connects_and_others_do_not(
    tmp_path: Path,
) -> None:
    authority, other = Authority.make(), Authority.make("other")
    ca = authority.write(tmp_path / "ca.crt")
    cert, key = authority.issue(tmp_path, "server")
    async with server(TlsFiles(cert, key), "plain") as host:
        assert await says_that_it_serves(host, ca)
        assert not await says_that_it_serves(host, other.write(tmp_path / "other.crt"))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{host.port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=5
                )


async def test_a_missing_wrong_or_expired_client_certificate_is_refused(tmp_path: Path) -> None:
    authority, other = Authority.make(), Authority.make("other")
    ca = authority.write(tmp_path / "ca.crt")
    cert, key = authority.issue(tmp_path, "server")
    async with server(TlsFiles(cert, key, ca), "mutual") as host:
        assert await says_that_it_serves(host, ca, authority.issue(tmp_path, "client"))
        assert not await says_that_it_serves(host, ca)
        assert not await says_that_it_serves(host, ca, other.issue(tmp_path, "stranger"))
        assert not await says_that_it_serves(host, ca, authority.issue(tmp_path, "old", days=-1))


async def served_certificate(host: Host) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", host.port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return bytes(found)


def touch(*paths: Path) -> None:
    """Make sure that the files look changed, even within one tick of the file system's clock."""
    for path in paths:
        stat = path.stat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))


async def test_new_connections_use_a_new_certificate_and_open_ones_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_CHECK_S", 0.0)
    authority = Authority.make()
    ca = authority.write(tmp_path / "ca.crt")
    cert, key = authority.issue(tmp_path, "server")
    credentials = grpc.ssl_channel_credentials(ca.read_bytes())
    calls = 0
    async with (
        server(TlsFiles(cert, key), "reload") as host,
        grpc.aio.secure_channel(f"127.0.0.1:{host.port}", credentials) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)

        async def traffic() -> None:
            nonlocal calls
            while True:
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
                calls += 1

        busy = asyncio.create_task(traffic())
        first = await served_certificate(host)
        for _ in range(3):
            authority.issue(tmp_path, "server", replace=True)
            touch(cert, key)
            before = calls
            second = await served_certificate(host)
            assert second != first
            assert await says_that_it_serves(host, ca)
            first = second
            assert not busy.done(), "the open connection has failed"
            assert calls >= before
        busy.cancel()
        assert calls > 0


async def test_a_bad_certificate_leaves_the_old_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls, "_CHECK_S", 0.0)
    authority = Authority.make()
    cert, key = authority.issue(tmp_path, "server")
    good = key.read_bytes()
    async with server(TlsFiles(cert, key), "bad") as host:
        first = await served_certificate(host)
        for bad in (b"", b"not a key", authority.issue(tmp_path, "else")[1].read_bytes()):
            key.write_bytes(bad)
            touch(key)
            assert await served_certificate(host) == first
        cert.unlink()
        assert await served_certificate(host) == first
        authority.issue(tmp_path, "server", replace=True)
        touch(cert, key)
        assert await served_certificate(host) != first
    assert "the old one stays in use" in caplog.text
    assert good.decode() not in caplog.text


@pytest.mark.parametrize("kind", ["missing", "another key", "expired", "no authority"])
def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, kind: str
) -> None:
    authority = Authority.make()
    cert, key = authority.issue(tmp_path, "server", days=-1 if kind == "expired" else 30)
    ca: Path | None = None
    if kind == "missing":
        cert = tmp_path / "nowhere.crt"
    elif kind == "another key":
        _, key = authority.issue(tmp_path, "other")
    elif kind == "no authority":
        ca = tmp_path / "ca.crt"
        ca.write_text("nothing")
    messages = {
        "missing": "cannot read .*nowhere.crt",
        "another key": "is not the key of",
        "expired": "expired on",
        "no authority": "no certificate of an authority",
    }
    with pytest.raises(ConfigError, match=messages[kind]):
        Certificates(TlsFiles(cert, key, ca))


def test_the_log_of_a_server_is_json_whatever_the_core_of_grpc_prints(tmp_path: Path) -> None:
    """The core writes to stderr by itself, here about clients that do not speak TLS."""
    cert, key = Authority.make().issue(tmp_path, "server")
    with ServerProcess(
        tmp_path,
        "--log-format=json",
        JQ_GRPC_TLS_CERT_PATH=str(cert),
        JQ_GRPC_TLS_KEY_PATH=str(key),
        GRPC_VERBOSITY="debug",
        GRPC_TRACE="tcp,http",
    ) as server:
        port = server.port()
        for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\xff" * 100):
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
                client.sendall(sent)
                with contextlib.suppress(OSError):
                    client.recv(1000)
        server.wait_for('"logger":"stderr"')
        assert server.stop() == 0
        server.process.wait(PATIENCE_S)
    for line in server.log:
        assert isinstance(json.loads(line), dict), line
