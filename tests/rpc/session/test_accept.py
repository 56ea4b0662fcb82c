"""The accepting side takes anything from the wire: bad peers are refused, good ones go on undisturbed."""

import asyncio
import os
import random
from typing import Any

import grpc
import pytest

from psframework.errors import Evicted, PeerLost, WireError
from psframework.proto.v1.call_pb2 import Chunk
from psframework.rpc.call import PeerInfo
from psframework.rpc.options import channel_options
from psframework.rpc.session import frames, handshake
from psframework.rpc.session.dial import CONNECT, STRIPE
from psframework.rpc.session.frames import Frame, FrameBatch, Hello, Identity, LinkState


def hello(session: bytes = b"", **changes: Any) -> Hello:
    sender = handshake.identity_of(PeerInfo("stranger", "worker", "", 77))
    state = LinkState(window=1 << 20, lanes=[1, 2])  # type: ignore[list-item]
    made = Hello(protocol=1, session=session or os.urandom(16), connection=1, sender=sender, state=state)
    made.MergeFrom(Hello(**changes))
    return made


class Stranger:
    """A bare gRPC client that says what it likes."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=channel_options())
        self.stream: Any = None

    async def __aenter__(self) -> "Stranger":
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.stream is not None:
            self.stream.cancel()
        await self.channel.close()

    async def open(self, first: Hello | bytes, path: str = CONNECT) -> Any:
        self.stream = self.channel.stream_stream(path)()
        data = handshake.hello_message(first) if isinstance(first, Hello) else first
        await self.stream.write(data)
        return self.stream

    async def ended(self) -> grpc.StatusCode:
        """The status that the server ends the stream with."""
        async with asyncio.timeout(5):
            try:
                while await self.stream.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError:
                pass
            return await self.stream.code()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "first",
    [b"", b"\xff" * 50, FrameBatch().SerializeToString(), handshake.hello_message(Hello(protocol=9))],
    ids=["nothing", "noise", "no hello", "another protocol"],
)
async def test_a_bad_first_message_is_refused_with_the_reason(office: Any, first: bytes) -> None:
    async with Stranger(office.address) as stranger:
        stream = await stranger.open(first)
        with pytest.raises(WireError):
            handshake.read_welcome(await stream.read())
        assert await stranger.ended() is grpc.StatusCode.OK
    assert office.agent.peers == ()


async def test_a_good_hello_is_welcomed(office: Any) -> None:
    async with Stranger(office.address) as stranger:
        stream = await stranger.open(hello())
        welcome = handshake.read_welcome(await stream.read())
        assert welcome.sender.name == "office" and welcome.state.window > 0
        assert office.agent.peers[0].info.name == "stranger"


async def test_a_session_that_is_not_known_is_refused(office: Any) -> None:
    async with Stranger(office.address) as stranger:
        stream = await stranger.open(hello(resumed=True))
        with pytest.raises(PeerLost, match="does not know") as caught:
            handshake.read_welcome(await stream.read())
        assert caught.value.may_have_run


async def test_the_dead_may_not_return(office: Any) -> None:
    office.agent.lost("stranger", 77)
    async with Stranger(office.address) as stranger:
        stream = await stranger.open(hello())
        with pytest.raises(Evicted, match="join again"):
            handshake.read_welcome(await stream.read())


async def test_a_session_can_not_be_taken_over_by_another_member(office: Any) -> None:
    session = os.urandom(16)
    async with Stranger(office.address) as first, Stranger(office.address) as second:
        await (await first.open(hello(session))).read()
        thief = hello(session, connection=2)
        thief.sender.name = "thief"
        stream = await second.open(thief)
        with pytest.raises(WireError, match="another member"):
            handshake.read_welcome(await stream.read())
        assert office.agent.peers[0].lost is None


async def test_a_newer_connection_replaces_the_older_one(office: Any) -> None:
    session = os.urandom(16)
    async with Stranger(office.address) as first, Stranger(office.address) as second:
        await (await first.open(hello(session))).read()
        stream = await second.open(hello(session, connection=2, resumed=True))
        handshake.read_welcome(await stream.read())
        await first.ended()
        assert len(office.agent.peers) == 1
        async with Stranger(office.address) as late:
            stale = await late.open(hello(session, connection=1, resumed=True))
            with pytest.raises(WireError, match="after connection 2"):
                handshake.read_welcome(await stale.read())


BAD_FRAMES = {
    "unknown kind": Frame(),
    "a kind of the future": Frame(kind=63),  # type: ignore[arg-type]
    "call 0": Frame(kind=frames.REQUEST, call=0),  # type: ignore[arg-type]
    "a reply to nothing": Frame(kind=frames.REPLY, call=5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", BAD_FRAMES)
async def test_a_broken_protocol_ends_that_session_only(office: Any, name: str) -> None:
    good = await office.peer()
    async with Stranger(office.address) as stranger:
        stream = await stranger.open(hello())
        await stream.read()
        await stream.write(FrameBatch(first=1, frames=[BAD_FRAMES[name]]).SerializeToString())
        assert await stranger.ended() is grpc.StatusCode.DATA_LOSS
    await office.until(lambda: len(office.agent.peers) == 1)
    assert await office.echo(good, "fine") == "fine"


@pytest.mark.parametrize(
    "batch",
    [
        FrameBatch(first=9, frames=[Frame(kind=frames.CANCEL, call=1)]),  # type: ignore[arg-type]
        FrameBatch(acknowledged=1000),
        FrameBatch(consumed=1 << 50),
    ],
    ids=["a gap", "acknowledges the future", "consumed more than sent"],
)
async def test_numbers_that_can_not_be_right_end_the_session(office: Any, batch: FrameBatch) -> None:
    async with Stranger(office.address) as stranger:
        stream = await stranger.open(hello())
        await stream.read()
        await stream.write(batch.SerializeToString())
        assert await stranger.ended() is grpc.StatusCode.DATA_LOSS


async def test_a_10_gb_length_in_a_header_is_answered_and_allocates_nothing(office: Any) -> None:
    async with Stranger(office.address) as stranger:
        stream = await stranger.open(hello())
        await stream.read()
        request = Frame(kind=frames.REQUEST, call=1, method="/test.Desk/Sum", lane=2, sizes=[10 << 30])  # type: ignore[arg-type]
        await stream.write(FrameBatch(first=1, frames=[request]).SerializeToString())
        reply = frames.decode_batch(await stream.read()).frames[0]
        assert reply.kind == frames.REPLY and reply.error.type == "WireError"
        assert "at most" in reply.error.message


async def test_random_frames_and_bytes_never_stop_the_service(office: Any) -> None:
    good = await office.peer()
    chance = random.Random(7)
    for _ in range(60):
        async with Stranger(office.address) as stranger:
            stream = await stranger.open(hello() if chance.random() < 0.8 else chance.randbytes(40))
            try:
                for number in range(3):
                    await stream.write(noise(chance, number))
                    await asyncio.sleep(0)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # the server has hung up already
    assert await office.echo(good, "fine") == "fine"
    await office.until(lambda: len(office.agent.peers) == 1, seconds=5)


def noise(chance: random.Random, number: int) -> bytes:
    if chance.random() < 0.3:
        return chance.randbytes(chance.randrange(100))
    frame = Frame(
        kind=chance.randrange(9),  # type: ignore[arg-type]
        call=chance.randrange(4),
        method=chance.choice(["/test.Desk/Echo", "/test.Desk/Sum", "x"]),
        header=chance.randbytes(chance.randrange(10)),
        lane=chance.randrange(5),  # type: ignore[arg-type]
        sizes=[chance.choice([0, 1, 1 << 20, 1 << 62]) for _ in range(chance.randrange(3))],
        parts=[chance.randbytes(chance.randrange(3)) for _ in range(chance.randrange(3))],
        segment=chance.randrange(3),
        offsets=[chance.randrange(1 << 40) for _ in range(chance.randrange(3))],
    )
    return FrameBatch(first=number + 1, frames=[frame]).SerializeToString()


@pytest.mark.parametrize(
    "first",
    [b"\xff" * 9, Chunk(session=bytes(16)).SerializeToString(), Chunk(data=b"x").SerializeToString()],
    ids=["noise", "no such session", "no session"],
)
async def test_a_stripe_without_a_session_is_refused(office: Any, first: bytes) -> None:
    async with Stranger(office.address) as stranger:
        await stranger.open(first, STRIPE)
        assert await stranger.ended() is grpc.StatusCode.DATA_LOSS


async def test_noise_on_a_stripe_ends_its_session_only(office: Any) -> None:
    good, session = await office.peer(), os.urandom(16)
    async with Stranger(office.address) as stranger, Stranger(office.address) as stripe:
        await (await stranger.open(hello(session))).read()
        stream = await stripe.open(Chunk(session=session, connection=1).SerializeToString(), STRIPE)
        await stream.write(b"\x07\x07\x07")
        assert await stripe.ended() is grpc.StatusCode.DATA_LOSS
    assert await office.echo(good, "fine") == "fine"


async def test_a_state_that_can_not_be_right_leaves_no_session(office: Any) -> None:
    async with Stranger(office.address) as stranger:
        stream = await stranger.open(hello(state=LinkState(window=1 << 20, received=5)))
        with pytest.raises(WireError, match="never sent"):
            handshake.read_welcome(await stream.read())
    assert office.agent.peers == () and not office.agent._acceptor._sessions


@pytest.mark.parametrize("changed", [{"incarnation": 78}, {"job": "other"}])
async def test_a_session_is_not_resumed_by_another_life(office: Any, changed: dict[str, Any]) -> None:
    session = os.urandom(16)
    async with Stranger(office.address) as first, Stranger(office.address) as second:
        await (await first.open(hello(session))).read()
        other = hello(session, connection=2, resumed=True)
        other.sender.MergeFrom(Identity(**changed))
        stream = await second.open(other)
        with pytest.raises(WireError, match="another life"):
            handshake.read_welcome(await stream.read())
        assert office.agent.peers[0].lost is None
