"""The audit log, logger `psframework.audit`: a line for each call or connection that was refused, and why."""

from __future__ import annotations

from psframework.observe.logs import get_logger
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
