"""The guide says what the server does."""

from __future__ import annotations

from pathlib import Path

import msgspec

from jobq.access.principal import SCOPES
from jobq.access.usage import TenantLimits
from jobq.server.config import keys

GUIDE = Path(__file__).parents[2] / "docs" / "guide"


def test_every_key_of_the_configuration_is_in_the_guide() -> None:
    page = (GUIDE / "server.md").read_text()
    assert [key for key in keys() if f"`{key}`" not in page] == []


def test_every_limit_of_a_tenant_is_in_the_guide() -> None:
    page = (GUIDE / "tenants.md").read_text()
    limits = [field.name for field in msgspec.structs.fields(TenantLimits)]
    assert [name for name in limits if f"`{name}`" not in page] == []


def test_every_scope_is_in_the_guide() -> None:
    page = (GUIDE / "access.md").read_text()
    assert [scope for scope in SCOPES if f"| `{scope}` |" not in page] == []
