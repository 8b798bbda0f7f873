"""An application that needs something nobody installed."""

import no_such_package_anywhere  # noqa: F401
