"""Service-level targets per queue, from a YAML file.

    targets:
      - {name: starts at once, tenant: acme, queue: billing, start_within: 2s, objective: 0.99}
      - {name: quick, queue: mail, run_within: 500ms, objective: 0.95}
      - {name: works, queue: "*", succeed: true, objective: 0.999}

Each target counts a share that must reach `objective`. `start_within`: started runs that started
within this time after they were due. `run_within`: completed runs that took at most this time.
`succeed`: jobs that completed, of those that completed or failed. Without a tenant or queue, or
with "*", a target applies to all.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from jobq.console.yaml_file import read_yaml
from jobq.errors import ConfigError

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One target. Exactly one of `start_within`, `run_within` and `succeed` must be set."""

    name: str
    objective: float
    tenant: str = "*"
    queue: str = "*"
    start_within: str | float | None = None
    run_within: str | float | None = None
    succeed: bool = False

    @property
    def within_ms(self) -> int:
        """The time limit in milliseconds."""
        value = self.start_within if self.start_within is not None else self.run_within
        return duration_ms(value if value is not None else 0)


DEFAULTS = (
    Target(name="starts within 5 s", start_within=5, objective=0.99),
    Target(name="succeeds", succeed=True, objective=0.99),
)


def duration_ms(value: str | float) -> int:
    """Parse `250ms`, `2s`, `5m`, `1h`, or a number of seconds, into milliseconds."""
    if isinstance(value, int | float):
        return int(value * 1000)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)?\s*", value)
    if match is None:
        raise ConfigError(f"{value!r} is not a duration: use e.g. 250ms, 2s, 5m or 1h")
    return int(float(match[1]) * _UNITS[match[2] or "s"])


def load_targets(path: str | None) -> tuple[Target, ...]:
    """Load the targets from a file. Without a file: two modest targets for every queue."""
    if path is None:
        return DEFAULTS
    try:
        data: Any = read_yaml(path) or {}
        if not isinstance(data, dict):
            raise ConfigError(f"{path} must have a list of targets")
        targets = msgspec.convert(data.get("targets", []), tuple[Target, ...])
    except (ConfigError, msgspec.ValidationError) as e:
        raise ConfigError(f"cannot read the targets in {path}: {e}") from e
    for target in targets:
        _check(target, path)
    return targets


def _check(target: Target, path: str) -> None:
    kinds = (target.start_within is not None) + (target.run_within is not None) + target.succeed
    if kinds != 1:
        raise ConfigError(
            f"target {target.name!r} in {path} must have exactly one of start_within, run_within "
            f"and succeed, not {kinds}"
        )
    if not 0 < target.objective <= 1:
        raise ConfigError(
            f"target {target.name!r} in {path}: objective {target.objective} must be above 0 "
            "and at most 1"
        )
    if not target.succeed:
        _ = target.within_ms
