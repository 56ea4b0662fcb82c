"""The log line of a failed call."""

from __future__ import annotations

import grpc
import structlog

from psframework.errors import StaleTerm
from psframework.rpc.failures import LONGEST, log_abort, log_failure


def test_expected_errors_are_warnings_and_others_carry_their_traceback():
    with structlog.testing.capture_logs() as lines:
        log_failure("/s/M", "w0", StaleTerm("old"), 0.0015)
        log_failure("/s/M", "w0", ValueError("x" * 10_000), 2.0)
        log_abort("/s/M", "w0", grpc.StatusCode.NOT_FOUND, "none", 0.0)
        log_failure("/s/M", "w0", ValueError("of a user"), 2.0, users=True)
    first, second, third, fourth = lines
    assert fourth["log_level"] == "warning" and "exc_info" not in fourth
    assert first == {
        "event": "call failed",
        "log_level": "warning",
        "logger": "psframework.rpc",
        "method": "/s/M",
        "peer": "w0",
        "code": "ABORTED",
        "milliseconds": 1.5,
        "error": "StaleTerm: old",
    }
    assert second["log_level"] == "error" and len(second["error"]) == LONGEST and second["exc_info"]
    assert third["code"] == "NOT_FOUND" and third["error"] == "none"


def test_an_error_without_a_text_is_logged_too():
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    with structlog.testing.capture_logs() as lines:
        log_failure("/s/M", "w0", Mute(), 0.0)
    assert "Mute" in lines[0]["error"]
