"""An application with a mistake in it."""

raise RuntimeError("the settings are missing")
