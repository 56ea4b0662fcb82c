"""Arguments and results of calls: Python values to `Value` messages and back. No code travels, no pickle.

What travels: None, bool, int of any size, float, complex, str, bytes, bytearray, list, tuple, dict, set,
frozenset, slice, range, `...`, dates, times and durations, enums, NumPy scalars and arrays, dtypes, Tensors
(as constants), Parameters, sparse gradients, Modules, registered functions and classes, types added with
`psf.register_type`, and what the layers above carry (RRefs). A memoryview arrives as bytes. Everything
arrives as a copy, also what two values share; what contains itself is refused.

Small arrays are inside the message, larger ones are parts of the frame: views of the caller's arrays on
the way out, views of where they arrived on the way in. On one host that is the sender's memory, so arrays
above 1 MiB arrive read-only; on every lane, so that no program depends on it: `array.copy()` before writing
to one. Smaller ones are copied, and may be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from psframework.errors import WireError
from psframework.proto.v1.remote_pb2 import Value
from psframework.rpc.session.frames import MAX_HEADER, MAX_PARTS
from psframework.rpc.values import journey as journeys
from psframework.rpc.values import kinds, object_readers, object_writers, readers, writers
from psframework.rpc.values.decoder import Authorize, Decoder, Home, here
from psframework.rpc.values.encoder import Encoder
from psframework.rpc.values.journey import Journey, Outcome
from psframework.rpc.values.kinds import CannotTravel
from psframework.wire.device_bytes import Part

if TYPE_CHECKING:
    from psframework.rpc.call import PeerInfo
    from psframework.rpc.registry import Entry

__all__ = [
    "CannotTravel",
    "decline",
    "decode",
    "decode_call",
    "encode",
    "encode_call",
    "may_build",
    "no_modules",
]

_TEACHERS = (readers, object_readers, writers, object_writers)  # imported for what they teach

_LARGE_OUTLINE = 4096
MOST_PASSENGER_BYTES = 4096  # no passenger says more of itself
_CALL = "the call"  # the value is (args, kwargs), which the caller doesn't see as one


def encode(value: Any, journey: Journey, where: str = "value", into: Value | None = None) -> Value:
    """The message of a value.

    Args:
        value: anything that may travel.
        journey: its `parts` get the large arrays: views, to be sent or copied before the caller goes on. If
            the value can't travel the journey ends, so that passengers stay where they are.
        where: what the value is called in messages.
        into: an empty message to be filled, such as a field of another one, which is copied otherwise.

    Raises:
        CannotTravel: something in it can't travel; the message names the type, and the path to it. It is a
            TypeError.
    """
    first_part = len(journey.parts)
    encoder = Encoder(journey)
    try:
        if where is _CALL:
            encoder.pair(value)
        else:
            encoder.put(value)
        return _checked(encoder, first_part, Value() if into is None else into)
    except CannotTravel as error:
        journey.end(Outcome.REFUSED)
        if where is _CALL:
            where = ("args", "kwargs")[error.path.pop(0) != "[0]"] if error.path else "the call"
        raise CannotTravel(f"{where}{''.join(error.path)}: {error.reason}") from None
    except BaseException:
        journey.end(Outcome.REFUSED)
        raise


def _checked(encoder: Encoder, first_part: int, message: Value) -> Value:
    encoder.fill(message, first_part)
    if len(encoder.outline) > _LARGE_OUTLINE:  # else it can't be too large
        if (nbytes := message.ByteSize()) > MAX_HEADER:
            raise CannotTravel(
                f"{nbytes} bytes besides its arrays; {MAX_HEADER} travel: send long lists as arrays"
            )
        if len(encoder.journey.parts) > MAX_PARTS:
            raise CannotTravel(f"more than {MAX_PARTS} large arrays: stack them")
    return message


def may_build(message: Value) -> bool:
    """Whether there are modules in a message, whose constructors may take long: true of all that have some,
    and of few others.
    """
    return kinds.MODULE in message.outline and len(message.texts) > 0


def decode(
    message: Value,
    parts: Sequence[Part],
    journey: Journey,
    *,
    views: bool = True,
    authorize: Authorize | None = None,
    home: Home = here,
) -> Any:
    """The value of a message.

    Args:
        message: what a peer's `encode` made, or what anybody else sent.
        parts: all parts of its frame.
        journey: is told to passengers.
        views: False copies large arrays too, so that what is kept does not hold on to the sender's memory.
        authorize: asked before a Module is made, of its class and the journey's peer; None in a reply.
        home: calls a function on the thread of the passengers, if that is another one than this.

    Raises:
        WireError: it is no value, or a name in it is not known here. Until then it took no more memory than a
            fixed multiple of the message, and, for arrays, what their bytes take. Passengers that were not
            reached have been declined.
    """
    try:
        decoder = Decoder(message, parts, journey, views, home)
        decoder.authorize = authorize
        return decoder.value()
    except Exception:
        home(partial(decline, message, journey))
        raise


def no_modules(entry: Entry, peer: PeerInfo) -> None:
    """The `authorize` of messages in which no Module has a place."""
    raise WireError(f"a Module, {entry.name}, where none may stand")


def decline(message: Value, journey: Journey) -> None:
    """Nobody will take what a reply brings: passengers in it that were not reached hear of it too."""
    for data in message.blobs:
        if len(data) <= MOST_PASSENGER_BYTES:
            journeys.decline(data, journey)


def encode_call(
    args: Sequence[Any], kwargs: Mapping[str, Any] | None, journey: Journey, into: Value | None = None
) -> Value:
    """The arguments of a call as one message; raises as `encode`."""
    if type(args) is not tuple:
        if not isinstance(args, Iterable) or isinstance(args, str | bytes | dict):
            raise CannotTravel(f"args={args!r:.200}: pass a tuple, as in args=(x,)")
        args = tuple(args)
    if kwargs and not all(isinstance(name, str) for name in kwargs):
        raise CannotTravel(f"kwargs={kwargs!r:.200}: a dict of names and values")
    return encode((args, dict(kwargs) if kwargs else {}), journey, _CALL, into)


def decode_call(
    message: Value,
    parts: Sequence[Part],
    journey: Journey,
    *,
    views: bool = True,
    authorize: Authorize | None = None,
    home: Home = here,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, (args, kwargs).

    Args:
        message, parts, journey, views, authorize, home: as of `decode`.

    Raises:
        WireError: as `decode`.
        PermissionDenied: `authorize` refused.
    """
    decoder = Decoder(message, parts, journey, views, home)
    decoder.authorize = authorize
    args, kwargs = decoder.call()
    if type(args) is tuple and type(kwargs) is dict and (not kwargs or all(type(k) is str for k in kwargs)):
        return args, kwargs
    raise WireError("the arguments of a call are a tuple and a dict with names")
