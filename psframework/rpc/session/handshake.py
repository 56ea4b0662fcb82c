"""The first message each way of a connection: who is there, what both can do, where a session goes on."""

from __future__ import annotations

from psframework.errors import PeerLost, PermissionDenied, PsfError, WireError
from psframework.rpc.call import PeerInfo
from psframework.rpc.limits import AgentOptions
from psframework.rpc.session import frames
from psframework.rpc.session.frames import FrameBatch, Hello, Identity, LinkState, Welcome
from psframework.rpc.status import detail_to_error, error_to_detail
from psframework.wire.lanes import Lane

SESSION_BYTES = 16
MIN_WINDOW = 64 * 1024


def identity_of(info: PeerInfo) -> Identity:
    """A member as it introduces itself."""
    return Identity(name=info.name, role=info.role, job=info.job, incarnation=info.incarnation)


def info_of(identity: Identity, certificate_name: str | None = None) -> PeerInfo:
    """Who a peer says it is."""
    return PeerInfo(identity.name, identity.role, identity.job, identity.incarnation, certificate_name)


def read_hello(data: object) -> Hello:
    """The first message of whoever dialled; WireError if it is none, or of another protocol."""
    batch = frames.decode_batch(data) if isinstance(data, bytes) else None
    if batch is None or not batch.HasField("hello") or batch.frames:
        raise WireError("the call stream must begin with a Hello")
    hello = batch.hello
    if hello.protocol != frames.PROTOCOL:
        raise WireError(
            f"protocol {hello.protocol} was offered, this side speaks {frames.PROTOCOL}: "
            "install the same version of psframework on both sides"
        )
    if len(hello.session) != SESSION_BYTES or hello.connection < 1:
        raise WireError("a Hello without a session")
    _check_identity(hello.sender)
    _check_state(hello.state)
    return hello


def check_expected(hello: Hello, local: PeerInfo) -> None:
    """Refuses a caller that wants somebody else.

    Raises:
        PeerLost: another member, or another life of this one, is here; the call surely did not run.
        PermissionDenied: the caller belongs to another job.
    """
    expected = hello.expected
    if (expected.name or local.name) != local.name or (expected.role or local.role) != local.role:
        raise PeerLost(
            f"{expected.name} ({expected.role}) is not here: this is {local.name} ({local.role})",
            peer=expected.name,
            reason="refused",
            may_have_run=False,
        )
    if expected.incarnation not in (0, local.incarnation):
        raise PeerLost(
            f"{local.name} has restarted: incarnation {local.incarnation} is here, "
            f"not {expected.incarnation}",
            peer=local.name,
            reason="incarnation",
            may_have_run=hello.resumed,
        )
    job = hello.sender.job
    if job and local.job and job != local.job:
        raise PermissionDenied(f"{hello.sender.name} is of job {job!r}, {local.name} of job {local.job!r}")


def read_welcome(data: object) -> Welcome:
    """The first message of whoever accepted.

    Raises:
        WireError: it is no Welcome.
        PsfError: what the other side refused the session with.
    """
    batch = frames.decode_batch(data) if isinstance(data, bytes) else None
    if batch is None or not batch.HasField("welcome"):
        raise WireError("the other side did not answer with a Welcome")
    welcome = batch.welcome
    if welcome.HasField("refused"):
        raise detail_to_error(welcome.refused)
    _check_identity(welcome.sender)
    _check_state(welcome.state)
    return welcome


def check_answer(expected: Identity, sender: Identity) -> None:
    """Refuses whoever answered in place of the one that was dialled; empty fields match anybody.

    TLS proves the expected role and name, so what an answer says beyond them must not count.

    Raises:
        PeerLost: another member, or another life of it, answered; the call surely did not run there.
    """
    named = (expected.name or sender.name) == sender.name and (expected.role or sender.role) == sender.role
    if named and expected.incarnation in (0, sender.incarnation):
        return
    raise PeerLost(
        f"{sender.name} ({sender.role}, incarnation {sender.incarnation}) answered in place of "
        f"{expected.name} ({expected.role}, incarnation {expected.incarnation or 'any'})",
        peer=expected.name,
        reason="incarnation" if named else "refused",
        may_have_run=False,
    )


def hello_message(hello: Hello) -> bytes:
    """The Hello as a message of the stream."""
    return FrameBatch(hello=hello).SerializeToString()


def welcome_message(welcome: Welcome) -> bytes:
    """The Welcome as a message of the stream."""
    return FrameBatch(welcome=welcome).SerializeToString()


def refusal(error: PsfError) -> bytes:
    """The message that refuses a session."""
    return welcome_message(Welcome(refused=error_to_detail(error)))


def link_state(
    options: AgentOptions, segment_path: str, segment_key: bytes, socket_port: int = 0
) -> LinkState:
    """What a side offers; a resumed session adds how far it has come."""
    lanes = options.lanes if segment_path else options.lanes - {Lane.SHM}
    return LinkState(
        window=options.window_bytes,
        lanes=[frames.NUMBERS[lane] for lane in sorted(lanes, key=lambda lane: lane.value)],
        segment_path=segment_path,
        segment_key=segment_key if segment_path or socket_port else b"",
        socket_port=socket_port,
    )


def lanes_of(state: LinkState) -> frozenset[Lane]:
    """The lanes that the other side offers; numbers we don't know are skipped."""
    return frozenset(frames.LANES[lane] for lane in state.lanes if lane in frames.LANES) | {Lane.INLINE}


def _check_identity(identity: Identity) -> None:
    if not 1 <= len(identity.name) <= 127 or not 1 <= len(identity.role) <= 63 or len(identity.job) > 127:
        raise WireError("an identity needs a name (at most 127 characters) and a role (at most 63)")


def _check_state(state: LinkState) -> None:
    if state.window < MIN_WINDOW:
        raise WireError(f"a window of {state.window} bytes; at least {MIN_WINDOW} are needed")
    if len(state.segment_path) > 4096 or len(state.segment_key) > 64 or len(state.lanes) > 64:
        raise WireError("a handshake with fields that are too long")
    if state.socket_port > 65535:
        raise WireError(f"{state.socket_port} is no port")
