"""What a jq-server is started with, after flags, environment and file were merged."""

from __future__ import annotations

import msgspec

from jobq.access.quotas import TenantRules
from jobq.core.checks import check_int
from jobq.server.tls import Certificates

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
