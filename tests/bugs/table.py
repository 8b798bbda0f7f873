"""All bugs."""

from __future__ import annotations

from tests.bugs.engine import ENGINE
from tests.bugs.server import DASHBOARD, SERVER
from tests.bugs.stores import STORES
from tests.bugs.tools import TOOLS

BUGS = (*STORES, *ENGINE, *SERVER, *DASHBOARD, *TOOLS)
