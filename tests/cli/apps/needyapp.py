"""An application that needs something nobody installed."""

import no_such_package_anywhere  # type: ignore[import-not-found]  # noqa: F401
