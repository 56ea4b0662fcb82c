"""Which connection to a cluster the running code belongs to, for packages below `cluster`."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

current: Final[ContextVar[Any]] = ContextVar("psframework_cluster", default=None)
"""A `Cluster`, or None: what `psf.current_cluster()` answers, and peers' calls run in."""
