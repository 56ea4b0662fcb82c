"""The bearer token of a cluster on this machine: a file of mode 0600 that only its user can read.

A local cluster writes its token to a folder of the user, named by the coordinator's port, so that
`psf.connect("127.0.0.1:PORT")` and `psf status` of the same user find it without being told (PROTOCOLS 15).
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from psframework.errors import ConfigurationError


def new_token() -> str:
    """A random token of 256 bits."""
    return secrets.token_urlsafe(32)


def write_token(path: Path, token: str) -> None:
    """Creates `path` with mode 0600 before a byte of the token is in it; replaces an older file."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    scratch.replace(path)


def read_token(path: Path) -> str:
    """The token in `path`.

    Raises:
        ConfigurationError: no such file, an empty one, or one that other users may read.
    """
    try:
        with path.open() as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"can't read the token file {path}: {error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(f"other users may read the token file {path}: run chmod 600 {path}")
    if not token:
        raise ConfigurationError(f"the token file {path} is empty")
    return token


def publish_token(address: str, token: str) -> Path:
    """Makes the token of the local coordinator at `address` known to this user's other processes.

    Returns: the file, to be removed when the cluster ends.
    """
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _private(folder):
        raise ConfigurationError(f"{folder} must belong to this user with mode 0700; remove it and try again")
    path = folder / f"{_port(address)}.token"
    write_token(path, token)
    return path


def find_token(addresses: Sequence[str]) -> str | None:
    """The token that a local cluster of this user published for one of `addresses`; only loopback counts."""
    folder = _folder()
    if not _private(folder):
        return None
    for address in addresses:
        path = folder / f"{_port(address)}.token"
        if _is_loopback(address) and path.exists():
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


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
