"""The gRPC services of a server, in the order in which they are registered."""

from __future__ import annotations

from jobq.server.host import MakeService

SERVICES: list[MakeService] = []
