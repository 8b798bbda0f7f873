"""An application that raises an error when it is imported."""

raise RuntimeError("the settings are missing")
