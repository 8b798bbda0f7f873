"""jq-server: a store that is reached over the network, for several tenants."""
