"""The audit log, logger `psframework.audit`: a line for each call or connection that was refused, and why."""

from __future__ import annotations

from collections.abc import Collection

from psframework.errors import PermissionDenied
from psframework.observe.logs import get_logger
from psframework.rpc.security import identity
from psframework.rpc.security.identity import HasRole
from psframework.rpc.status import text_of

LOGGER = "psframework.audit"
LONGEST = 300  # characters of what a peer chose


def refused(
    what: str, error: BaseException, *, name: str = "", role: str = "", certificate: str | None = None
) -> None:
    """Logs a refusal.

    Args:
        what: the function, method or connection that was asked for.
        error: what the peer is told.
        name: who asked, as it said.
        role: in which role.
        certificate: the URI in its certificate, where TLS proved it.
    """
    get_logger(LOGGER).warning(
        "refused",
        what=what[:LONGEST],
        peer=name[:LONGEST],
        role=role[:LONGEST],
        certificate=certificate or "none",
        reason=text_of(error)[:LONGEST],
    )


def authorize(peer: HasRole, roles: Collection[str], what: str) -> None:
    """As `identity.authorize`, with a line in the audit log for each refusal."""
    try:
        identity.authorize(peer, roles, what)
    except PermissionDenied as error:
        refused(what, error, name=peer.name, role=peer.role, certificate=certificate_of(peer))
        raise


def certificate_of(peer: object) -> str | None:
    """The URI in the certificate of a `PeerInfo` or an `Identity`; None without TLS."""
    found = getattr(peer, "certificate_name", None) or getattr(peer, "uri", None)
    return str(found) if found else None
