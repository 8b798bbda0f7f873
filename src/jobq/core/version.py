"""The version of jobq, in one place.

The build reads it for the package's metadata. `jobq.__version__`, the command lines and the stores
read it at run time, so all of them agree in an editable checkout too.
"""

from __future__ import annotations

__version__ = "0.2.0.dev0"
