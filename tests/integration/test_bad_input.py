"""Bad input, on real processes: each is told by its class and in clear words, and the services live on."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import psframework as psf
from psframework import nn, optim
from psframework.errors import (
    AddressInUse,
    ArgumentError,
    CheckpointError,
    ContextClosed,
    DeadlineExceeded,
    Evicted,
    ModelMismatch,
    NotRegistered,
    PermissionDenied,
    PsfError,
    ResourceExhausted,
    UnknownTable,
    WireError,
)
from psframework.parameter_server.messages import shard_method
from psframework.parameter_server.policy import policy_spec
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.rpc.security.credentials import Security
from psframework.rpc.serve import serve
from psframework.rpc.session import frames
from psframework.rpc.session.frames import Frame

HUGE = 10 << 30
JUMP = 24 << 20  # bytes of resident size; a warm process moves by less
NOISE = np.random.default_rng(7).bytes(4096)
NONE = Security.plaintext()


class Net(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(np.zeros((2, width), np.float32))


def push(**fields: Any) -> pb.PushRequest:
    return pb.PushRequest(**({"table": "default/model", "sequence": 1} | fields))


def pull(**fields: Any) -> pb.PullRequest:
    return pb.PullRequest(**({"table": "default/model", "number": 1} | fields))


def model(shape: int = 4, dtype: str = "float32", **fields: Any) -> pb.RegisterRequest:
    """A registration by a stock stub."""
    own: dict[str, Any] = {
        "job": "default",
        "model": "other",
        "parameters": [pb.Parameter(name="w", dtype=dtype, shape=[shape])],
        "rule": json.dumps(optim.SGD(lr=1.0).rule.spec()),
        "policy": json.dumps(policy_spec(psf.ASP())),
        "registration": "r",
    }
    return pb.RegisterRequest(**(own | fields))


def frame(lane: int, **fields: Any) -> bytes:
    """A request whose payload travels by a lane."""
    header = push().SerializeToString()
    whole = Frame(
        kind=frames.REQUEST, call=1, method=shard_method("Push"), header=header, lane=lane, **fields
    )
    return frames.encode_batch(1, (0, 0, 0), [frames.encode_frame(whole)])


async def announce(stage: Any, lane: int, **fields: Any) -> None:
    """After the handshake, a request with such a payload."""
    await stage.plain.on_stream(stage.hello(), frame(lane, **fields))


def huge(number: int, before: bytes = b"") -> bytes:
    """A message that ends where a field of 10 GiB begins."""
    return before + bytes([number << 3 | 2]) + b"\x80\x80\x80\x80\x28" + bytes(64)


async def bind_a_taken_port(stage: Any) -> None:
    address = stage.plain.shard.address
    try:
        async with serve(bind=address, security=NONE):
            pass
    except PsfError as error:
        await stage.complains(["serve", "parameter-server", "--bind", address], str(error))
        raise


async def orders_on_the_call_stream(stage: Any) -> None:
    peer = stage.secure.cluster.agent.peer_for("parameter-server")
    request = pb.DropTableRequest(table="default/model")
    deadline = Deadline.after(10)
    await peer.call(shard_method("DropTable"), request, pb.DropTableReply, deadline=deadline)


async def push_as_reader(stage: Any) -> None:
    async with await stage.plain.cluster.parameter_server(Net(), reader=True) as ps:
        await ps.push()


async def push_as_reader_by_stub(stage: Any) -> None:
    async with await stage.plain.cluster.parameter_server(Net(), reader=True) as ps:
        await stage.plain.to_shard("Push", push(writer=ps._writer))


async def push_after_leaving(stage: Any) -> None:
    ps = await stage.plain.cluster.parameter_server(Net(), optimizer=optim.SGD(lr=1.0), consistency=psf.ASP())
    await ps.leave()
    await ps.push()


Attempt = Callable[[Any], Awaitable[None]]
# (name, what is tried, exception, words of its message)
TABLE: list[tuple[str, Attempt, type[Exception], str]] = [
    # command line
    ("a service that is not there", lambda s: s.psf("serve", "nonsense"), NotRegistered,
     r"no service 'nonsense'; there are allreduce, coordinator, .*, pipeline, pipeline-stage, worker"),
    ("a port in use", bind_a_taken_port, AddressInUse, r"is taken by another process: choose another port"),
    ("a text to resume", lambda s: s.psf("demo", "--resume", "@notes.txt"), CheckpointError,
     r"notes\.txt is no model file that can be read"),
    ("half a model to resume", lambda s: s.psf("demo", "--resume", "@half.safetensors", real=False),
     CheckpointError, r"half\.safetensors is no model file"),
    ("other tensors to resume", lambda s: s.psf("demo", "--resume", "@tensors.safetensors", real=False),
     CheckpointError, r"not a model that psf demo saved"),
    ("nothing to resume", lambda s: s.psf("demo", "--resume", "@none", real=False), CheckpointError,
     r"none is no model file"),
    ("a folder to resume", lambda s: s.psf("demo", "--resume", "@certs", real=False), CheckpointError,
     r"certs is no model file"),
    # certificates and tokens
    ("an authority we do not know", lambda s: s.secure.join("other/trainer"), PermissionDenied,
     r"TLS refused the connection"),
    ("a certificate of another authority", lambda s: s.secure.join("mixed"), PermissionDenied,
     r"one side refused the other's certificate"),
    ("a certificate of another role", lambda s: s.secure.join("certs/trainer", role="parameter-server"),
     PermissionDenied, r"'parameter-server', but your certificate is of role 'trainer'"),
    ("a shard where the coordinator should be", lambda s: s.secure.join("certs/trainer", at="shard"),
     PermissionDenied, r"TLS refused the connection .*certificate"),
    ("a hello of another role", lambda s: s.secure.on_stream(s.hello("coordinator")), PermissionDenied,
     r"you say that you are 'coordinator', but your certificate is of role 'trainer'"),
    ("no certificate", lambda s: s.secure.join(), PermissionDenied, r"may expect TLS"),
    ("a trainer's orders", lambda s: s.secure.to_shard("DropTable", pb.DropTableRequest()), PermissionDenied,
     r"has the role 'trainer'; .*/DropTable needs 'coordinator'"),
    ("a trainer's orders on the call stream", orders_on_the_call_stream, PermissionDenied,
     r"good has the role 'trainer'; .*/DropTable needs 'coordinator'"),
    ("no token", lambda s: s.plain.join(), PermissionDenied, r"asks for a token: set PSF_TOKEN"),
    ("another token", lambda s: s.plain.join(token="wrong"), PermissionDenied, r"not this cluster's"),
    # lengths
    ("10 GiB of data in a push", lambda s: s.plain.to_shard("Push", huge(15, push().SerializeToString())),
     WireError, r"a field of 10737418240 bytes where 64 are left"),
    ("10 GiB of name in a push", lambda s: s.plain.to_shard("Push", huge(1)), WireError, r"10737418240"),
    ("10 GiB of name in a registration", lambda s: s.plain.to_keeper("Register", huge(1)), WireError,
     r"/Register: 70 bytes that are no request"),
    ("10 GiB in a batch of frames", lambda s: s.plain.on_stream(s.hello(), huge(6)), WireError,
     r"not a batch of frames"),
    ("10 GiB instead of a hello", lambda s: s.plain.on_stream(huge(1)), WireError, r"not a batch of frames"),
    ("10 GiB in stripes", lambda s: announce(s, frames.STRIPED, sizes=[HUGE]),
     WireError, r"a payload of 1 parts, 10737418240 bytes: at most \d+ and \d+ bytes fit"),
    ("10 GiB inline", lambda s: announce(s, frames.INLINE, sizes=[HUGE], parts=[b"x"]),
     WireError, r"10737418240 bytes: at most \d+ and \d+ bytes fit"),
    ("1 GiB inline", lambda s: announce(s, frames.INLINE, sizes=[1 << 30], parts=[b"x"]),
     WireError, r"inline parts do not have the sizes"),
    ("10 GiB in no segment", lambda s: announce(s, frames.SHM, sizes=[8], offsets=[HUGE]),
     WireError, r"lane 3 was not negotiated"),
    ("10 GiB of a device", lambda s: announce(s, frames.DEVICE, sizes=[8], offsets=[HUGE]),
     WireError, r"lane 4 was not negotiated"),
    ("a model of 2**62 values", lambda s: s.plain.to_keeper("Register", model(1 << 62)), ArgumentError,
     r"the model would have \d+ partitions; \d+ are possible"),
    ("a message above the limit", lambda s: s.plain.to_shard("Push", bytes(65 << 20)), ResourceExhausted,
     r"larger than max"),
    # noise
    ("noise on the shard's port", lambda s: s.plain.on_port("shard", NOISE), EOFError, "closed"),
    ("noise on the coordinator's port", lambda s: s.plain.on_port("coordinator", NOISE), EOFError, "closed"),
    ("noise on a port with TLS", lambda s: s.secure.on_port("shard", NOISE), EOFError, "closed"),
    ("ten thousand lengths", lambda s: s.plain.on_port("shard", b"\0\xa0\0\0" * 10_000), EOFError, "closed"),
    ("plain HTTP", lambda s: s.plain.on_port("shard", b"GET / HTTP/1.1\r\n\r\n"), EOFError, "closed"),
    ("noise instead of a hello", lambda s: s.plain.on_stream(NOISE), WireError, r"not a batch of frames"),
    ("nothing instead of a hello", lambda s: s.plain.on_stream(b""), WireError, r"must begin with a Hello"),
    ("noise after the handshake", lambda s: s.plain.on_stream(s.hello(), NOISE), WireError, r"not a batch"),
    ("noise on a stripe", lambda s: s.plain.on_stream(NOISE, name="Stripe"), WireError, "."),
    ("noise as a push", lambda s: s.plain.to_shard("Push", NOISE), WireError, "."),
    ("noise as a pull", lambda s: s.plain.to_shard("Pull", NOISE), WireError, r"not a PullRequest"),
    ("noise as a registration", lambda s: s.plain.to_keeper("Register", NOISE), WireError, r"no request"),
    ("noise with a certificate", lambda s: s.secure.to_keeper("Register", NOISE), WireError, r"no request"),
    ("a method that is not there", lambda s: s.plain.to_shard("No", b""), NotRegistered,
     r"nothing serves .*/No' here; services: .*ParameterServerService"),
    # models
    ("another shape", lambda s: s.plain.open(Net(width=4)), ModelMismatch,
     r"parameter 'weight' has shape \(2, 4\), registered is \(2, 3\)"),
    ("one more parameter", lambda s: s.plain.open(nn.Linear(3, 2)), ModelMismatch,
     r"'bias' is not registered"),
    ("another rule", lambda s: s.plain.open(Net(), optimizer=optim.Adam(lr=1.0)), ModelMismatch,
     r"optimizer .*adam.* is .*sgd"),
    ("another policy", lambda s: s.plain.open(Net(), policy=psf.BSP()), ModelMismatch,
     r"consistency policy .*bsp.* is .*asp"),
    ("a reader of no model", lambda s: s.plain.open(Net(), reader=True, name="none"), UnknownTable,
     r"no model 'default/none'"),
    ("a push before a register", lambda s: s.plain.to_shard("Push", push()), NotRegistered,
     r"writer 0 is not registered with 'default/model': register first"),
    ("a push to no table", lambda s: s.plain.to_shard("Push", push(table="default/none")), UnknownTable,
     r"no table 'default/none' on this shard: open it first"),
    ("a pull from no table", lambda s: s.plain.to_shard("Pull", pull(table="default/none")), UnknownTable,
     r"no table 'default/none' on this shard"),
    ("a pull before a register", lambda s: s.plain.to_shard("Pull", pull()), NotRegistered,
     r"writer 0 .* register first"),
    ("a reader's push", push_as_reader, ArgumentError, r"opened with reader=True: it only pulls"),
    ("a reader's push by a stub", push_as_reader_by_stub, NotRegistered, r"is a reader .*can't push"),
    ("a push after leaving", push_after_leaving, ContextClosed, r"was left or closed: open it again"),
    ("a rule that is no JSON", lambda s: s.plain.to_keeper("Register", model(rule="{")), WireError,
     r"the update rule is not JSON"),
    ("a policy that is no object", lambda s: s.plain.to_keeper("Register", model(policy="[]")), WireError,
     r"the policy is not a JSON object"),
    ("a dtype that is none", lambda s: s.plain.to_keeper("Register", model(dtype="object")), ArgumentError,
     r"dtype 'object' is not supported"),
    ("who is no member", lambda s: s.plain.to_keeper("Register", model(incarnation=12345)), Evicted,
     r"incarnation 12345 is no member"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("attempt", "error", "words"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
async def test_bad_input_is_told_and_the_services_live_on(
    stage: Any, attempt: Attempt, error: type[Exception], words: str
) -> None:
    sides = (stage.plain, stage.secure)
    before = [size for side in sides for size in side.resident()]
    with pytest.raises(error, match=words):
        async with asyncio.timeout(20):
            await attempt(stage)
    for side in sides:
        await side.works()
    after = [size for side in sides for size in side.resident()]
    assert max(new - old for new, old in zip(after, before)) < JUMP


async def test_what_answers_is_no_coordinator() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(NOISE)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(DeadlineExceeded, match=address):
            async with psf.connect(address, timeout=1):
                pass
