"""An application of several modules: `jq-worker --app shop --lifespan shop.app:lifespan`."""
