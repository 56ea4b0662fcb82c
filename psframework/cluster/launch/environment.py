"""What each rank is told, as environment variables: names of ours, and those that torchrun made known."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from psframework.rpc.process import PARENT_FD

# What an own cluster decides, whatever the shell that `psf run` was called in says of another one.
_OF_A_CLUSTER = ("PSF_TLS_DIR", "PSF_TOKEN", "PSF_TOKEN_FILE", "PSF_CONFIG")


@dataclass(frozen=True, slots=True)
class World:
    """All ranks of one `psf run`.

    Args:
        size: how many there are.
        coordinator: addresses of the coordinator, separated by commas.
        prefix: of their names: rank-0, rank-1, ...
        local_processes: how many processes share this machine's cores.
        token_file: of a cluster of their own; None: the environment says how to get in.
    """

    size: int
    coordinator: str
    prefix: str = "rank"
    local_processes: int = 1
    token_file: Path | None = None

    def name(self, rank: int) -> str:
        """The member's name of a rank; their natural order is that of the ranks."""
        return f"{self.prefix}-{rank}"

    def environment(self, rank: int, outer: Mapping[str, str], port: int) -> dict[str, str]:
        """Variables of one rank, to be set beside those that are not about psframework.

        Args:
            rank: its number.
            outer: the environment of `psf run`; its `PSF_*` variables are passed on.
            port: a free port of this machine, for programs that also meet by MASTER_ADDR and MASTER_PORT.
        """
        told = {key: value for key, value in outer.items() if key.startswith("PSF_") and key != PARENT_FD}
        if self.token_file is not None:
            told = {key: value for key, value in told.items() if key not in _OF_A_CLUSTER}
            told |= {"PSF_TOKEN_FILE": str(self.token_file)}
        else:
            told.setdefault("PSF_CONFIG", "psf.toml")
        return told | {
            "PSF_COORDINATOR": self.coordinator,
            "PSF_NAME": self.name(rank),
            "PSF_LOCAL_PROCESSES": outer.get("PSF_LOCAL_PROCESSES") or str(self.local_processes),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": outer.get("MASTER_ADDR", "127.0.0.1"),
            "MASTER_PORT": outer.get("MASTER_PORT", str(port)),
            "PYTHONUNBUFFERED": "1",  # lines appear when they are printed, also in a pipe
        }


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
