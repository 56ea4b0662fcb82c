"""A line says who wanted what, and why not; its length is ours, not the peer's."""

from structlog.testing import capture_logs

from psframework.errors import PermissionDenied
from psframework.rpc import audit


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
