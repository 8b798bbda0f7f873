"""What was promised: targets per queue, from a YAML file.

    targets:
      - {name: starts at once, tenant: acme, queue: billing, start_within: 2s, objective: 0.99}
      - {name: quick, queue: mail, run_within: 500ms, objective: 0.95}
      - {name: works, queue: "*", succeed: true, objective: 0.999}

`start_within`: of the runs begun, those no later than this after they were due. `run_within`: of the runs that completed,
those that took no longer. `succeed`: of the jobs that ended, cancelled ones apart, those that completed. A missing tenant or
queue, or "*", means every one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from jobq.errors import ConfigError

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One promise. Exactly one of `start_within`, `run_within` and `succeed` says what it is about."""

    name: str
    objective: float
    tenant: str = "*"
    queue: str = "*"
    start_within: str | float | None = None
    run_within: str | float | None = None
    succeed: bool = False

    @property
    def within_ms(self) -> int:
        """The limit in milliseconds."""
        value = self.start_within if self.start_within is not None else self.run_within
        return duration_ms(value if value is not None else 0)


DEFAULTS = (
    Target(name="starts within 5 s", start_within=5, objective=0.99),
    Target(name="succeeds", succeed=True, objective=0.99),
)


def duration_ms(value: str | float) -> int:
    """`250ms`, `2s`, `5m`, `1h`, or a number of seconds."""
    if isinstance(value, int | float):
        return int(value * 1000)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)?\s*", value)
    if match is None:
        raise ConfigError(f"{value!r} is not a duration: write 250ms, 2s, 5m or 1h")
    return int(float(match[1]) * _UNITS[match[2] or "s"])


def load_targets(path: str | None) -> tuple[Target, ...]:
    """The targets of a file, checked; without one, two modest ones for every queue."""
    if path is None:
        return DEFAULTS
    try:
        data: Any = yaml.safe_load(Path(path).read_text())
        targets = msgspec.convert((data or {}).get("targets", []), tuple[Target, ...])
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as e:
        raise ConfigError(f"the targets in {path} cannot be read: {e}") from e
    for target in targets:
        _check(target, path)
    return targets


def _check(target: Target, path: str) -> None:
    kinds = (target.start_within is not None) + (target.run_within is not None) + target.succeed
    if kinds != 1:
        raise ConfigError(
            f"target {target.name!r} in {path} must have one of start_within, run_within and succeed, not {kinds}"
        )
    if not 0 < target.objective <= 1:
        raise ConfigError(
            f"target {target.name!r} in {path}: objective {target.objective} is not a share between 0 and 1"
        )
    if not target.succeed:
        _ = target.within_ms
