"""Errors on the wire: one table between exception classes, gRPC status codes and ErrorDetail messages."""

from __future__ import annotations

import builtins
import json
import os
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NoReturn, Protocol, cast

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError

from psframework import errors
from psframework.errors import PeerLost, PermissionDenied, PsfError, RemoteError
from psframework.proto.v1.error_pb2 import ErrorDetail, RichStatus

Code = grpc.StatusCode
DETAILS_KEY = "grpc-status-details-bin"  # where every gRPC implementation looks for rich errors
TRAILER_TEXT = 1500  # bytes; gRPC refuses trailers above 8 KiB, and then the real error is lost
STATUS_TEXT = 600  # bytes; percent-encoding makes three of one
STREAM_TEXT = 64 * 1024


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Args:
        error: the exception class.
        code: the gRPC status that it travels as.
        fields: its attributes that travel too, with the type that each must have.
        bare: whether a status of this code without details becomes this class.
    """

    error: type[PsfError]
    code: grpc.StatusCode
    fields: tuple[tuple[str, type], ...] = ()
    bare: bool = False


TABLE: tuple[Row, ...] = (
    Row(PsfError, Code.UNKNOWN),
    Row(errors.ArgumentError, Code.INVALID_ARGUMENT, bare=True),
    Row(errors.ConfigurationError, Code.FAILED_PRECONDITION, bare=True),
    Row(errors.AddressInUse, Code.FAILED_PRECONDITION),
    Row(errors.AutogradError, Code.FAILED_PRECONDITION),
    Row(errors.DeadlineExceeded, Code.DEADLINE_EXCEEDED, bare=True),
    Row(
        PeerLost,
        Code.UNAVAILABLE,
        (("peer", str), ("reason", str), ("may_have_run", bool), ("rank", int)),
        bare=True,
    ),
    Row(RemoteError, Code.UNKNOWN, bare=True),
    Row(errors.NotRegistered, Code.UNIMPLEMENTED, bare=True),
    Row(errors.NameTaken, Code.ALREADY_EXISTS, bare=True),
    Row(errors.UnknownTable, Code.NOT_FOUND, bare=True),
    Row(errors.ModelMismatch, Code.FAILED_PRECONDITION),
    Row(errors.ResourceExhausted, Code.RESOURCE_EXHAUSTED, (("retry_after", float),), bare=True),
    Row(PermissionDenied, Code.PERMISSION_DENIED, bare=True),
    Row(errors.Evicted, Code.ABORTED),
    Row(errors.RolledBack, Code.ABORTED, (("step", int),)),
    Row(errors.StaleTerm, Code.ABORTED, bare=True),
    Row(errors.ContextMismatch, Code.FAILED_PRECONDITION),
    Row(errors.ContextClosed, Code.FAILED_PRECONDITION),
    Row(errors.PartialFailure, Code.ABORTED, (("failed", tuple), ("done", tuple))),
    Row(errors.CollectiveMismatch, Code.FAILED_PRECONDITION),
    Row(errors.RendezvousTimeout, Code.DEADLINE_EXCEEDED, (("missing", tuple),)),
    Row(errors.CheckpointError, Code.DATA_LOSS),
    Row(errors.WireError, Code.DATA_LOSS, bare=True),
)
BY_CLASS = {row.error: row for row in TABLE}
BY_NAME = {row.error.__name__: row for row in TABLE}
BY_CODE = {row.code: row.error for row in TABLE if row.bare} | {
    Code.UNAUTHENTICATED: PermissionDenied,
    Code.CANCELLED: PeerLost,  # our own cancellation is a CancelledError; this one is a server that stops
    Code.OUT_OF_RANGE: errors.ArgumentError,
    Code.INTERNAL: RemoteError,
}
# Raised again here, these would end a generator or the process instead of reaching an `except`.
_NEVER_REBUILT = (StopIteration, StopAsyncIteration, BaseExceptionGroup)
_HERE = Path(__file__).parent
_BETWEEN = (f"{_HERE}{os.sep}", str(_HERE.parent / "backend" / "scopes.py"))  # a call and the user's code
_TLS_WORDS = ("handshake", "ssl_error", "certificate", "peer name", "tls", "unauthenticated")
# A server that dies in the middle of a handshake decided nothing: it is worth trying again.
_CUT_OFF_WORDS = ("socket closed", "connection reset", "broken pipe")
_NEVER_SENT_WORDS = ("failed to connect", "connection refused", "resolving", "no address")


class RpcFailure(Protocol):
    """What grpc.aio.AioRpcError and the exceptions of synchronous stubs have in common."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...


class Abortable(Protocol):
    """The part of grpc.aio.ServicerContext that ends a call."""

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[tuple[str, bytes]] = ()
    ) -> NoReturn: ...


def status_code(error: BaseException) -> grpc.StatusCode:
    """Returns the gRPC status that an exception travels as; UNKNOWN for those of users' code."""
    row = _row(type(error))
    return row.code if row else Code.UNKNOWN


def error_to_detail(error: BaseException, *, limit: int = STREAM_TEXT) -> ErrorDetail:
    """Describes an exception for the other side.

    Args:
        error: any exception; one that came from a third process keeps that process's type and traceback.
        limit: longest text, in bytes of UTF-8; longer ones keep their end, where Python tells what happened.
    """
    row = _row(type(error))
    if row is not None and row.error is PsfError and type(error) is not PsfError:
        row = None  # one that a user derived: it keeps its name
    if isinstance(error, RemoteError):
        base = _builtin_base(type(error))
        detail = ErrorDetail(type=error.type_name or "RemoteError", message=_cut(error.message, limit))
        detail.traceback = _cut(error.remote_traceback, limit)
        detail.builtin_base = base.__name__ if base else ""
    elif row is not None:
        detail = ErrorDetail(type=row.error.__name__, message=_cut(text_of(error), limit))
        for name, _ in row.fields:
            detail.fields[name] = json.dumps(getattr(error, name))
        base = _builtin_base(type(error), row.error)  # what it is besides
        detail.builtin_base = base.__name__ if base else ""
    else:
        base = _builtin_base(type(error))
        detail = ErrorDetail(type=_type_name(type(error)), message=_cut(text_of(error), limit))
        detail.traceback = _cut("".join(_formatted(error)), limit)
        detail.builtin_base = base.__name__ if base else ""
    return detail


def detail_to_error(detail: ErrorDetail) -> PsfError:
    """Rebuilds an exception: a class of the table, else a RemoteError that also is its built-in base."""
    row = BY_NAME.get(detail.type)
    if row is None or row.error is RemoteError:
        remote = _remote_error(detail.builtin_base)(
            detail.message, type_name=detail.type, remote_traceback=detail.traceback
        )
        remote.untouched = detail.untouched
        return remote
    error = _also(detail.type, detail.builtin_base)(detail.message)
    error.untouched = detail.untouched
    for name, kind in row.fields:
        value = _field(detail.fields.get(name, ""), kind)
        if value is not None:
            setattr(error, name, value)
    return error


async def abort(context: Abortable, error: BaseException) -> NoReturn:
    """Ends an ordinary gRPC call with `error`: status code, text, and ErrorDetail in the trailers."""
    code, text, trailers = abort_arguments(error)
    await context.abort(code, text, trailers)


def abort_arguments(error: BaseException) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Returns (code, text, trailing metadata) for `context.abort`."""
    detail = error_to_detail(error, limit=TRAILER_TEXT)
    code, packed = status_code(error), AnyMessage()
    packed.Pack(detail)
    text = _cut(f"{detail.type}: {detail.message}", STATUS_TEXT)
    status = RichStatus(code=code.value[0], message=text, details=[packed])
    return code, text, ((DETAILS_KEY, status.SerializeToString()),)


def from_rpc_error(error: RpcFailure, *, peer: str = "", hint: str = "") -> PsfError:
    """Turns what a gRPC call raised into one of our exceptions.

    Args:
        error: a grpc.aio.AioRpcError, or the exception of a synchronous stub.
        peer: who was called, for the message.
        hint: what to look at when the connection broke (`Security.hint`).
    """
    detail = _rich_detail(error)
    if detail is not None:
        return detail_to_error(detail)
    code, text = error.code(), error.details() or ""
    who = f"{peer}: " if peer else ""
    low = text.lower()
    cut_off = any(word in low for word in _CUT_OFF_WORDS) and "certificate" not in low
    if code is Code.UNAVAILABLE and any(word in low for word in _TLS_WORDS) and not cut_off:
        return PermissionDenied(
            f"{who}TLS refused the connection ({_short(text)}); {hint or 'look at the certificates'}"
        )
    kind = BY_CODE.get(code, RemoteError)
    if kind is PeerLost:
        unsent = any(word in low for word in _NEVER_SENT_WORDS)
        reason = "refused" if unsent else "closed"
        if unsent and cut_off:  # somebody listens, but hung up on what we began with
            hint = hint or (
                "it may expect TLS: give the folder of your certificates (--tls-dir, PSF_TLS_DIR, tls=)"
            )
        message = f"{who}connection lost ({_short(text)}){'; ' + hint if hint else ''}"
        return PeerLost(message, peer=peer, reason=reason, may_have_run=not unsent)
    if kind is RemoteError:
        return RemoteError(f"{who}{text}", type_name=f"grpc.{code.name}")
    return kind(f"{who}{text or code.name}")


def was_cut_off(error: RpcFailure) -> bool:
    """Whether somebody accepted the connection and then ended it: it died, or refused what we showed."""
    return any(word in (error.details() or "").lower() for word in _CUT_OFF_WORDS)


def _rich_detail(error: RpcFailure) -> ErrorDetail | None:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                for packed in RichStatus.FromString(value).details:
                    detail = ErrorDetail()
                    if packed.Unpack(detail):
                        return detail
            except DecodeError:
                return None  # of another framework, or damaged: the bare status still says enough
    return None


def _formatted(error: BaseException) -> list[str]:
    """The traceback from the first frame on that is the user's: what that code did."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_BETWEEN):
        trace = trace.tb_next
    if trace is None and error.__cause__ is None:  # all of it is ours
        trace = error.__traceback__
    return traceback.format_exception(type(error), error, trace)


def _row(error_type: type[BaseException]) -> Row | None:
    """The nearest class of the table, so that a subclass still travels as what callers catch."""
    return next((BY_CLASS[base] for base in error_type.__mro__ if base in BY_CLASS), None)


@lru_cache(maxsize=256)
def _remote_error(builtin_base: str) -> type[RemoteError]:
    """A RemoteError that is a built-in exception too, as near to `builtin_base` as Python can build."""
    base = getattr(builtins, builtin_base, None)
    if not (isinstance(base, type) and issubclass(base, Exception)) or issubclass(base, _NEVER_REBUILT):
        return RemoteError
    for candidate in base.__mro__:
        if candidate is Exception:
            break
        made = type(f"Remote{candidate.__name__}", (RemoteError, candidate), {"__str__": Exception.__str__})
        try:
            made("probe", type_name="probe")
        except TypeError:  # a constructor with more arguments, like UnicodeDecodeError's
            continue
        return cast(type[RemoteError], made)
    return RemoteError


@lru_cache(maxsize=256)
def _also(name: str, builtin_base: str) -> type[PsfError]:
    """A class of the table that is a built-in exception too, if Python can build that."""
    error = BY_NAME[name].error
    base = getattr(builtins, builtin_base, None)
    if not (isinstance(base, type) and issubclass(base, Exception)) or issubclass(base, _NEVER_REBUILT):
        return error
    try:
        made = type(name, (error, base), {"__str__": Exception.__str__})
        made("probe")
    except TypeError:
        return error
    return cast(type[PsfError], made)


def _builtin_base(
    error_type: type[BaseException], known: type[BaseException] = Exception
) -> type[BaseException] | None:
    """The first built-in exception that a class derives from, and `known` does not."""
    for base in error_type.__mro__:
        if base.__module__ == "builtins" and not issubclass(known, base) and base is not BaseException:
            return base
    return None


def _type_name(error_type: type[BaseException]) -> str:
    module = error_type.__module__
    return error_type.__qualname__ if module == "builtins" else f"{module}.{error_type.__qualname__}"


def _field(text: str, kind: type) -> object | None:
    """Reads one attribute; a value of another type is dropped, since the peer may be of another version."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if kind is tuple:
        return tuple(map(str, value)) if isinstance(value, list) else None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value if type(value) is kind else None


def text_of(error: BaseException) -> str:
    """`str(error)`, whatever its `__str__` does."""
    try:
        return str(error)
    except Exception:  # a broken __str__ of users' code must not hide the error itself
        return "<exception whose __str__ failed>"


def _cut(text: str, limit: int) -> str:
    data = text.encode(errors="replace")  # protobuf refuses lone surrogates
    return data.decode() if len(data) <= limit else "..." + data[-limit:].decode(errors="ignore")


def _short(text: str) -> str:
    return text if len(text) <= 300 else text[:300] + "..."
