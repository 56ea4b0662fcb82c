"""One structured log line for each call that failed, whichever way it came in."""

from __future__ import annotations

import grpc

from psframework.errors import PsfError
from psframework.observe.logs import get_logger
from psframework.rpc.status import status_code, text_of

LONGEST = 500  # characters of an error's text in the log; peers choose it


def log_failure(method: str, peer: str, error: BaseException, seconds: float, *, users: bool = False) -> None:
    """Logs a failed call: a warning for our own errors, an error with its traceback for anything else.

    Args:
        method: path of the method, "/service/method".
        peer: who called.
        error: what it ends with.
        seconds: how long it ran.
        users: whether a user's function raised it: the caller gets the traceback, the log only the line.
    """
    fields = _fields(method, peer, status_code(error), seconds)
    text = f"{type(error).__name__}: {text_of(error)}"[:LONGEST]
    log = get_logger("psframework.rpc")
    if users or isinstance(error, PsfError):
        log.warning("call failed", **fields, error=text)
    else:
        log.error("call failed", **fields, error=text, exc_info=error)


def log_abort(method: str, peer: str, code: grpc.StatusCode, text: str, seconds: float) -> None:
    """The same for a handler that ended its call itself, with `context.abort`."""
    get_logger("psframework.rpc").warning(
        "call failed", **_fields(method, peer, code, seconds), error=text[:LONGEST]
    )


def _fields(method: str, peer: str, code: grpc.StatusCode, seconds: float) -> dict[str, object]:
    return {"method": method, "peer": peer, "code": code.name, "milliseconds": round(seconds * 1000, 3)}
