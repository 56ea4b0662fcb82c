"""Who a peer is: the role and name in its certificate, and what each role may call."""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, unquote

from psframework.errors import ConfigurationError, PermissionDenied

SUFFIX = "psf.internal"  # of the DNS names by which clients check a server's role; never resolved
ANY_NAME = "*"  # a certificate of a role, for whichever name the coordinator gives
_ROLE = re.compile(r"[a-z][a-z0-9-]{0,62}")
_NAME = re.compile(r"[A-Za-z0-9_:.-]{1,127}")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_URI = re.compile(r"psf://([^/]+)/([^/]+)/([^/]+)")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a certificate says about its holder.

    Args:
        role: "parameter-server", "worker", "trainer", ...
        name: the member's name, or `ANY_NAME`.
        cluster: name of the cluster whose authority signed it; told, never checked (the signature is).
    """

    role: str
    name: str = ANY_NAME
    cluster: str = "cluster"

    @property
    def uri(self) -> str:
        return f"psf://{quote(self.cluster, safe='')}/{self.role}/{quote(self.name, safe='')}"

    def __str__(self) -> str:
        return f"{self.role}/{self.name}"


class HasRole(Protocol):
    """A peer as handlers see it (`PeerInfo`, `Identity`, a member)."""

    @property
    def role(self) -> str: ...
    @property
    def name(self) -> str: ...


class AuthContext(Protocol):
    """The part of grpc.aio.ServicerContext that knows the peer's certificate."""

    def auth_context(self) -> Mapping[str, Sequence[bytes]]: ...


def check_names(role: str, name: str) -> None:
    """Raises ConfigurationError unless both can stand in a certificate."""
    if not _ROLE.fullmatch(role):
        raise ConfigurationError(f"role {role!r}: lower-case letters, digits and '-', at most 63 characters")
    if name != ANY_NAME and not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"name {name!r}: 1-127 characters of A-Z a-z 0-9 _ : . -, or '*' for any name"
        )


def server_name(role: str, name: str = "") -> str:
    """The DNS name that a server of that role (and name) carries in its certificate.

    Names that are no DNS label (upper case, ':', '_', dots) are hashed into one, since TLS ignores case.
    """
    if not name:
        return f"{role}.{SUFFIX}"
    if name != ANY_NAME and not _LABEL.fullmatch(name):
        name = "x" + hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{name}.{role}.{SUFFIX}"


def parse_uri(uri: str) -> Identity | None:
    """Reads `psf://cluster/role/name`; None for any other URI."""
    found = _URI.fullmatch(uri)
    if found is None:
        return None
    cluster, role, name = (unquote(part) for part in found.groups())
    if not _ROLE.fullmatch(role) or not (name == ANY_NAME or _NAME.fullmatch(name)):
        return None
    return Identity(role, name, cluster)


def identity(context: AuthContext) -> Identity | None:
    """The caller's identity by its certificate; None on a connection without TLS.

    Raises:
        PermissionDenied: the certificate is signed by our authority but names no role.
    """
    auth = context.auth_context()
    if b"ssl" not in auth.get("transport_security_type", ()):
        return None
    return _named(entry.decode("utf-8", "replace") for entry in auth.get("x509_subject_alternative_name", ()))


def socket_identity(sock: socket.socket) -> Identity | None:
    """The same of a socket's other end, once TLS has shaken hands."""
    if not isinstance(sock, ssl.SSLSocket):
        return None
    names: Any = (sock.getpeercert() or {}).get("subjectAltName", ())
    return _named(value for kind, value in names if kind == "URI")


def _named(entries: Iterable[str]) -> Identity:
    for entry in entries:
        found = parse_uri(entry)
        if found is not None:
            return found
    raise PermissionDenied(
        "your certificate has no psf://cluster/role/name entry: issue one with `psf certs issue ROLE`"
    )


def check_claim(holder: Identity | None, role: str, name: str) -> None:
    """Checks what a peer says about itself in a handshake against its certificate.

    Args:
        holder: `identity(context)`; None (no TLS) accepts the claim, which the token alone vouches for.
        role: the role it claims.
        name: the name it claims; "" before the coordinator gave it one.

    Raises:
        PermissionDenied: names both roles, or both names.
    """
    if holder is None:
        return
    if role != holder.role:
        raise PermissionDenied(
            f"you say that you are {role!r}, but your certificate is of role {holder.role!r} ({holder}): "
            f"issue one with `psf certs issue {role}`"
        )
    if name and holder.name not in (ANY_NAME, name):
        raise PermissionDenied(
            f"you say that you are {name!r}, but your certificate is for {holder.name!r}: "
            f"use that name, or issue one with `psf certs issue {role} --name {name}`"
        )


def authorize(peer: HasRole, roles: Collection[str], what: str = "this call") -> None:
    """Raises PermissionDenied, naming both roles, unless `peer` has one of `roles` (empty: all may)."""
    if roles and peer.role not in roles:
        allowed = " or ".join(repr(role) for role in sorted(roles))
        raise PermissionDenied(f"{peer.name} has the role {peer.role!r}; {what} needs {allowed}")
