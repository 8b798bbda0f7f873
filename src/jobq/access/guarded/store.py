"""The one place that decides whether a caller may do something.

A `GuardedStore` is the server's store as one principal sees it. Every service uses it, so no
service has rules of its own. What belongs to another tenant looks as if it did not exist.
"""

from __future__ import annotations

from jobq.access.guarded.hot import GuardedHot
from jobq.access.guarded.operators import GuardedOperators
from jobq.access.guarded.reads import GuardedReads
from jobq.access.guarded.workers import GuardedWorkers


class GuardedStore(GuardedHot, GuardedOperators, GuardedReads, GuardedWorkers):
    """The Store contract for one principal.

    AccessDenied if the principal's scopes do not allow a call. JobNotFound if a call names a queue
    of another tenant. Names of workers begin with `tenant:` if the principal has a tenant, so that
    workers of two tenants never share a name.
    """
