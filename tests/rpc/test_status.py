"""The error table, in both directions, and what bare gRPC statuses become."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage

from psframework import errors
from psframework.errors import PeerLost, PermissionDenied, PsfError, RemoteError
from psframework.proto.v1.error_pb2 import ErrorDetail, RichStatus
from psframework.rpc import status


def all_error_classes() -> list[type[PsfError]]:
    return [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, PsfError)
    ]


class Failure:
    """What a stub raises, without a connection."""

    def __init__(self, code: grpc.StatusCode, details: str = "", trailers: tuple = ()):
        self._parts = code, details, trailers

    def code(self):
        return self._parts[0]

    def details(self):
        return self._parts[1]

    def trailing_metadata(self):
        return self._parts[2]


def travel(error: BaseException) -> PsfError:
    return status.detail_to_error(ErrorDetail.FromString(status.error_to_detail(error).SerializeToString()))


def test_every_class_of_the_tree_is_in_the_table_once():
    assert sorted(row.error.__name__ for row in status.TABLE) == sorted(
        c.__name__ for c in all_error_classes()
    )
    assert len({row.code for row in status.TABLE if row.bare}) == sum(row.bare for row in status.TABLE)


@pytest.mark.parametrize("cls", all_error_classes(), ids=lambda c: c.__name__)
def test_each_class_arrives_as_itself_on_both_ways(cls):
    arrived = travel(cls("what was wrong"))
    assert type(arrived) is cls and "what was wrong" in str(arrived)
    code, text, trailers = status.abort_arguments(cls("what was wrong"))
    arrived = status.from_rpc_error(Failure(code, text, trailers))
    assert type(arrived) is cls and "what was wrong" in str(arrived)


def test_attributes_travel():
    lost = travel(PeerLost("gone", peer="w1", reason="lease", may_have_run=False))
    assert (lost.peer, lost.reason, lost.may_have_run) == ("w1", "lease", False)
    assert travel(errors.ResourceExhausted("full", retry_after=2)).retry_after == 2.0
    assert travel(errors.RolledBack("back", step=7)).step == 7
    assert travel(errors.RendezvousTimeout("late", missing=["a", "b"])).missing == ("a", "b")


def test_attributes_of_a_wrong_type_are_dropped():
    detail = ErrorDetail(type="RolledBack", message="m")
    for text in ('"7"', "{", "", "true", "null"):
        detail.fields["step"] = text
        assert status.detail_to_error(detail).step == 0


class TwoArguments(KeyError):
    def __init__(self, a, b):
        super().__init__(a)
        self.b = b


class Broken(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_users_exceptions_become_remote_errors_and_keep_their_builtin_base():
    try:
        raise TwoArguments("left", "right")
    except TwoArguments as error:
        arrived = travel(error)
    assert isinstance(arrived, RemoteError) and isinstance(arrived, KeyError)
    assert arrived.type_name.endswith("test_status.TwoArguments") and arrived.message == "'left'"
    assert "raise TwoArguments" in arrived.remote_traceback
    assert str(arrived).endswith("TwoArguments: 'left'")


def test_an_exception_of_a_third_process_keeps_its_origin():
    first = travel(ValueError("deep"))
    second = travel(first)
    assert isinstance(second, ValueError) and type(second) is type(first)
    assert (second.type_name, second.message) == ("ValueError", "deep")
    assert second.remote_traceback == first.remote_traceback != ""


@pytest.mark.parametrize(
    "error",
    [
        StopIteration("x"),
        StopAsyncIteration("x"),
        KeyboardInterrupt("x"),
        SystemExit("x"),
        ExceptionGroup("x", [ValueError("y")]),
        Broken(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_exceptions_that_would_end_something_else_stay_plain_remote_errors(error):
    assert type(travel(error)) is RemoteError


def test_a_base_with_more_arguments_falls_back_to_its_own_base():
    arrived = travel(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte"))
    assert isinstance(arrived, RemoteError) and isinstance(arrived, ValueError)
    assert not isinstance(arrived, UnicodeDecodeError)


def test_a_subclass_travels_as_the_class_that_callers_catch():
    class Fenced(errors.Evicted):
        pass

    assert type(travel(Fenced("x"))) is errors.Evicted
    assert status.status_code(Fenced("x")) is grpc.StatusCode.ABORTED


class Mine(PsfError, KeyError):
    pass


def test_what_users_derive_from_the_root_keeps_its_name():
    arrived = travel(Mine("x"))
    assert isinstance(arrived, RemoteError) and isinstance(arrived, KeyError)
    assert arrived.type_name.endswith("test_status.Mine")


def test_a_class_of_ours_that_is_a_builtin_exception_besides_stays_both():
    class Both(errors.ArgumentError, TypeError):
        pass

    class Keyed(errors.PeerLost, KeyError):
        pass

    arrived = travel(travel(Both("x")))
    assert isinstance(arrived, errors.ArgumentError) and isinstance(arrived, TypeError)
    assert str(arrived) == "x" and type(travel(errors.ArgumentError("x"))) is errors.ArgumentError
    lost = travel(PeerLost("x", peer="bob", reason="lease", may_have_run=False))
    assert type(lost) is PeerLost and (lost.peer, lost.reason, lost.may_have_run) == ("bob", "lease", False)
    assert lost.rank is None and travel(PeerLost("x", rank=0)).rank == 0
    assert isinstance(travel(Keyed("x", peer="bob")), PeerLost)
    for name in ("StopIteration", "SystemExit", "eval", "no", "UnicodeDecodeError"):
        hostile = ErrorDetail(type="ArgumentError", message="m", builtin_base=name)
        assert isinstance(status.detail_to_error(hostile), errors.ArgumentError)


def test_unknown_types_and_hostile_names_become_remote_errors():
    for name in ("NoSuchError", "os.system", "", "Row", "object"):
        arrived = status.detail_to_error(ErrorDetail(type=name, message="m", builtin_base=name or "eval"))
        assert type(arrived) is RemoteError and arrived.message == "m"


def test_long_texts_keep_their_end_and_fit_into_trailers():
    _, _, trailers = status.abort_arguments(ValueError("x" * 100_000 + "the end"))
    assert len(trailers[0][1]) < 5000
    arrived = status.from_rpc_error(Failure(grpc.StatusCode.UNKNOWN, "", trailers))
    assert arrived.message.endswith("the end")


def test_text_that_is_not_unicode_travels():
    assert travel(ValueError("a\ud800b")).message == "a?b"


def test_bare_statuses():
    def bare(code, text=""):
        return status.from_rpc_error(Failure(code, text), peer="ps-0", hint="look at x")

    for code in grpc.StatusCode:
        if code is not grpc.StatusCode.OK:
            assert isinstance(bare(code, "text"), PsfError)
    assert type(bare(grpc.StatusCode.UNAUTHENTICATED)) is PermissionDenied
    assert type(bare(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")) is errors.DeadlineExceeded
    refused = bare(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; Connection refused")
    assert (refused.peer, refused.reason, refused.may_have_run) == ("ps-0", "refused", False)
    closed = bare(grpc.StatusCode.UNAVAILABLE, "Socket closed")
    assert (closed.reason, closed.may_have_run) == ("closed", True) and "look at x" in str(closed)
    tls = bare(grpc.StatusCode.UNAVAILABLE, "Tls handshake failed: CERTIFICATE_VERIFY_FAILED")
    assert type(tls) is PermissionDenied and "look at x" in str(tls)
    died = bare(grpc.StatusCode.UNAVAILABLE, "failed to connect; Handshake read failed (Socket closed)")
    assert type(died) is PeerLost and "look at x" in str(died)
    hung_up = Failure(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses: Socket closed")
    assert "may expect TLS" in str(status.from_rpc_error(hung_up))
    assert "TLS" not in str(status.from_rpc_error(Failure(grpc.StatusCode.UNAVAILABLE, "Socket closed")))
    internal = bare(grpc.StatusCode.INTERNAL, "Exception deserializing")
    assert isinstance(internal, RemoteError) and internal.type_name == "grpc.INTERNAL"


def test_foreign_or_damaged_details_are_ignored():
    foreign = AnyMessage(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"x")
    for blob in (RichStatus(code=5, details=[foreign]).SerializeToString(), b"\xff\xff\xff"):
        trailers = ((status.DETAILS_KEY, blob),)
        arrived = status.from_rpc_error(Failure(grpc.StatusCode.NOT_FOUND, "no table", trailers))
        assert type(arrived) is errors.UnknownTable


@pytest.mark.parametrize("letter", ["x", "é", "\N{GRINNING FACE}", "\ud800"])
async def test_a_real_call_carries_the_error(letter):
    async def fail(request, context):
        await status.abort(context, errors.RolledBack(letter * 50_000 + " restored", step=3))

    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler("t.T", {"F": grpc.unary_unary_rpc_method_handler(fail)})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/t.T/F")(b"", timeout=5)
    await server.stop(0)
    arrived = status.from_rpc_error(caught.value)
    assert isinstance(arrived, errors.RolledBack) and arrived.step == 3
    assert str(arrived).endswith(" restored")
