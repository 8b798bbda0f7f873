"""`python -m jobq.stores.conformance URL`: run the suite on the store behind a URL."""

from __future__ import annotations

import sys
from importlib.util import find_spec

missing = [name for name in ("pytest", "pytest_asyncio", "hypothesis") if find_spec(name) is None]
if missing:
    sys.exit(
        f"the conformance suite needs {', '.join(missing)}, which is not installed: "
        "pip install 'jobq[conformance]'"
    )

from jobq.stores.conformance.runner import main  # noqa: E402 (it imports pytest)

sys.exit(main(sys.argv[1:]))
