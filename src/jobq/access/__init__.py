"""Who may do what, for every door: principals, scopes, tenants and quotas, and the guarded store.

`server` and `web` are the doors. Both import this package, and neither imports the other.
"""
