"""Refused sockets in the audit log: a bounded number of lines, and none uncounted."""

from structlog.testing import capture_logs

from psframework.errors import PermissionDenied
from psframework.rpc.session.refusals import MOST, PERIOD_SECONDS, Refusals


def test_a_storm_is_a_few_lines_and_a_number() -> None:
    now = 5.0
    with capture_logs() as lines:
        refusals = Refusals(lambda: now)
        for number in range(MOST + 7):
            refusals.record(f"1.2.3.4:{number}", PermissionDenied("no session with this key"))
        assert [line["peer"] for line in lines] == [f"1.2.3.4:{number}" for number in range(MOST)]
        assert lines[0]["what"] == "a socket" and lines[0]["reason"] == "no session with this key"
        assert lines[0]["logger"] == "psframework.audit"
        now += PERIOD_SECONDS
        refusals.record("5.6.7.8:9", PermissionDenied("again"))
    more, next_period = lines[MOST:]
    assert (more["what"], more["peer"]) == ("sockets: 7 more", f"1.2.3.4:{MOST + 6}")
    assert (next_period["what"], next_period["peer"]) == ("a socket", "5.6.7.8:9")


def test_the_end_tells_what_was_left_out_once() -> None:
    with capture_logs() as lines:
        refusals = Refusals(lambda: 0.0)
        refusals.flush()
        assert not lines
        for _ in range(MOST + 1):
            refusals.record("1.2.3.4:5", PermissionDenied("no"))
        refusals.flush()
        refusals.flush()
    assert len(lines) == MOST + 1 and lines[-1]["what"] == "sockets: 1 more"
