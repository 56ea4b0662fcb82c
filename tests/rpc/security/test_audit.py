"""A line says who wanted what, and why not; its length is ours, not the peer's."""

import pytest
from structlog.testing import capture_logs

from psframework.errors import PermissionDenied
from psframework.rpc.call import PeerInfo
from psframework.rpc.security import audit
from psframework.rpc.security.identity import Identity


def test_a_line() -> None:
    with capture_logs() as lines:
        audit.refused(
            "m.add", PermissionDenied("because"), name="t-0", role="trainer", certificate="psf://c/r/n"
        )
        audit.refused("x" * 9999, PermissionDenied("y" * 9999), name="z" * 9999)
    assert lines[0] == {
        "event": "refused",
        "log_level": "warning",
        "logger": audit.LOGGER,
        "what": "m.add",
        "peer": "t-0",
        "role": "trainer",
        "certificate": "psf://c/r/n",
        "reason": "because",
    }
    assert lines[1]["certificate"] == "none"
    assert max(len(value) for value in lines[1].values()) == audit.LONGEST


@pytest.mark.parametrize(
    "peer",
    [Identity("guest", "g", "c"), PeerInfo("g", "guest", "", 1, "psf://c/guest/g")],
    ids=["certificate", "peer"],
)
def test_a_role_that_may_not(peer: Identity | PeerInfo) -> None:
    with capture_logs() as lines:
        audit.authorize(peer, {"guest"}, "/s/M")
        with pytest.raises(PermissionDenied, match="needs 'admin'"):
            audit.authorize(peer, {"admin"}, "/s/M")
    (line,) = lines
    assert (line["what"], line["peer"], line["certificate"]) == ("/s/M", "g", "psf://c/guest/g")
    assert audit.certificate_of(PeerInfo("g", "guest", "", 1)) is None
