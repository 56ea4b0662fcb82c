"""A member for the length of one command: `psf call`, `psf rref list`."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from psframework.cluster.connect import connect
from psframework.cluster.handle import Cluster
from psframework.cluster.settings import Settings
from psframework.errors import ConfigurationError
from psframework.rpc.security.certificates import CERT, describe
from psframework.rpc.security.identity import ANY_NAME

Coordinator = Annotated[str | None, typer.Option(help="HOST:PORT; default: PSF_COORDINATOR")]
TlsDir = Annotated[Path | None, typer.Option(help="folder with our certificate; default: PSF_TLS_DIR")]
Timeout = Annotated[float, typer.Option(min=0.1, help="seconds to wait")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


_WIDE = 120  # columns in a pipe, where rich would cut tables at 80


def console() -> Console:
    """Where tables go: as wide as the terminal, or as COLUMNS says."""
    found = Console()
    return found if found.is_terminal or "COLUMNS" in os.environ else Console(width=_WIDE)


@dataclass(frozen=True, slots=True)
class Where:
    """The cluster to join, as the flags say."""

    coordinator: str | None
    tls_dir: Path | None
    timeout: float

    def connect(self) -> AbstractAsyncContextManager[Cluster]:
        """Joins it, under a name that no trainer gets by itself.

        Raises (on entering):
            ConfigurationError: no address.
        """
        settings = Settings.load(coordinator=self.coordinator, tls_dir=self.tls_dir)
        if not settings.coordinator:
            raise ConfigurationError("which cluster? Pass --coordinator HOST:PORT, or set PSF_COORDINATOR")
        name = f"psf-{os.getpid()}"
        if settings.tls_dir is not None:
            who = describe(settings.tls_dir / CERT).identity
            name = who.name if who is not None and who.name != ANY_NAME else name
        # Of no job, as services are: members of every job take its calls.
        return connect(self.coordinator, name=name, job="", tls=self.tls_dir, timeout=self.timeout)
