"""The blocking API, for Django, Flask and scripts: every method runs its async counterpart.

The async method runs in an event loop in a background thread, the portal (`client/portal.py`).
"""
