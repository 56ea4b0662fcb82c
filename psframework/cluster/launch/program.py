"""What `psf run` runs: a script or a module, with its arguments. No processes here."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from psframework.errors import ConfigurationError

SCRIPT, MODULE = "script", "module"


@dataclass(frozen=True, slots=True)
class Program:
    """A Python program.

    Args:
        target: path of a script, or the dotted name of a module.
        arguments: its command line.
        is_module: whether `target` is a module, as in `python -m`.
    """

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def command(self) -> Sequence[str]:
        """The arguments of `psframework.cluster.launch.main`."""
        return (MODULE if self.is_module else SCRIPT, self.target, *self.arguments)

    @property
    def folder(self) -> str:
        """Where it finds modules beside it, as `python script.py` and `python -m module` do."""
        return os.getcwd() if self.is_module else str(Path(self.target).resolve().parent)

    @property
    def imported_as(self) -> str | None:
        """The module by which workers import it; None for main files of packages, mostly without a guard.

        Raises:
            ConfigurationError: it can't be imported.
        """
        name = self.target if self.is_module else Path(self.target).stem
        if not self.is_module and "." in name:
            raise ConfigurationError(
                f"workers import {self.target}, and no module has a dot in its name: rename it"
            )
        return None if name.rpartition(".")[2] == "__main__" else name

    def check(self) -> None:
        """Raises ConfigurationError if there is no such program; the ranks would each say so otherwise."""
        if self.is_module:
            self._check_module()
        elif not Path(self.target).exists():
            raise ConfigurationError(f"no script {self.target} in {os.getcwd()}{self._hint()}")
        elif Path(self.target).is_dir():
            raise ConfigurationError(f"{self.target} is a folder: name a script, or -m and a module")

    def _check_module(self) -> None:
        """Only its first part is looked for: to look further would import it here."""
        first = self.target.partition(".")[0]
        try:
            found = importlib.util.find_spec(first) if first else None
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise ConfigurationError(
                f"no module {self.target!r}: {first!r} is in no folder of PYTHONPATH, nor in {os.getcwd()}"
            )

    def _hint(self) -> str:
        name = self.target
        if name.endswith(".py") or os.sep in name:
            return ""
        return f"; psf run -m {name} runs a module" if "." in name else f"; did you mean {name}.py?"
