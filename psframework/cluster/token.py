"""Where this user's processes find the token of a local cluster: a file of mode 0600 that only they can read.

A local cluster writes its token to a folder of the user, named by the coordinator's port, so that
`psf.connect("127.0.0.1:PORT")` and `psf status` of the same user find it without being told (PROTOCOLS 15).
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from psframework.errors import ConfigurationError
from psframework.rpc.security.credentials import is_loopback, read_token, write_token


def publish_token(address: str, token: str) -> Path:
    """Makes the token of the local coordinator at `address` known to this user's other processes.

    Returns: the file, to be removed when the cluster ends.
    """
    path = _folder() / f"{_port(address)}.token"
    for attempt in range(3):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _private(path.parent):
            raise ConfigurationError(
                f"{path.parent} must belong to this user with mode 0700; remove it, try again"
            )
        try:
            _replace(path, token)
            break
        except FileNotFoundError:  # another cluster of this user has just ended, and removed the empty folder
            if attempt == 2:
                raise
    return path


def withdraw_token(path: Path) -> None:
    """Removes what `publish_token` made, and the folder if it was the last."""
    path.unlink(missing_ok=True)
    try:
        path.parent.rmdir()
    except OSError:
        pass  # not empty: other clusters live


def _replace(path: Path, token: str) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    write_token(scratch, token)
    scratch.replace(path)


def find_token(addresses: Sequence[str]) -> str | None:
    """The token that a local cluster of this user published for one of `addresses`; only loopback counts."""
    folder = _folder()
    if not _private(folder):
        return None
    for address in addresses:
        path = folder / f"{_port(address)}.token"
        if is_loopback(address.rpartition(":")[0]) and path.exists():
            return read_token(path)
    return None


def _folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return Path(runtime) / "psframework"
    return Path(tempfile.gettempdir()) / f"psframework-{os.getuid()}"


def _private(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _port(address: str) -> str:
    return address.rpartition(":")[2]
