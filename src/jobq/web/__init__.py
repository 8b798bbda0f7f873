"""`jobq[web]`: a dashboard as an ASGI application. See docs/guide/dashboard.md."""
