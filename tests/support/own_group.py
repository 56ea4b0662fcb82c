"""A worker that imports this gets a group of its own, by which a firewall tells its packets."""

import contextlib
import os


def group_of(parent: int) -> int:
    """The group of such workers of that process."""
    return 1_000_000 + parent


if "PSF_PARENT_FD" in os.environ:
    with contextlib.suppress(PermissionError):
        os.setegid(group_of(os.getppid()))
