"""The policies that users write, such as `Retry` and `Rate`.

A policy checks its arguments when it is made, and is immutable. Its `data` is the form that
stores keep.
"""

from jobq.core.policies.permissions import Permissions
from jobq.core.policies.rates import Bucket, Rate
from jobq.core.policies.retention import Retention
from jobq.core.policies.retry import UNDECLARED, Retry
from jobq.core.policies.schedules import Cron, Every
from jobq.core.policies.unique import Unique

__all__ = [
    "UNDECLARED",
    "Bucket",
    "Cron",
    "Every",
    "Permissions",
    "Rate",
    "Retention",
    "Retry",
    "Unique",
]
