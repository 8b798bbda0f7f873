"""What a new connection makes sure of: the library is loaded, and the server can be trusted."""

from __future__ import annotations

import logging

from jobq.errors import ConfigError, StoreUnavailable
from jobq.stores.valkey.functions import DIGEST, LIBRARY, VERSION, function
from jobq.stores.valkey.wire import Connection, ServerError

log = logging.getLogger("jobq.valkey")


async def load_library(connection: Connection) -> None:
    """Load the function library if it is missing.

    Several handles may do so at once: all load the same.
    """
    about = await connection.send("FCALL", function("about"), 0)
    if about == DIGEST.encode():
        return
    if isinstance(about, ServerError) and str(about).startswith(("NOAUTH", "NOPERM")):
        # A server that wants a password refuses the library only as too long: raise the clear
        # error.
        raise about
    loaded = await connection.send("FUNCTION", "LOAD", "REPLACE", LIBRARY)
    host, port = connection.node
    if isinstance(loaded, ServerError):
        if str(loaded).startswith("ERR unknown command"):
            raise ConfigError(f"{host}:{port} has no functions: use Redis 7.0, Valkey 7.2 or newer")
        raise loaded
    if not isinstance(about, ServerError):
        log.warning(
            "replaced another build of the function library %s on %s:%d: different builds of jobq "
            "use this server",
            VERSION,
            host,
            port,
        )


async def check_server(connection: Connection, shown: str) -> None:
    """Raise ConfigError if the server is too old or evicts keys.

    `shown` is the URL without password.
    """
    host, port = connection.node
    try:
        sections = [
            (await connection.ask("INFO", section)).decode() for section in ("server", "memory")
        ]
    except ServerError as e:
        raise StoreUnavailable(
            f"{host}:{port} does not let jobq check its version and memory policy (INFO): {e}"
        ) from e
    lines = "".join(sections).splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    version = facts.get("valkey_version") or facts["redis_version"]
    if int(facts["redis_version"].split(".")[0]) < 7:
        raise ConfigError(
            f"{shown} is version {version}, which has no functions: "
            "use Redis 7.0, Valkey 7.2 or newer"
        )
    policy = facts.get("maxmemory_policy", "noeviction")
    if int(facts.get("maxmemory", "0")) > 0 and policy != "noeviction":
        raise ConfigError(
            f"{shown} evicts keys when memory runs out (maxmemory-policy {policy}), which would "
            "silently lose jobs: set maxmemory-policy to noeviction"
        )
