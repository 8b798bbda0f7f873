"""`python -m jobq.stores.conformance URL`: run the suite on the store behind a URL.

The suite itself is the package `jobq_conformance`.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = ("pytest", "pytest_asyncio", "hypothesis")

if __name__ == "__main__":
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        sys.exit(
            f"the conformance suite needs {', '.join(missing)}, which is not installed: "
            "pip install 'jobq[conformance]'"
        )
    from jobq_conformance.runner import main

    sys.exit(main(sys.argv[1:]))
