"""The gRPC services of a server, in the order in which they are registered."""

from __future__ import annotations

from jobq.server.admin import AdminService
from jobq.server.exchange import ExchangeService
from jobq.server.host import MakeService
from jobq.server.jobs import JobService

SERVICES: list[MakeService] = [JobService, AdminService, ExchangeService]
