"""The gRPC services of a server, in the order in which they are registered."""

from __future__ import annotations

from jobq.server.admin import AdminService
from jobq.server.exchange import ExchangeService
from jobq.server.host import MakeService
from jobq.server.jobs import JobService
from jobq.server.workers import WorkerService

# ExchangeService serves one call of WorkerService's interface, so it comes before WorkerService.
SERVICES: list[MakeService] = [JobService, AdminService, ExchangeService, WorkerService]
