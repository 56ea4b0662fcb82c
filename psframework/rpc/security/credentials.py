"""What a process trusts and shows: TLS files, a bearer token, and the channels made of them."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from psframework.errors import ConfigurationError, PermissionDenied
from psframework.rpc.options import Options, channel_options
from psframework.rpc.security.identity import authorize, check_claim, identity, server_name
from psframework.rpc.security.token_channel import TokenChannel, with_token

if TYPE_CHECKING:
    from psframework.rpc.security.tls import TlsFiles

__all__ = ["Security", "authorize", "check_claim", "identity", "new_token", "read_token", "write_token"]

Metadata = tuple[tuple[str, str], ...]
TOKEN_KEY = "authorization"


@dataclass(frozen=True, slots=True)
class Security:
    """How this process proves who it is and whom it believes. Use the constructors below.

    Args:
        tls: the certificate files, or None for plaintext.
        token: the bearer token that callers must show, and that this process shows; None for none.
    """

    tls: TlsFiles | None = None
    token: str | None = field(default=None, repr=False)

    @classmethod
    def plaintext(cls, token: str | None = None) -> Security:
        """No TLS: for loopback, or where another layer encrypts. A `token` is asked of every caller."""
        return cls(None, _checked(token))

    @classmethod
    def from_files(cls, tls_dir: str | Path, token: str | None = None) -> Security:
        """mTLS by `tls_dir`/{ca.pem,cert.pem,key.pem}, as `psf certs issue` writes them.

        Raises:
            ConfigurationError: a file is missing, damaged, expired or of another pair; names file and fix.
        """
        from psframework.rpc.security.tls import TlsFiles  # plaintext starts without `cryptography`

        tls = TlsFiles(Path(tls_dir))
        tls.load()
        return cls(tls, _checked(token))

    @classmethod
    def from_settings(
        cls,
        *,
        tls_dir: str | Path | None = None,
        token: str | None = None,
        token_file: str | Path | None = None,
    ) -> Security:
        """Chooses by what is set; all empty means plaintext without a token."""
        if token_file and token:
            raise ConfigurationError("both a token and a token file are set: keep one of them")
        if token_file:
            token = read_token(token_file)
        return cls.from_files(tls_dir, token) if tls_dir else cls.plaintext(token)

    @property
    def hint(self) -> str:
        """What to look at when a connection breaks; for `status.from_rpc_error`."""
        if self.tls is None:
            return ""
        return (
            f"if the server is up, one side refused the other's certificate: look at {self.tls.directory} "
            "with `psf certs show`, and at the server's log for its reason"
        )

    @property
    def metadata(self) -> Metadata:
        """The metadata that shows the token; channels made here add it themselves."""
        return ((TOKEN_KEY, f"Bearer {self.token}"),) if self.token else ()

    def channel(
        self, address: str, *, role: str = "", name: str = "", options: Options = ()
    ) -> grpc.aio.Channel:
        """Opens a channel whose server must be of that role (and name); every call shows the token.

        Args:
            address: HOST:PORT.
            role: the server's role; "" checks the host name in its certificate instead.
            name: the server's name; "" accepts any of that role.
            options: further gRPC options.
        """
        merged = channel_options(server_name=self.server_name(role, name), extra=options)
        if self.tls is None:
            inner = grpc.aio.insecure_channel(address, options=merged)
        else:
            inner = grpc.aio.secure_channel(address, self.tls.client_credentials(), options=merged)
        return TokenChannel(inner, self.metadata) if self.token else inner

    def sync_channel(
        self, address: str, *, role: str = "", name: str = "", options: Options = ()
    ) -> grpc.Channel:
        """The same for a thread without an event loop (heartbeats)."""
        merged = channel_options(server_name=self.server_name(role, name), extra=options)
        if self.tls is None:
            inner = grpc.insecure_channel(address, options=merged)
        else:
            inner = grpc.secure_channel(address, self.tls.client_credentials(), options=merged)
        return with_token(inner, self.metadata) if self.token else inner

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """Credentials that demand a client certificate and take up renewed files; None for plaintext."""
        return self.tls.server_credentials() if self.tls else None

    def socket_context(self, *, server_side: bool) -> ssl.SSLContext | None:
        """What sockets beside gRPC make TLS with; None for plain TCP. ConfigurationError as `from_files`."""
        return self.tls.socket_context(server_side=server_side) if self.tls else None

    def server_name(self, role: str, name: str) -> str:
        """What the certificate of a server must be for; "" without TLS, or for any role."""
        return server_name(role, name) if self.tls and role else ""

    def check_token(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Raises PermissionDenied unless the call's metadata shows our token (or we ask for none)."""
        if self.token is None:
            return
        shown = next((value for key, value in metadata if key == TOKEN_KEY), None)
        if shown is None:
            raise PermissionDenied(
                "this service asks for a token: set PSF_TOKEN or PSF_TOKEN_FILE, or pass token="
            )
        text = shown.encode() if isinstance(shown, str) else bytes(shown)
        if not hmac.compare_digest(text, f"Bearer {self.token}".encode()):
            raise PermissionDenied("the token is not this cluster's: look at PSF_TOKEN, or at its token file")

    def check_bind(self, host: str, *, plaintext_ok: bool = False) -> None:
        """Raises ConfigurationError for plaintext beyond loopback that nobody asked for."""
        if self.tls is None and not plaintext_ok and not is_loopback(host):
            raise ConfigurationError(
                f"refusing to serve plaintext on {host}, which other machines can reach: give --tls-dir "
                "(`psf certs` makes the files), bind 127.0.0.1, or pass --plaintext if another layer encrypts"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address of `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def new_token() -> str:
    """A fresh random token, safe in headers and environments."""
    return secrets.token_urlsafe(32)


def write_token(path: str | Path, token: str | None = None) -> str:
    """Writes a token (a new one by default) to a file of mode 0600, which must not exist; returns it."""
    text = _checked(token) or new_token()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
    return text


def read_token(path: str | Path) -> str:
    """Reads a token file.

    Raises:
        ConfigurationError: it is missing, empty, or readable by others than its owner.
    """
    try:
        with open(path) as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"token file {path} can't be read: {error}") from error
    if mode & 0o077:
        raise ConfigurationError(f"token file {path} can be read by other users: chmod 600 {path}")
    if not text:
        raise ConfigurationError(f"token file {path} is empty")
    return _checked(text) or text


def _checked(token: str | None) -> str | None:
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigurationError("a token may hold only printable ASCII characters without spaces")
    return token or None
