"""Where the tuning table of this user lies, and how it is read and written."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from psframework.collective.tuning import Table
from psframework.errors import ConfigurationError

VARIABLE: Final = "PSF_TUNING"
"""Names another file; or says that none is read."""

BUILT_IN: Final = "built-in"
"""Value of the variable for the table that comes with the package."""


def location(environment: Mapping[str, str] = os.environ) -> Path:
    """The file: PSF_TUNING, else psframework/tuning.json in the user's folder for configuration."""
    named = environment.get(VARIABLE)
    if named and named != BUILT_IN:
        return Path(named)
    base = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base) / "psframework" / "tuning.json"


def in_use(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The file that groups read, or would if it was there; None: they take the built-in table."""
    return None if environment.get(VARIABLE) == BUILT_IN else location(environment).absolute()


def load(environment: Mapping[str, str] = os.environ) -> Table:
    """The table of this process: that of its file, or the built-in one if nobody has made a file.

    Raises:
        ConfigurationError: the file can't be read, or is no table; names it.
    """
    named, path = environment.get(VARIABLE), location(environment)
    if named == BUILT_IN or (not named and not os.path.exists(path)):
        return Table()
    try:
        return Table.from_json(path.read_text())
    except (OSError, UnicodeDecodeError, ConfigurationError) as error:
        said = f" ({VARIABLE})" if named else ""
        raise ConfigurationError(f"tuning table {path}{said}: {error}") from None


def save(table: Table, path: Path) -> None:
    """Writes a table in place of what the file was; whoever reads meanwhile gets the old or the new one.

    Raises:
        ConfigurationError: it can't be written; names the file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(table.to_json() + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.chmod(scratch, 0o644)
            os.replace(scratch, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(scratch)
            raise
    except OSError as error:
        raise ConfigurationError(f"tuning table {path} can't be written: {error}") from None
