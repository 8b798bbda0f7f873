"""How much hardware does a load need? The model behind `jq-ctl capacity` (docs/scale.md).

`load` is what is asked, `constants` what was measured, `use` what a load costs the parts of an
installation, and `plan` how many of them it needs. The model is pure: it opens no store.
"""

from jobq.operations.capacity.constants import Measured, default_measured, read_measured
from jobq.operations.capacity.load import Load
from jobq.operations.capacity.plan import Plan, plan
from jobq.operations.capacity.use import Fleet, use

__all__ = [
    "Fleet",
    "Load",
    "Measured",
    "Plan",
    "default_measured",
    "plan",
    "read_measured",
    "use",
]
